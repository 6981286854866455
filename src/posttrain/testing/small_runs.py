"""Complete runs in seconds: a byte tokenizer, a model of a few thousand parameters, one folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.api import Result, fit
from posttrain.data.sources import Rows
from posttrain.data.store import read_groups
from posttrain.methods.dr_grpo import dr_grpo
from posttrain.monitor.metrics_file import read_metrics
from posttrain.rewards.functions import SampleFunction
from posttrain.testing.cases_measures import tiny_model
from posttrain.testing.toy import byte_tokenizer
from posttrain.types.ask import Decode
from posttrain.types.engine import Engine
from posttrain.types.episode import Group
from posttrain.types.events import Event, Progress, StepFinished, Warned
from posttrain.types.method import Method, Source
from posttrain.types.models import AdamW, Trained
from posttrain.types.run import Checkpoints, Local, Phase, Run, Steps, Transformers

MAX_TOKENS = 4


class Killed(BaseException):
    """A run is ended in the middle, as a kill would end it."""


def odd_length(answer: str, gold: object) -> float:
    """1 for an answer of an odd number of characters: some of a group earn it, some do not."""
    del gold
    return float(len(answer) % 2)


@dataclass
class Heard:
    """Keeps every event; kills the run at a step, or in the update of the step after it."""

    kill_after: int = -1
    in_update: bool = False
    events: list[Event] = field(default_factory=list)
    _armed: bool = False

    def on(self, event: Event) -> None:
        """Take one event."""
        self.events.append(event)
        if isinstance(event, StepFinished) and event.step == self.kill_after:
            if not self.in_update:
                raise Killed
            self._armed = True
        if self._armed and isinstance(event, Progress) and event.stage == "update":
            raise Killed

    def close(self) -> None:
        """Nothing is held."""

    @property
    def warnings(self) -> list[str]:
        """Texts of all warnings."""
        return [e.text for e in self.events if isinstance(e, Warned)]

    @property
    def steps(self) -> list[int]:
        """Steps that finished, in order."""
        return [e.step for e in self.events if isinstance(e, StepFinished)]


@dataclass(frozen=True, slots=True)
class Played:
    """A run that ended by itself, was killed, or raised."""

    folder: Path
    heard: Heard
    result: Result | None
    error: Exception | None

    @property
    def said(self) -> str:
        """Warnings and the error, as one text."""
        return "\n".join((*self.heard.warnings, str(self.error or "")))

    def groups(self) -> dict[int, list[Group]]:
        """Stored groups by step."""
        files = sorted((self.folder / "episodes").glob("step_*.parquet"))
        return {int(f.stem.removeprefix("step_")): read_groups(f) for f in files}

    def metrics(self) -> dict[int, dict[str, float]]:
        """Logged metrics by step."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        return {int(row["step"]): row for row in rows if "loss" in row or "num_tokens" in row}


@dataclass(frozen=True, slots=True)
class Workplace:
    """A folder with a model in it."""

    root: Path
    model: str

    def folder(self, name: str) -> Path:
        """A folder for one run."""
        return self.root / name


@contextmanager
def workplace(*, dropout: float = 0.0) -> Iterator[Workplace]:
    """A place for runs, deleted at the end."""
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "model"
        model = tiny_model(dropout=dropout, vocabulary=len(tokenizer))
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        yield Workplace(Path(root), str(path))


def items(number: int, *, gold: Any = None, text: str = "item", **fields: Any) -> Rows:
    """Rows with ids "0", "1", ...; answers of odd length are rewarded unless ``fields`` differ."""
    rows = tuple({"prompt": f"{text} {i}", "id": str(i), "gold": gold} for i in range(number))
    rewards = {"odd_length": SampleFunction(odd_length)}
    return Rows(rows, **{"chat": True, "verifiers": rewards, **fields})


def small_run(
    place: Workplace, source: Source, *, steps: int, groups: int = 2, method: Method | None = None,
    **fields: Any,
) -> Run:  # fmt: skip
    """A run on a source; ``fields`` replace those of the run."""
    method = method or dr_grpo(max_tokens=MAX_TOKENS, group_size=2)
    defaults: dict[str, Any] = {
        "models": {"policy": trained(place)},
        "phases": (Phase(method=method, source=source, until=Steps(steps)),),
        "engine": Transformers(compute="float32"),
        "decode": Decode(max_tokens=MAX_TOKENS),
        "trainer": Local(groups_per_step=groups, microbatch_tokens=512, device="cpu", exact=True),
        "checkpoints": Checkpoints(every=1, keep_last=100),
        "seed": 3,
    }
    return Run(**{**defaults, **fields})


def trained(place: Workplace, **fields: Any) -> Trained:
    """The workplace's model, trained in float32."""
    defaults: dict[str, Any] = {"optimiser": AdamW(lr=1e-3), "compute": "float32"}
    return Trained(path=place.model, **{**defaults, **fields})


def play(
    place: Workplace, run: Run, name: str, *, heard: Heard | None = None, resume: bool = False,
    engine: Engine | None = None,
) -> Played:  # fmt: skip
    """Run, and report how it ended."""
    heard, folder = heard or Heard(), place.folder(name)
    try:
        result = fit(run, folder, resume=resume, engine=engine, listeners=[heard])
    except Killed:
        return Played(folder, heard, None, None)
    except Exception as error:  # noqa: BLE001  a case looks at what the library raised
        return Played(folder, heard, None, error)
    return Played(folder, heard, result, None)


def task_ids(groups: Sequence[Group]) -> list[str]:
    """Ids of the tasks of some groups."""
    return [g.task.id for g in groups]


def last_metrics(played: Played) -> dict[str, float]:
    """Metrics of the last step logged."""
    found = played.metrics()
    return found[max(found)] if found else {}
