"""What verbs print: tables that fit a terminal and are plain in a pipe, scores, episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posttrain.types.events import Emit, Event, Progress, Warned

if TYPE_CHECKING:
    from posttrain.objectives.estimators import Interval
    from posttrain.trainers.evaluate import Scores
    from posttrain.types.episode import Group

PIPE_WIDTH = 200
"""Columns of a table that goes into a pipe."""


def terminal() -> Console:
    """Standard output, without markup or automatic colours."""
    console = Console(highlight=False, markup=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=PIPE_WIDTH)
    return console


def say(text: str = "") -> None:
    """Print a line, as it is."""
    terminal().print(text, soft_wrap=True)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    title: str = "",
) -> None:
    """Print rows under headings; the columns of ``numbers`` stand to the right."""
    console = terminal()
    box = SIMPLE_HEAD if console.is_terminal else None
    made = Table(box=box, title=title or None, title_justify="left", pad_edge=False)
    for i, heading in enumerate(headings):
        right = i in numbers
        made.add_column(
            heading, justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    console.print(made)


def interval(found: Interval) -> str:
    """``0.512 [0.448, 0.571]``."""
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"


def scores(found: Scores, *, of: str) -> None:
    """Print what a model scored."""
    rows: list[tuple[str, str]] = [("accuracy", interval(found.accuracy))]
    rows += [(f"pass@{k}", interval(v)) for k, v in found.pass_at.items() if k > 1]
    rows += [(f"maj@{k}", interval(v)) for k, v in found.majority_at.items()]
    rows += [("reward", f"{found.reward:.3f}")]
    rows += [(f"reward {name}", f"{value:.3f}") for name, value in found.rewards.items()]
    rows += [
        ("tokens an episode", f"{found.mean_length:.1f}"),
        ("cut by a limit", f"{found.truncated:.1%}"),
        ("not scorable", str(found.unscored)),
    ]
    table(("", of), rows)
    say(
        f"{found.num_problems} problems, {found.num_samples} samples each; "
        "in brackets: 95% intervals over problems."
    )


def scores_json(found: Scores) -> dict[str, object]:
    """The same as plain data; an interval is [estimate, low, high]."""
    return {
        "accuracy": list(found.accuracy),
        "pass_at": {str(k): list(v) for k, v in found.pass_at.items()},
        "majority_at": {str(k): list(v) for k, v in found.majority_at.items()},
        "reward": found.reward,
        "rewards": dict(found.rewards),
        "mean_length": found.mean_length,
        "truncated": found.truncated,
        "unscored": found.unscored,
        "num_problems": found.num_problems,
        "num_samples": found.num_samples,
    }


def metrics(found: Mapping[str, float], *, title: str = "") -> None:
    """Print metrics by name."""
    table(
        ("metric", "value"),
        [(name, f"{v:.6g}") for name, v in sorted(found.items())],
        numbers=(1,),
        title=title,
    )


def episodes(groups: Sequence[Group], *, most: int) -> None:
    """Print the first episode of the first groups: prompt, answer, rewards."""
    for group in groups[:most]:
        prompt = group.task.prompt
        asked = prompt if isinstance(prompt, str) else "\n".join(m.content for m in prompt)
        say(f"--- {group.task.id}")
        say(asked)
        for e, episode in enumerate(group.episodes[:1]):
            total = group.total(e)
            say(f">>> {group.episode_text(e)}")
            say(f"reward {'not scorable' if total is None else f'{total:g}'}, {episode.stop}")
            for row in group.rewards_for(e):
                value = row.verdict if row.value is None else f"{row.value:g}"
                say(f"    {row.name}: {value} {row.note}".rstrip())


@contextmanager
def following() -> Iterator[Emit]:
    """Takes events while something runs: a status line on a terminal, warnings anywhere."""
    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("loading the model") as status:

        def emit(event: Event, /) -> None:
            if isinstance(event, Progress):
                tokens = f", {event.sampled_tokens:,} tokens" if event.sampled_tokens else ""
                status.update(f"{event.stage} {event.done}/{event.total}{tokens}")
            elif isinstance(event, Warned):
                console.print(f"warning: {event.text}", soft_wrap=True)

        yield emit
