"""Every field of TRL's ``GRPOConfig``: honoured, without effect, or refused with advice.

Honoured fields mean here what they mean in TRL 1.16.0. Some have no effect in TRL's trainer either
(flags for the script that builds it) and are accepted. Every other field may hold TRL's default and
nothing else: an option that would be ignored is an error that says what to do instead.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HONOURED = _names(
    """
    output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate
    lr_scheduler_type warmup_steps optim weight_decay adam_beta1 adam_beta2 adam_epsilon
    gradient_accumulation_steps max_grad_norm bf16 gradient_checkpointing logging_strategy
    logging_steps logging_first_step report_to eval_strategy eval_steps eval_on_start
    save_strategy save_steps save_total_limit seed use_cpu remove_unused_columns num_generations
    num_generations_eval max_completion_length shuffle_dataset generation_batch_size
    steps_per_generation temperature top_p top_k min_p beta num_iterations epsilon delta
    epsilon_high importance_sampling_level reward_weights multi_objective_aggregation
    scale_rewards loss_type mask_truncated_completions entropy_coef use_bias_correction_kl
    disable_tqdm log_completions num_completions_to_print log_unique_prompts disable_dropout
    """
)

WITHOUT_EFFECT = _names(
    """
    do_train do_eval do_predict resume_from_checkpoint local_rank log_level log_level_replica
    log_on_each_node average_tokens_across_devices dataloader_drop_last data_seed run_name
    per_device_eval_batch_size
    """
)
"""Flags for scripts or for several processes, a seed that TRL's sampler does not read, a name that
only trackers show, a batch size that changes no result, and what is so anyway: a last incomplete
batch of prompts is dropped."""

ALSO_SO: dict[str, tuple[object, ...]] = {
    "dataloader_pin_memory": (False,),
    "ddp_find_unused_parameters": (False,),
    "gradient_checkpointing_kwargs": ({"use_reentrant": False},),
    "log_multimodal": (False,),
    "logging_nan_inf_filter": (False,),
    "model_init_kwargs": ({"dtype": "float32"},),
    "pad_to_multiple_of": (None,),
    "tf32": (False,),
    "vllm_importance_sampling_correction": (False,),
}
"""Values beside TRL's default that describe what happens here anyway."""

_ADVICE = {
    "Leave it out; give lr_scheduler_type linear, cosine, constant or constant_with_warmup.": """
        lr_scheduler_kwargs""",
    "Leave it out: the optimiser is AdamW over all weights, or over the adapter.": """
        optim_args optim_target_modules label_smoothing_factor neftune_noise_alpha
        use_liger_kernel liger_kernel_config""",
    "Set bf16=True or bf16=False; master weights are float32 either way.": """
        fp16 bf16_full_eval fp16_full_eval tf32 cast_lm_head_to_fp32""",
    "Set gradient_checkpointing=True or False.": """
        activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs""",
    "Leave it out: models run as they are loaded.": """
        torch_compile torch_compile_backend torch_compile_mode use_cache torch_empty_cache_steps
        cache_implementation router_aux_loss_coef""",
    "Set per_device_train_batch_size: it bounds a micro-batch and changes no result.": """
        auto_find_batch_size pad_to_multiple_of""",
    "Leave it out: a loss that is not finite stops the run, and tokens are always counted.": """
        logging_nan_inf_filter include_num_input_tokens_seen skip_memory_metrics debug""",
    "Leave it out: trackers are reached by a callback, and completions stay in output_dir.": """
        project trackio_space_id trackio_bucket_id trackio_static_space_id
        log_completions_hub_repo log_multimodal""",
    "Set eval_strategy, eval_steps, num_generations_eval and eval_on_start.": """
        eval_delay prediction_loss_only eval_do_concat_batches eval_use_gather_object
        eval_accumulation_steps include_for_metrics batch_eval_metrics label_names""",
    "Set save_strategy, save_steps and save_total_limit; a checkpoint always resumes exactly.": """
        save_only_model save_on_each_node enable_jit_checkpoint ignore_data_skip
        restore_callback_states_from_checkpoint full_determinism""",
    "Save with save_model(folder) and upload that folder yourself.": """
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
        hub_revision""",
    "Leave it out and choose among the checkpoints of output_dir.": """
        load_best_model_at_end metric_for_best_model greater_is_better""",
    "Leave it out: prompts are drawn in the training process, without a data loader.": """
        dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
        train_sampling_strategy length_column_name""",
    "Leave it out: this trainer is one process. For several, write a Run with another trainer.": """
        accelerator_config parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed
        ds3_gather_for_generation""",
    "Leave it out: weights are held in float32; for special loading pass the model itself.": """
        trust_remote_code model_init_kwargs""",
    "Set temperature, top_p, top_k, min_p and max_completion_length.": """
        generation_kwargs repetition_penalty""",
    "Leave it out: the template is rendered as the tokenizer has it; pass a processing_class with "
    "another chat_template.": """
        chat_template_kwargs""",
    "Leave it out: sampling is batched continuously by posttrain's own engine.": """
        use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged""",
    "Leave it out, or write a Run with the engine you want.": """
        use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex
        vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
        vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size
        vllm_importance_sampling_correction vllm_importance_sampling_mode
        vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
        vllm_importance_sampling_cap""",
    "Leave it out: the reference stays the model training began with.": """
        sync_ref_model ref_model_mixup_alpha ref_model_sync_steps""",
    "Leave it out: the loss types here are dapo, grpo, dr_grpo, bnpo and luspo. For another loss "
    "write a Run with that method.": """
        sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg
        vespo_lambda_neg off_policy_mask_threshold top_entropy_quantile""",
    "Set entropy_coef to a constant.": """
        use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta
        entropy_target""",
    "Write the tools as an environment and train it with posttrain.fit.": """
        max_tool_calling_iterations""",
}
REFUSED = {name: advice for advice, names in _ADVICE.items() for name in _names(names)}
"""What to do instead, by field."""
