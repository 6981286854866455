"""``GRPOTrainer`` with the constructor and the methods of TRL 1.16.0, on posttrain's loop."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import TrainOutput

from posttrain import api
from posttrain.compat.trl.callbacks import Callbacks
from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.data import Prompts
from posttrain.compat.trl.rewards import Notes, Reward, reward_functions
from posttrain.compat.trl.schedule import length_of
from posttrain.compat.trl.setup import evaluation_of, output_dir, policy_of, run_of, source_of
from posttrain.data.models import load_model, load_tokenizer
from posttrain.errors import CheckpointError, ConfigError
from posttrain.monitor.console import Console
from posttrain.trainers.checkpoint import listed
from posttrain.types.models import Trained
from posttrain.types.run import Evaluation, Run

_NOT_TAKEN = {
    "reward_processing_classes": "Wrap a reward model in a function that gives its scores.",
    "quantization_config": "Load the model yourself and pass it as model.",
    "tools": "Write the tools as an environment and train it with posttrain.fit.",
    "rollout_func": "Write it as a plan or an environment and train it with posttrain.fit.",
    "environment_factory": "Write it as an environment and train it with posttrain.fit.",
}


class GRPOTrainer:
    """Trains a model with TRL's options.

    ``run`` is the same training as a posttrain ``Run``, to read or to go on from.
    """

    def __init__(  # noqa: PLR0913 (TRL's signature)
        self,
        model: str | PreTrainedModel,
        reward_funcs: Reward | Sequence[Reward] | None = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        """Take what TRL's trainer takes.

        Raises:
            ConfigError: an argument or an option that is not honoured; says what to do.
            DataError: data that cannot be trained on.
        """
        given = (reward_processing_classes, quantization_config, tools, rollout_func)
        _refuse(dict(zip(_NOT_TAKEN, (*given, environment_factory), strict=True)), optimizers)
        name = model if isinstance(model, str) else str(model.config.name_or_path)
        self.args = GRPOConfig(f"{Path(name).name}-GRPO") if args is None else args
        self._given = None if isinstance(model, str) else model
        self._tokenizer = processing_class
        self._notes = Notes()
        self._control = TrainerControl()
        graders = reward_functions(reward_funcs, self.args.reward_weights, self._notes)
        source = source_of(train_dataset, graders, self.args)
        passes = source.per_pass // source.batch if isinstance(source, Prompts) else None
        self._length = length_of(self.args, passes)
        self._evaluation = self._held_out(eval_dataset, graders)
        policy = policy_of(model, processing_class, peft_config, self.args, length=self._length)
        while_training = None if self.args.eval_strategy == "no" else self._evaluation
        self.run: Run = run_of(
            self.args,
            policy,
            source,
            while_training,
            length=self._length,
            control=self._control,
        )
        self._callbacks = [_built(callback) for callback in callbacks or ()]
        self._result: api.Result | None = None
        self._listener = self._listening()

    def _held_out(self, data: Any, graders: Mapping[str, Any]) -> Evaluation | None:
        if data is not None:
            return evaluation_of(data, graders, self.args, self._length)
        if self.args.eval_strategy != "no" or self.args.eval_on_start:
            raise ConfigError(
                f"eval_strategy={self.args.eval_strategy!r} needs an eval_dataset, and none was "
                "given. Pass one, or set eval_strategy='no' and eval_on_start=False."
            )
        return None

    def _listening(self) -> Callbacks:
        return Callbacks(
            args=self.args,
            length=self._length,
            notes=self._notes,
            processing_class=self._tokenizer,
            callbacks=self._callbacks,
            control=self._control,
        )

    @property
    def state(self) -> TrainerState:
        """Step, epoch and log history, as callbacks see them."""
        return self._listener.state

    @property
    def control(self) -> TrainerControl:
        """What callbacks asked for."""
        return self._listener.control

    @property
    def processing_class(self) -> Any:
        """The tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._policy.path)
        return self._tokenizer

    @property
    def model(self) -> Any:
        """The model as it is now: the instance that was given, with the trained weights."""
        if self._given is None:
            policy = self._policy
            self._given = load_model(self._newest, dtype=torch.float32, seed=policy.init_seed)
        return self._given

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Call this one too."""
        self._callbacks.append(_built(callback))

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:  # noqa: FBT001 (TRL's signature)
        """Train to the end, or until a callback asks to stop.

        Args:
            resume_from_checkpoint: Go on from the newest whole checkpoint of ``output_dir``,
                exactly; start anew if there is none. A path must name that checkpoint.

        Raises:
            CheckpointError: a run that a callback ended is asked to go on.
            Exception: whatever a callback raised, once the run has been ended and saved.
        """
        folder = Path(output_dir(self.args))
        self._control.should_training_stop = False
        if self.args.eval_on_start:
            self._listener.evaluated(self._scores(self._evaluation))
        listeners = [self._listener, *(() if self.args.disable_tqdm else (Console(),))]
        resume = _resumed(resume_from_checkpoint, folder)
        self._result = api.fit(self.run, folder, resume=resume, listeners=listeners)
        if self._given is not None:
            trained = load_model(self._newest, dtype=self._given.dtype)
            self._given.load_state_dict(trained.state_dict())
        if self._listener.failure is not None:
            raise self._listener.failure
        self._check_not_ended_before()
        metrics = dict(self._result.metrics)
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
        mean = sum(losses) / len(losses) if losses else float("nan")
        return TrainOutput(self.state.global_step, mean, metrics)

    def _check_not_ended_before(self) -> None:
        if self.state.global_step < self._length.updates and not self.control.should_training_stop:
            raise CheckpointError(
                f"the run in {self._folder} was ended by a callback after {self.state.global_step} "
                "optimiser steps, so it cannot go on. Start another one from its model, with "
                "another output_dir."
            )

    def evaluate(
        self, eval_dataset: Any = None, *, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score held-out prompts with the newest weights; metrics by TRL's names.

        Raises:
            ConfigError: there is no evaluation data set.
        """
        plan = self._evaluation
        if eval_dataset is not None:
            graders = self.run.phases[0].source.verifiers
            plan = evaluation_of(eval_dataset, graders, self.args, self._length)
        found = self._scores(plan)
        self._listener.evaluated(found)
        return {
            name.replace("eval/", f"{metric_key_prefix}_", 1): value
            for name, value in found.items()
        }

    def save_model(self, output_dir: str | None = None) -> None:
        """Write the newest model and its tokenizer; of a LoRA the adapter alone, as TRL does."""
        into = Path(output_dir or self._folder)
        if self._result is not None and self._policy.lora is not None:
            shutil.copytree(self._result.model / "adapter", into, dirs_exist_ok=True)
        else:
            self.model.save_pretrained(into)
        self.processing_class.save_pretrained(into)

    def _scores(self, plan: Evaluation | None) -> dict[str, float]:
        if plan is None:
            raise ConfigError("there is no eval_dataset; pass one to evaluate().")
        newest = replace(self._policy, path=str(self._newest))
        if self._result is not None:
            newest = replace(newest, lora=None)
        found = api.evaluate(replace(self.run, models={**self.run.models, "policy": newest}), plan)
        rewards = {f"eval/rewards/{name}/mean": v for name, v in found.rewards.items()}
        return {**found.metrics(), **rewards}

    @property
    def _policy(self) -> Trained:
        policy = self.run.models["policy"]
        if not isinstance(policy, Trained):
            raise ConfigError(f"run.models['policy'] must be Trained, got {policy!r:.80}.")
        return policy

    @property
    def _folder(self) -> Path:
        return Path(output_dir(self.args))

    @property
    def _newest(self) -> str:
        return self._policy.path if self._result is None else str(self._result.model)


def _refuse(given: Mapping[str, Any], optimizers: tuple[Any, Any]) -> None:
    for name, value in given.items():
        if value:
            raise ConfigError(f"GRPOTrainer({name}=...) is not honoured. {_NOT_TAKEN[name]}")
    if any(each is not None for each in optimizers):
        raise ConfigError(
            "GRPOTrainer(optimizers=...) is not honoured. Set learning_rate, lr_scheduler_type, "
            "weight_decay and the adam_ fields of GRPOConfig, or write a Run with an optimiser."
        )


def _built(callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback:
    return callback() if isinstance(callback, type) else callback


def _resumed(asked: bool | str | None, folder: Path) -> bool:  # noqa: FBT001 (as TRL passes it)
    newest = listed(folder / "checkpoints")[-1:]
    if isinstance(asked, str) and Path(asked).resolve() not in [p.resolve() for p in newest]:
        raise ConfigError(
            f"resume_from_checkpoint={asked!r} is not the newest checkpoint of output_dir "
            f"{str(folder)!r}, which is {str(newest[0]) if newest else 'empty'}. Set output_dir to "
            "the folder of the run to go on with, and pass True."
        )
    return bool(asked)
