"""``GRPOConfig`` with the names, order and defaults of TRL 1.16.0.

What a field means is TRL's documentation; which of them are honoured is `fields`.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeAlias

from posttrain.compat.trl.fields import ALSO_SO, REFUSED
from posttrain.errors import ConfigError, nearest

Options: TypeAlias = dict[str, Any] | str | None


@dataclass
class GRPOConfig:
    """Options of `GRPOTrainer`.

    Raises:
        ConfigError: an unknown name, a value without meaning, or an option that is not honoured.
    """

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    num_train_epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: Options = None
    warmup_steps: float = 0
    optim: str = "adamw_torch_fused"
    optim_args: str | None = None
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    optim_target_modules: str | list[str] | None = None
    gradient_accumulation_steps: int = 1
    average_tokens_across_devices: bool = True
    max_grad_norm: float = 1.0
    label_smoothing_factor: float = 0.0
    bf16: bool | None = None
    fp16: bool = False
    bf16_full_eval: bool = False
    fp16_full_eval: bool = False
    tf32: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_kwargs: Options = None
    gradient_checkpointing: bool = True
    gradient_checkpointing_kwargs: Options = None
    torch_compile: bool = False
    torch_compile_backend: str | None = None
    torch_compile_mode: str | None = None
    use_liger_kernel: bool = False
    liger_kernel_config: Options = None
    use_cache: bool = False
    neftune_noise_alpha: float | None = None
    torch_empty_cache_steps: int | None = None
    auto_find_batch_size: bool = False
    logging_strategy: str = "steps"
    logging_steps: float = 10
    logging_first_step: bool = False
    log_on_each_node: bool = True
    logging_nan_inf_filter: bool = True
    include_num_input_tokens_seen: str | bool = "no"
    log_level: str = "passive"
    log_level_replica: str = "warning"
    disable_tqdm: bool | None = None
    report_to: str | list[str] | None = "none"
    run_name: str | None = None
    project: str = "huggingface"
    trackio_space_id: str | None = None
    trackio_bucket_id: str | None = None
    trackio_static_space_id: str | bool | None = None
    eval_strategy: str = "no"
    eval_steps: float | None = None
    eval_delay: float = 0
    per_device_eval_batch_size: int = 8
    prediction_loss_only: bool = False
    eval_on_start: bool = False
    eval_do_concat_batches: bool = True
    eval_use_gather_object: bool = False
    eval_accumulation_steps: int | None = None
    include_for_metrics: list[str] = field(default_factory=list)
    batch_eval_metrics: bool = False
    save_only_model: bool = False
    save_strategy: str = "steps"
    save_steps: float = 500
    save_on_each_node: bool = False
    save_total_limit: int | None = None
    enable_jit_checkpoint: bool = False
    push_to_hub: bool = False
    hub_token: str | None = None
    hub_private_repo: bool | None = None
    hub_model_id: str | None = None
    hub_strategy: str = "every_save"
    hub_always_push: bool = False
    hub_revision: str | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    ignore_data_skip: bool = False
    restore_callback_states_from_checkpoint: bool = False
    full_determinism: bool = False
    seed: int = 42
    data_seed: int | None = None
    use_cpu: bool = False
    accelerator_config: Options = None
    parallelism_config: object = None
    dataloader_drop_last: bool = False
    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    dataloader_persistent_workers: bool = False
    dataloader_prefetch_factor: int | None = None
    dataloader_multiprocessing_context: str | None = None
    dataloader_in_order: bool = True
    remove_unused_columns: bool | None = False
    label_names: list[str] | None = None
    train_sampling_strategy: str = "random"
    length_column_name: str = "length"
    ddp_find_unused_parameters: bool | None = None
    ddp_bucket_cap_mb: int | None = None
    ddp_broadcast_buffers: bool | None = None
    ddp_static_graph: bool | None = None
    ddp_backend: str | None = None
    ddp_timeout: int = 1800
    fsdp: str | None = None
    fsdp_config: Options = None
    deepspeed: Options = None
    debug: str | list[str] = ""
    skip_memory_metrics: bool = True
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    resume_from_checkpoint: str | None = None
    local_rank: int = -1
    model_init_kwargs: Options = None
    trust_remote_code: bool = False
    router_aux_loss_coef: float | None = None
    disable_dropout: bool = False
    cast_lm_head_to_fp32: bool = False
    num_generations: int | None = 8
    num_generations_eval: int | None = None
    max_completion_length: int | None = 512
    ds3_gather_for_generation: bool = True
    shuffle_dataset: bool | None = True
    pad_to_multiple_of: int | str | None = "auto"
    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    generation_kwargs: Options = None
    chat_template_kwargs: Options = None
    repetition_penalty: float = 1.0
    cache_implementation: str | None = None
    use_vllm: bool = False
    vllm_mode: str = "colocate"
    vllm_model_impl: str = "vllm"
    vllm_enable_sleep_mode: bool = False
    vllm_structured_outputs_regex: str | None = None
    vllm_server_base_url: str | None = None
    vllm_server_host: str = "0.0.0.0"
    vllm_server_port: int = 8000
    vllm_server_timeout: float = 240.0
    vllm_group_port: int = 51216
    vllm_gpu_memory_utilization: float = 0.3
    vllm_max_model_length: int | None = None
    vllm_tensor_parallel_size: int = 1
    beta: float = 0.0
    num_iterations: int = 1
    epsilon: float = 0.2
    delta: float | None = None
    epsilon_high: float | None = None
    sapo_temperature_neg: float = 1.05
    sapo_temperature_pos: float = 1.0
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    importance_sampling_level: str = "token"
    reward_weights: list[float] | None = None
    multi_objective_aggregation: str = "sum_then_normalize"
    scale_rewards: str | bool = "group"
    loss_type: str = "dapo"
    mask_truncated_completions: bool = False
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005
    entropy_target: float = 0.2
    max_tool_calling_iterations: int | None = None
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: str = "sequence_mask"
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None
    off_policy_mask_threshold: float | None = None
    use_bias_correction_kl: bool = True
    log_completions: bool = False
    log_multimodal: bool = True
    num_completions_to_print: int | None = None
    log_unique_prompts: bool = False
    log_completions_hub_repo: str | None = None
    use_transformers_continuous_batching: bool = False
    transformers_continuous_batching_config: Options = None
    use_transformers_paged: bool = False
    vllm_importance_sampling_cap: float | None = None

    def __new__(cls, *_values: object, **named: object) -> GRPOConfig:
        """A config, once every name is known."""
        known = {each.name for each in fields(cls)}
        for name in sorted(named.keys() - known):
            raise ConfigError(
                f"GRPOConfig has no field {name!r}.{nearest(name, known)} "
                "The names are those of TRL 1.16.0; an option of your own belongs in your script."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.scale_rewards = _SCALES.get(self.scale_rewards, str(self.scale_rewards))
        for each in fields(self):
            _refuse_if_ignored(each, getattr(self, each.name))
        self._resolve_batch()
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"GRPOConfig.{name} must be one of {', '.join(allowed)}, got "
                    f"{getattr(self, name)!r}.{nearest(str(getattr(self, name)), allowed)}"
                )
        _check_numbers(self)
        _check_trackers(self.report_to)

    def _resolve_batch(self) -> None:
        """Fill in the sizes that follow from the others, as TRL does for one process."""
        rows, size = self.per_device_train_batch_size, self.generation_batch_size
        accumulated, slices = self.gradient_accumulation_steps, self.steps_per_generation
        if size is None:
            slices = accumulated if slices is None else slices
            size = rows * slices
        elif slices is None:
            _divides(rows, "per_device_train_batch_size", size, "generation_batch_size")
            slices = size // rows
        elif size != rows * slices:
            raise ConfigError(
                f"generation_batch_size={size} and steps_per_generation={slices} disagree: with "
                f"per_device_train_batch_size={rows} the first is {rows} times the second. Give "
                "only one of them."
            )
        self.generation_batch_size, self.steps_per_generation = size, slices


_SCALES: dict[object, str] = {True: "group", False: "none"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "loss_type": ("dapo", "grpo", "dr_grpo", "bnpo", "luspo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "lr_scheduler_type": ("linear", "cosine", "constant", "constant_with_warmup"),
    "optim": ("adamw_torch_fused", "adamw_torch"),
    "logging_strategy": ("steps", "epoch", "no"),
    "eval_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("steps", "epoch", "no"),
}  # fmt: skip


def default(field_: Field[Any]) -> object:
    """A field's default."""
    return field_.default if field_.default_factory is MISSING else field_.default_factory()


