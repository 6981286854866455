"""Robustness cases on configuration, trackers, data and reward functions."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from typing_extensions import override

from posttrain.compat.trl.config import GRPOConfig
from posttrain.data.lengths import PromptLimit
from posttrain.data.sources import Rows
from posttrain.errors import ConfigError, DataError, PosttrainError
from posttrain.methods.grpo import grpo
from posttrain.parts.ratios import NoRatio
from posttrain.parts.terms import PolicyGradient
from posttrain.parts.trust import ClippedRatio
from posttrain.recipes.override import override as set_options
from posttrain.rewards.functions import RewardFunction, SampleFunction, reward_value
from posttrain.testing.case_file import AtMost, Facts, Given, NotYetError, Text
from posttrain.testing.cases_measures import tiny_model
from posttrain.testing.measure import measured
from posttrain.testing.small_runs import items, last_metrics, play, small_run, workplace
from posttrain.trainers.learner import LocalLearner
from posttrain.trainers.stages import parts_of
from posttrain.types.episode import Episode, Group
from posttrain.types.message import JSON, Task
from posttrain.types.models import Trained
from posttrain.types.run import Phase, Run, SinkSpec, SinkWriter, Steps

UNUSED = "an_option_the_chosen_algorithm_does_not_use"
"""Stands for any option that the rest of a configuration makes meaningless."""


@dataclass(frozen=True, slots=True)
class FailingSink(SinkSpec):
    """A tracker that fails as a case says."""

    at_step: int = 0
    """Step whose log raises; 0 never."""
    at_start: bool = False
    hangs: bool = False
    at_end: bool = False

    @override
    def check(self) -> None:
        """Nothing is needed."""

    @override
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """A writer, unless it fails at the start."""
        if self.at_start:
            raise OSError("the tracker cannot be reached")
        return _FailingWriter(self)


class _FailingWriter:
    def __init__(self, spec: FailingSink) -> None:
        self._spec = spec

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        del metrics
        if self._spec.hangs:
            threading.Event().wait(60.0)
        if self._spec.at_step and step >= self._spec.at_step:
            raise OSError("the tracker dropped the connection")

    def close(self) -> None:
        if self._spec.at_end:
            raise OSError("the tracker cannot finish")


def tracker(given: Given, _expected: Given) -> Facts:
    """A run whose tracker fails."""
    text, steps = str(given["tracker"]).lower(), int(given.get("steps", 3))
    found = re.search(r"step (\d+)", text)
    sink = FailingSink(
        at_step=int(found.group(1)) if found and "raise" in text else int("log" in text),
        at_start="init" in text or "start" in text or "connect" in text,
        hangs="hang" in text or "block" in text or "sleep" in text,
        at_end="close" in text or "finish" in text,
    )
    if sink == FailingSink():
        raise NotYetError(f"unknown tracker {text!r}")
    with workplace() as place:
        run = small_run(place, items(4), steps=steps, sinks=(sink,))
        played = play(place, run, "run")
        logged = sorted(played.metrics())
    if logged != list(range(1, steps + 1)):
        raise DataError(f"metrics.jsonl holds the steps {logged}")
    told = [w for w in played.heard.warnings if "FailingSink" in w]
    return {
        "steps_completed": 0 if played.result is None else played.result.steps,
        "warned": bool(told),
        "warns": bool(told),
        "raises": played.error is not None,
        "message_mentions": Text("\n".join(told)),
    }


def _raised(call: Any) -> tuple[bool, str]:
    """Whether a call raises or warns, and what it says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except PosttrainError as error:
            return True, str(error)
    return bool(caught), "\n".join(str(w.message) for w in caught)


def config(given: Given, expected: Given) -> Facts:
    """Options as a user wrote them: flat ones as a script sets them, nested ones by their path."""
    written = dict(given["config"])
    if UNUSED in written:
        raised, text = _raised(lambda: PolicyGradient(ratio=NoRatio(), trust=ClippedRatio()))
    elif any(isinstance(v, dict) or "." in k for k, v in written.items()):
        words = [w for path, value in _flat(written) for w in (f"--{path}", str(value))]
        raised, text = _raised(lambda: set_options(_some_run(), words))
    else:
        raised, text = _raised(lambda: GRPOConfig(**written))
    own_path = raised and "That is --" in text
    return {
        "raises": raised,
        "raises_or_warns": raised,
        "warns": raised,
        "message_mentions": Text(text),
        "detected": raised,
        "valid_path": lambda: expected["valid_path"] if own_path else text,
    }


def _flat(options: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def _some_run() -> Run:
    phase = Phase(method=grpo(group_size=2, beta=0.0), source=items(2), until=Steps(1))
    return Run(models={"policy": Trained(path="-")}, phases=(phase,))


def group_of_one(given: Given, _expected: Given) -> Facts:
    """A group size under which the baseline is each reward itself."""
    size = int(given["group_size"])
    if "mean" not in str(given["baseline"]):
        raise NotYetError(f"unknown baseline {given['baseline']!r}")
    raised, text = _raised(lambda: grpo(group_size=size))
    return {
        "raises": raised,
        "raises_or_warns": raised,
        "detected": raised,
        "message_mentions": Text(text),
    }


@contextmanager
def _own_cache() -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}),
    ):
        yield


