"""``posttrain methods``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.methods.cards import Card
    from posttrain.methods.fields import Described


@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the methods that run here, or show the card of one."""

    takes_overrides: ClassVar[bool] = False

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")] = ""
    """A method of the catalogue, e.g. grpo."""
    against: str = ""
    """Another method: show only where the two differ."""
    all: bool = False
    """List also what is not built yet."""
    json: bool = False
    """Print JSON."""

    def run(self, overrides: Sequence[str]) -> None:  # noqa: ARG002
        """Print the list or the card."""
        if self.against and not self.name:
            raise ConfigError("--against compares with a method: posttrain methods NAME --against")
        if self.against:
            self._compare()
        elif self.name:
            self._card()
        else:
            self._list()

    def _list(self) -> None:
        from posttrain.cli import show
        from posttrain.methods.catalogue import ORDER, all_methods

        every = sorted(all_methods(), key=lambda m: ORDER.index(m.state))
        shown = [m for m in every if self.all or m.state != "not yet"]
        if self.json:
            print(json.dumps([{**asdict(m), "state": m.state} for m in shown]))
            return
        rows = [(m.name, m.state, m.title, " ".join(m.papers)) for m in shown]
        show.table(("method", "state", "", "arXiv"), rows)
        counts = Counter(m.state for m in every)
        show.say(
            f"{len(every)} methods known: {', '.join(f'{counts[s]} {s}' for s in ORDER)}. "
            "A part can be taken into any method. Card: posttrain methods NAME"
        )

    def _card(self) -> None:
        from rich.markdown import Markdown

        from posttrain.cli import show
        from posttrain.methods.cards import card, markdown

        found = card(self.name)
        console = show.terminal()
        if self.json:
            print(json.dumps({**asdict(found), "state": found.entry.state}))
        elif console.is_terminal:
            console.print(Markdown(markdown(found)))
        else:
            print(markdown(found), end="")

    def _compare(self) -> None:
        from posttrain.cli import show
        from posttrain.methods.cards import card

        ours, theirs = _settings(card(self.name)), _settings(card(self.against))
        rows = [
            (key, ours.get(key, "-"), theirs.get(key, "-"))
            for key in dict.fromkeys((*ours, *theirs))
            if ours.get(key) != theirs.get(key)
        ]
        if self.json:
            print(json.dumps([{"part": k, self.name: a, self.against: b} for k, a, b in rows]))
        elif rows:
            show.table(("", self.name, self.against), rows)
        else:
            show.say(f"{self.name} and {self.against} have the same parts.")


def _settings(found: Card) -> dict[str, str]:
    """Every part and number of a method, by its place."""
    if not found.parts:
        return dict(found.entry.parts)
    counts: Counter[str] = Counter()
    rows: dict[str, str] = {}
    for axis, part in found.parts:
        counts[axis] += 1
        place = axis if counts[axis] == 1 else f"{axis} {counts[axis]}"
        rows |= dict(_flat(place, part))
    return rows


def _flat(place: str, part: Described) -> Iterator[tuple[str, str]]:
    yield place, part.part
    for field in part.fields:
        yield f"{place}.{field.name}", field.value
    for name, inner in part.inner:
        yield from _flat(f"{place}.{name}", inner)