def _refuse_if_ignored(field_: Field[Any], value: object) -> None:
    name, usual = field_.name, default(field_)
    if name in REFUSED and value != usual and value not in ({}, *ALSO_SO.get(name, ())):
        raise ConfigError(
            f"GRPOConfig.{name}={value!r} is not honoured here, only TRL's default {usual!r} is. "
            f"{REFUSED[name]}"
        )


def _check_numbers(config: GRPOConfig) -> None:
    group, size = config.num_generations, config.generation_batch_size
    if not group or group < 2:
        raise ConfigError(
            f"GRPOConfig.num_generations must be >= 2, got {group}: an advantage compares a "
            "completion with others of the same prompt."
        )
    _divides(group, "num_generations", size or 0, "generation_batch_size")
    _divides(
        config.gradient_accumulation_steps,
        "gradient_accumulation_steps",
        config.steps_per_generation or 0,
        "steps_per_generation",
    )
    if not config.max_completion_length:
        raise ConfigError(
            "GRPOConfig.max_completion_length must be a number of tokens, got "
            f"{config.max_completion_length!r}. An unbounded completion has no deadline."
        )
    if config.loss_type == "bnpo" and config.gradient_accumulation_steps > 1:
        raise ConfigError(
            "GRPOConfig.loss_type='bnpo' averages tokens within each micro-batch, so with "
            f"gradient_accumulation_steps={config.gradient_accumulation_steps} its gradient would "
            "depend on how the batch is cut. Use loss_type='dapo', the mean over all tokens of the "
            "step, or accumulate 1 larger batch."
        )


def _check_trackers(given: str | list[str] | None) -> None:
    wanted = [given] if isinstance(given, str) else list(given or ())
    if set(wanted) - {"none"}:
        raise ConfigError(
            f"GRPOConfig.report_to={given!r} is not honoured here, only 'none' is. Every metric is "
            "in output_dir/metrics.jsonl; for a tracker add a callback whose on_log sends the logs."
        )


def _divides(part: int, part_name: str, whole: int, whole_name: str) -> None:
    if part < 1 or whole < 1 or whole % part:
        raise ConfigError(
            f"GRPOConfig.{whole_name} must be a multiple of {part_name}, got {whole} and {part}. "
            f"For example {whole_name}={max(1, round(whole / max(part, 1))) * max(part, 1)}."
        )
