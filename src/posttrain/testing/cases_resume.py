"""Robustness cases on resuming: the same run stopped, gone on with, and never stopped."""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from posttrain.testing.case_file import AtMost, Facts, Given, NotYetError
from posttrain.testing.small_runs import Heard, Played, items, play, small_run, task_ids, workplace
from posttrain.testing.small_runs import trained as trained_model
from posttrain.trainers import checkpoint
from posttrain.types.models import AdamW, Constant, Cosine, LearningRate, Linear
from posttrain.types.run import Checkpoints, Lag, Run

EQUALITY = ("order", "equal", "identical", "same", "uninterrupted", "unchanged", "permutation")
"""Words of properties that say: the resumed run is the run that was never stopped."""


@dataclass(frozen=True, slots=True)
class Twice:
    """A run without a stop, and the same run stopped and gone on with."""

    whole: Played
    stopped: Played
    resumed: Played

    def trained(self, played: Played) -> list[str]:
        """Ids of the prompts trained, step by step."""
        return [i for _, groups in sorted(played.groups().items()) for i in task_ids(groups)]


def resume(given: Given, expected: Given) -> Facts:
    """A run over items, stopped and resumed."""
    batch = int(given.get("batch", 2))
    number = int(given.get("items", 3 * batch))
    stop, in_update = _stop(given, batch)
    total = int(
        given.get("total", given.get("steps", max(stop + 2, math.ceil(2 * number / batch))))
    )
    every = int(given.get("checkpoint_at", 1))
    if stop >= total:
        raise NotYetError(f"a stop after step {stop} of {total}")
    with workplace(dropout=float(given.get("dropout", 0.0))) as place:
        source = items(number, shuffle=int(given.get("shuffle_seed", 0)))
        optimiser = AdamW(lr=1e-3, schedule=_schedule(given, total))
        run = small_run(
            place,
            source,
            steps=total,
            groups=batch,
            models={"policy": trained_model(place, optimiser=optimiser)},
            checkpoints=Checkpoints(every=every, keep_last=100),
        )
        whole = play(place, run, "whole")
        heard = Heard(kill_after=stop, in_update=in_update)
        stopped = play(place, run, "parts", heard=heard)
        resumed = play(place, run, "parts", resume=True)
        for played in (whole, stopped, resumed):
            if played.error is not None:
                raise played.error
        twice = Twice(whole, stopped, resumed)
        return _compared(twice, expected, stop, number)


def _stop(given: Given, batch: int) -> tuple[int, bool]:
    """Steps done when the run is ended, and whether it ends in the middle of the next."""
    for name in ("stop_after_steps", "stop_at"):
        if name in given:
            return int(given[name]), False
    if "stop_at_item" in given:
        steps, rest = divmod(int(given["stop_at_item"]), batch)
        return steps, rest > 0
    raise NotYetError("the input does not say where the run is stopped")


def _schedule(given: Given, total: int) -> LearningRate:
    text = str(given.get("schedule", "constant"))
    warm = re.search(r"(\d+)\D*warm|warm\D*(\d+)", text)
    warmup = int(next(g for g in warm.groups() if g)) if warm else int("warm" in text)
    for word, kind in (("cosine", Cosine), ("linear", Linear)):
        if word in text:
            return kind(updates=total, warmup=min(warmup, total - 1))
    if "constant" not in text and "warm" not in text:
        raise NotYetError(f"unknown schedule {text!r}")
    return Constant(warmup=warmup)


def _compared(twice: Twice, expected: Given, stop: int, number: int) -> Facts:
    whole, parts = twice.trained(twice.whole), twice.trained(twice.resumed)
    losses = [p.metrics() for p in (twice.whole, twice.resumed)]
    steps = [s for s in losses[0] if s > stop]
    gaps = [abs(losses[0][s]["loss"] - losses[1].get(s, {}).get("loss", math.inf)) for s in steps]
    surplus, missing = Counter(parts) - Counter(whole), Counter(whole) - Counter(parts)
    begun = twice.resumed.heard.steps
    same = whole == parts and max(gaps, default=0.0) <= 1e-6 and _same_weights(twice)
    facts: dict[str, Any] = {
        "property": lambda: _holds(str(expected["property"]), same=same),
        "skipped": sum(missing.values()),
        "trained_twice": sum(surplus.values()),
        "seen_twice": sum(surplus.values()),
        "never_seen": len({str(i) for i in range(number)} & set(whole) - set(parts)),
        "max_abs_loss_difference": AtMost(max(gaps, default=0.0)),
        "first_step_after_resume": begun[0] if begun else None,
        "steps_completed": max(losses[1], default=0),
        "same_weights": _same_weights(twice),
    }
    for name in expected:
        asked = re.fullmatch(r"lr_at_step_(\d+)_equals_uninterrupted", name)
        if asked:
            rates = [rows[int(asked.group(1))]["learning_rate"] for rows in losses]
            facts[name] = math.isclose(rates[0], rates[1], rel_tol=1e-9)
    return facts


