"""From a trainer's arguments to a run: models, adapters, sources, engine and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.trainer_callback import TrainerControl

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.data import Graded, Prompts, digest_of, tasks_of
from posttrain.compat.trl.method import grpo_method, prompts
from posttrain.compat.trl.schedule import Length, StepsOrStopped, learning_rate_of
from posttrain.data.models import TINY
from posttrain.errors import ConfigError, DataError
from posttrain.types.ask import Decode
from posttrain.types.method import Source, Verifier
from posttrain.types.models import AdamW, Frozen, LoRA, ModelSpec, Precision, Trained
from posttrain.types.run import (
    Checkpoints,
    Evaluation,
    Limits,
    Local,
    Phase,
    Run,
)

ALL = 10**9
"""Checkpoints kept without ``save_total_limit``."""

PATIENCE_S = 86_400.0
"""TRL waits for rewards and completions without a limit; here a day."""


def run_of(
    config: GRPOConfig,
    model: Trained,
    source: Source,
    evaluation: Evaluation | None,
    *,
    length: Length,
    control: TrainerControl,
) -> Run:
    """The run that these options describe."""
    models: dict[str, ModelSpec] = {"policy": model}
    if config.beta:
        models["ref"] = Frozen(of="policy", compute=model.compute)
    return Run(
        models=models,
        phases=(
            Phase(
                method=grpo_method(config),
                source=source,
                until=StepsOrStopped(length.steps, control),
                evaluation=evaluation,
            ),
        ),
        decode=Decode(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p or 0.0,
            max_tokens=config.max_completion_length or 0,
        ),
        limits=Limits(max_turns=1, episode_s=PATIENCE_S, verifier_s=PATIENCE_S),
        trainer=Local(
            groups_per_step=prompts(config),
            microbatch_tokens=_microbatch_tokens(config, source),
            device="cpu" if config.use_cpu else "auto",
        ),
        checkpoints=Checkpoints(every=_save_every(config, length), keep_last=_kept(config)),
        seed=config.seed,
    )


def policy_of(
    model: str | PreTrainedModel,
    processing_class: Any,
    peft_config: Any,
    config: GRPOConfig,
    *,
    length: Length,
) -> Trained:
    """The model to train; an instance is written to the output folder and read from there.

    Raises:
        ConfigError: a tokenizer of another model, dropout that would be switched off, or an
            adapter that is not a plain LoRA.
    """
    if isinstance(model, str):
        path, settings = model, _settings(model)
        template = _template(model, processing_class)
    else:
        path, settings = str(_written(model, processing_class, config)), model.config
        template = None
    _check_dropout(settings, config)
    precisions: dict[bool | None, Precision] = {None: "auto", True: "bfloat16", False: "float32"}
    return Trained(
        path=path,
        optimiser=AdamW(
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            schedule=learning_rate_of(config, length),
        ),
        compute=precisions[config.bf16],
        lora=None if peft_config is None else lora_of(peft_config, settings),
        gradient_checkpointing=config.gradient_checkpointing,
        template=template,
        init_seed=config.seed,
    )


def _settings(path: str) -> Any:
    """The model's configuration; None for the embedded model and for a file, which have no folder.

    Raises:
        ConfigError: there is no such model.
    """
    if path == TINY or path.endswith(".gguf"):
        return None
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model {path!r} has no configuration to read: {error}. Give a Hugging Face id, a "
            "folder, a GGUF file, or the model itself."
        ) from error


def _template(path: str, processing_class: Any) -> str | None:
    if processing_class is None:
        return None
    named = getattr(processing_class, "name_or_path", "")
    if named != path:
        raise ConfigError(
            f"processing_class was loaded from {named!r} and model is {path!r}. Save model and "
            "tokenizer to one folder and pass that folder, or pass the model itself."
        )
    return getattr(processing_class, "chat_template", None)


def _written(model: PreTrainedModel, processing_class: Any, config: GRPOConfig) -> Path:
    folder = Path(output_dir(config)) / "initial"
    tokenizer = processing_class
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(model.config.name_or_path)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def output_dir(config: GRPOConfig) -> str:
    """Where everything is written; TRL's own default if none is given."""
    return config.output_dir or "trainer_output"


def _check_dropout(settings: Any, config: GRPOConfig) -> None:
    if config.disable_dropout or settings is None:
        return
    text = settings.get_text_config() if hasattr(settings, "get_text_config") else settings
    named = {n: v for n, v in vars(text).items() if "dropout" in n or n.endswith("pdrop")}
    active = sorted(n for n, v in named.items() if isinstance(v, float) and v > 0.0)
    if active:
        raise ConfigError(
            f"the model's configuration has {', '.join(active)} above 0, and dropout is off while "
            "training here, so that ratios compare one network with itself. Say so with "
            "disable_dropout=True."
        )