def length_filter(given: Given, _expected: Given) -> Facts:
    """Many prompts, filtered by length; then the same again."""
    if "length" not in str(given["filter"]):
        raise NotYetError(f"unknown filter {given['filter']!r}")
    number, characters = int(given["prompts"]), int(given.get("characters_each", 100))
    rows = Rows(tuple({"prompt": f"{i:0{characters}d}"} for i in range(number)), shuffle=None)

    def start() -> int:
        return PromptLimit(source=rows, max_tokens=characters + 8, model="tiny").size()

    with _own_cache():
        PromptLimit(source=Rows(({"prompt": "1"},)), max_tokens=8, model="tiny").size()
        first = measured(start)
        with mock.patch("posttrain.data.lengths.prompt_lengths", side_effect=AssertionError):
            second = measured(start)  # counting again would raise
    return {
        "processed": first.value,
        "max_seconds": AtMost(first.seconds),
        "max_wall_s": AtMost(first.seconds),
        "cached_or_lazy": second.value == first.value,
        "max_extra_mb": AtMost(first.extra_mb),
    }


def uneven_split(given: Given, _expected: Given) -> Facts:
    """Work cut into parts that differ by at most one."""
    number, workers = int(given["samples"]), int(given["workers"])
    parts = [list(part) for part in parts_of(number, workers)]
    sizes = [len(p) for p in parts] + [0] * (workers - len(parts))
    gathered = [i for part in parts for i in part]
    return {
        "total": len(gathered),
        "processed": len(gathered),
        "sizes_differ_by_at_most": AtMost(max(sizes) - min(sizes)),
        "order_preserved": gathered == list(range(number)),
    }


def nothing_trainable(given: Given, _expected: Given) -> Facts:
    """A model all of whose parameters are frozen, or only some of them."""
    model = tiny_model()
    for place, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(place < int(given["trainable_parameters"]))
    raised, text = _raised(
        lambda: LocalLearner().add("policy", Trained(path="-", compute="float32"), model)
    )
    return {"raises": raised, "message_mentions": Text(text)}


NAMED_VALUES: Mapping[str, object] = {"True": True, "False": False, "None": None,
                                      "NaN": float("nan")}  # fmt: skip


def _named_value(text: str) -> object:
    """The Python value a case names."""
    if text in NAMED_VALUES:
        return NAMED_VALUES[text]
    found = re.fullmatch(r"(numpy|torch|python)?\s*(\w+)\s+(-?[\d.]+)", text.strip())
    kind = found.group(2) if found else ""
    if found is None or (not hasattr(np, kind) and kind not in ("int", "float", "tensor")):
        raise NotYetError(f"unknown Python value {text!r}")
    number = float(found.group(3))
    if found.group(1) == "torch" or kind == "tensor":
        import torch

        return torch.tensor(number)
    return {"int": int, "float": float}.get(kind, getattr(np, kind, float))(number)


def returned(completions: list[str], values: list[Any]) -> list[Any]:
    """A reward function that gives what the task says, for however many completions."""
    del completions
    return list(values[0])


def rewards_returned(given: Given, _expected: Given) -> Facts:
    """What a reward function gives: too few values, or values of several types."""
    asked = given["rewards_returned"]
    if isinstance(asked, list):
        parsed = [reward_value(_named_value(str(v)), label="case")[0] for v in asked]
        return {"parsed": ["unscored" if v is None else v for v in parsed], "raises": False}
    number = given["completions"]
    number = len(number) if isinstance(number, list) else int(number)
    task = Task(id="case", prompt="-", columns={"values": list[JSON]([1.0] * int(asked))})
    episodes = tuple(Episode(episode_id=f"e{i}", segments=()) for i in range(number))
    group = Group(key=(0, 0, 0), task=task, episodes=episodes)
    try:
        rows = RewardFunction(returned).grade(task, group, range(number))
    except (DataError, ConfigError) as error:
        return {"raises": True, "message_mentions": Text(str(error))}
    return {"raises": False, "parsed": [r.value for r in rows]}  # pyright: ignore[reportGeneralTypeIssues]


def raising(answer: str, gold: object) -> float:
    """A reward function with a fault."""
    raise ValueError(f"cannot read {answer!r} beside {gold!r}")


def not_a_number(answer: str, gold: object) -> float:
    """A reward function that divides nothing by nothing."""
    del answer, gold
    return float("nan")


def text_reward(answer: str, gold: object) -> Any:
    """A reward function that gives a text."""
    del gold
    return f"good: {answer}"


def no_reward(answer: str, gold: object) -> None:
    """A reward function that does not apply."""
    del answer, gold


BEHAVIOURS = {"rais": raising, "exception": raising, "nan": not_a_number, "none": no_reward,
              "string": text_reward, "text": text_reward}  # fmt: skip


def reward_function(given: Given, _expected: Given) -> Facts:
    """A step with a reward function that misbehaves."""
    text = str(given["reward_function"]).lower()
    chosen = next((f for word, f in BEHAVIOURS.items() if word in text), None)
    if chosen is None:
        raise NotYetError(f"unknown reward_function {text!r}")
    with workplace() as place:
        source = items(4, verifiers={"case": SampleFunction(chosen)})
        played = play(place, small_run(place, source, steps=1), "run")
        metrics = {} if played.error is not None else last_metrics(played)
    unscored = int(metrics.get("episodes/unscored", 0))
    return {
        "step_completed": played.heard.steps == [1],
        "raises": played.error is not None,
        "raises_or_warns": played.error is not None or bool(played.heard.warnings),
        "warned": bool(played.heard.warnings),
        "warns": bool(played.heard.warnings),
        "counted": unscored > 0,
        "failed_count_logged": unscored,
        "message_mentions": Text(played.said),
    }