def _holds(text: str, *, same: bool) -> str:
    if not any(word in text.lower() for word in EQUALITY):
        raise NotYetError(f"unknown property: {text!r}")
    return text if same else "the resumed run differs from the one that was not stopped"


def _same_weights(twice: Twice) -> bool:
    """Whether both runs ended with the same bits."""
    found = []
    for played in (twice.whole, twice.resumed):
        if played.result is None:
            return False
        file = played.result.model / "state" / "learner.pt"
        found.append(torch.load(file, weights_only=True))
    return _equal(found[0], found[1])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def newest(given: Given, _expected: Given) -> Facts:
    """Which of several checkpoints a run goes on from."""
    listed = given["checkpoints"]
    states = listed if isinstance(listed, dict) else dict.fromkeys(listed, "complete")
    warnings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, state in states.items():
            _lay(Path(folder), str(name), str(state))
        found = checkpoint.latest(Path(folder), warn=warnings.append)
        step = None if found is None else int(found.name.removeprefix("step_"))
        named = [n for n, s in states.items() if s != "complete" and any(n in w for w in warnings)]
    return {
        "resumes_from": step,
        "warns": bool(named),
        "warned": bool(named),
        "raises": False,
    }


def _lay(folder: Path, name: str, state: str) -> None:
    """A checkpoint as a run writes it, then damaged as the case says, under the case's name."""
    number = re.fullmatch(r"\D*(\d+)", name)
    if number is None:
        raise NotYetError(f"a checkpoint named {name!r}")
    written = checkpoint.write(
        folder / "made",
        position=checkpoint.Position(step=int(number.group(1))),
        state=checkpoint.empty_state(),
        learner={"weights": torch.arange(5.0)},
        pending=[],
        save_model=_no_model,
    )
    final = folder / f"step_{int(number.group(1))}"
    written.rename(final)
    if state == "complete":
        return
    if state in ("empty", "missing files", "empty folder"):
        (final / "state" / "learner.pt").unlink()
    elif state in ("partly written", "unfinished", "truncated", "incomplete", "corrupt"):
        file = final / "state" / "learner.pt"
        file.write_bytes(file.read_bytes()[:20])
    else:
        raise NotYetError(f"unknown state of a checkpoint: {state!r}")


def _no_model(folder: Path) -> None:
    (folder / "config.json").write_text("{}", encoding="utf-8")


def in_flight(given: Given, _expected: Given) -> Facts:
    """Prompts handed out before they are trained, across a stop."""
    yielded, done = int(given["yielded"]), int(given["trained"])
    waiting = int(given.get("in_flight", yielded - done))
    batch = math.gcd(done, waiting)
    lag, stop = waiting // batch, done // batch
    if yielded != done + waiting or stop < 1:
        raise NotYetError(f"{yielded} handed out, {done} trained and {waiting} in flight")
    with workplace() as place:
        source = items(2 * (yielded + batch), shuffle=5)
        run = small_run(place, source, steps=stop + lag + 1, groups=batch, schedule=Lag(lag))
        whole = play(place, run, "whole")
        stopped = play(place, run, "parts", heard=Heard(kill_after=stop))
        resumed = play(place, run, "parts", resume=True)
        for played in (whole, stopped, resumed):
            if played.error is not None:
                raise played.error
        twice = Twice(whole, stopped, resumed)
        one, two = twice.trained(whole), twice.trained(resumed)
    surplus, missing = Counter(two) - Counter(one), Counter(one) - Counter(two)
    return {
        "skipped": sum(missing.values()),
        "trained_twice": sum(surplus.values()),
        "seen_twice": sum(surplus.values()),
        "never_seen": len(set(one) - set(two)),
    }


def staleness(given: Given, _expected: Given) -> Facts:
    """Samples begun between a resume and the next update, under a bounded lag."""
    batch, lag = int(given.get("batch", 2)), int(given["max_lag"])
    stop = int(given["version_at_resume"])
    with workplace() as place:
        source = items(batch * (stop + lag + 3), shuffle=None)
        run = small_run(place, source, steps=stop + lag + 2, groups=batch, schedule=Lag(lag))
        if stop:
            play(place, run, "parts", heard=Heard(kill_after=stop))
        counted = _begun_before_update(place, run, resume=stop > 0)
    return {
        "max_new_samples_before_next_update": AtMost(counted),
        "version_at_resume": stop,
    }


def _begun_before_update(place: Any, run: Run, *, resume: bool) -> int:
    """Prompts whose sampling begins before the first update after the start."""
    stage = _Counting()
    played = play(place, run, "parts", heard=stage, resume=resume)
    if played.error is not None:
        raise played.error
    return stage.rollouts * run.trainer.groups_per_step


@dataclass
class _Counting(Heard):
    """Counts rollouts begun before the first update."""

    rollouts: int = 0
    updated: bool = False

    @override
    def on(self, event: Any) -> None:
        """Take one event."""
        stage, done = getattr(event, "stage", ""), getattr(event, "done", -1)
        if stage == "update":
            self.updated = True
        if (
            stage == "rollout"
            and done == 0
            and getattr(event, "total", 0) == 1
            and not self.updated
        ):
            self.rollouts += 1
        super().on(event)