_PLAIN_LORA = {
    "bias": "none",
    "lora_dropout": 0.0,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "fan_in_fan_out": False,
}


def lora_of(peft_config: Any, settings: Any) -> LoRA:
    """A LoRA as ``peft`` describes it.

    Raises:
        ConfigError: another adapter, or an option beyond rank, alpha and targets.
    """
    if str(getattr(peft_config, "peft_type", "")).rsplit(".", 1)[-1] != "LORA":
        raise ConfigError(f"peft_config must be a LoraConfig, got {type(peft_config).__name__}.")
    for name, usual in _PLAIN_LORA.items():
        if getattr(peft_config, name, usual) != usual:
            raise ConfigError(
                f"LoraConfig.{name}={getattr(peft_config, name)!r} is not honoured; only r, "
                "lora_alpha and target_modules are. Leave it out."
            )
    return LoRA(
        rank=peft_config.r,
        alpha=peft_config.lora_alpha,
        targets=_targets(peft_config.target_modules, settings),
    )


def _targets(given: Any, settings: Any) -> tuple[str, ...]:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    kind = getattr(settings, "model_type", "")
    if given is None:
        given = USUAL.get(kind)
    if given is None or isinstance(given, str):
        raise ConfigError(
            f"LoraConfig.target_modules must be a list of layer names for a model of type "
            f"{kind!r}, got {given!r}. For example ['q_proj', 'v_proj']."
        )
    return tuple(sorted(given))


def source_of(data: Any, graders: Mapping[str, Verifier], config: GRPOConfig) -> Prompts | Graded:
    """The training data as a source.

    Raises:
        DataError: no data set, or fewer prompts than one generation needs.
    """
    if isinstance(data, Source):
        return Graded(data, graders)
    tasks = tasks_of(_rows(data, "train_dataset"), prompt_only=bool(config.remove_unused_columns))
    needed = prompts(config)
    if len(tasks) < needed:
        raise DataError(
            f"the data set has {len(tasks)} prompts and one generation takes {needed} "
            f"(generation_batch_size {config.generation_batch_size} / num_generations "
            f"{config.num_generations}), so no step could be made. Lower "
            "per_device_train_batch_size or gradient_accumulation_steps."
        )
    return Prompts(
        batch=needed,
        shuffle=bool(config.shuffle_dataset),
        seed=config.seed,
        digest=digest_of(tasks),
        _tasks=tasks,
        _graders=graders,
    )


def evaluation_of(
    data: Any, graders: Mapping[str, Verifier], config: GRPOConfig, length: Length
) -> Evaluation:
    """Held-out prompts and when they are scored."""
    if isinstance(data, Mapping):
        raise DataError(f"eval_dataset must be one data set, got a mapping of {sorted(data)}.")
    tasks = tasks_of(_rows(data, "eval_dataset"), prompt_only=bool(config.remove_unused_columns))
    source = Prompts(
        batch=len(tasks),
        shuffle=False,
        seed=config.seed,
        digest=digest_of(tasks),
        _tasks=tasks,
        _graders=graders,
    )
    return Evaluation(
        source=source,
        every=_evaluate_every(config, length),
        num_tasks=len(tasks),
        samples=config.num_generations_eval or config.num_generations or 1,
    )


def _rows(data: Any, name: str) -> Iterable[Mapping[str, Any]]:
    if data is None:
        raise DataError(f"{name} must be given: rows with a column 'prompt'.")
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise DataError(
            f"{name} must be a list of dictionaries, a data set of rows or a posttrain Source, got "
            f"{type(data).__name__}. Of a data set with splits pass one split."
        )
    return data


def _microbatch_tokens(config: GRPOConfig, source: Source) -> int:
    """At least ``per_device_train_batch_size`` rows; a text has no more tokens than bytes."""
    longest = source.longest_prompt if isinstance(source, Prompts) else 0
    rows = config.per_device_train_batch_size
    return rows * ((config.max_completion_length or 0) + longest)


def _save_every(config: GRPOConfig, length: Length) -> int:
    if config.save_strategy == "no":
        return 0
    if config.save_strategy == "epoch":
        return length.steps_a_pass or 0
    return length.steps_for(config.save_steps)


def _kept(config: GRPOConfig) -> int:
    return ALL if config.save_total_limit is None else config.save_total_limit


def _evaluate_every(config: GRPOConfig, length: Length) -> int:
    if config.eval_strategy == "no":
        return 0
    if config.eval_strategy == "epoch":
        return length.steps_a_pass or 0
    return length.steps_for(config.eval_steps or config.logging_steps)
