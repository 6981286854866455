"""``posttrain map``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

if TYPE_CHECKING:
    from posttrain.methods.map import Paper


@dataclass(frozen=True, kw_only=True)
class Map:
    """Search the papers of the field. Without words: how many there are, by direction and topic."""

    takes_overrides: ClassVar[bool] = False

    words: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="WORDS")] = ()
    """Every word must occur in title, name, arXiv id, direction, topic or preset."""
    direction: str = ""
    """Only this direction, e.g. "Reasoning RL"."""
    route: bool = False
    """The papers of the direction in the order to read them."""
    built: bool = False
    """Only papers that run here: a preset, or a part."""
    limit: int = 20
    """Papers to print; 0 for all."""
    json: bool = False
    """Print JSON."""

    def run(self, overrides: Sequence[str]) -> None:  # noqa: ARG002
        """Search and print."""
        from posttrain.cli import show

        found = self._found()
        if self.json:
            print(json.dumps([_plain(paper) for paper in found]))
        elif not self.words and not self.direction and not self.built:
            counts = Counter((p.direction, p.topic) for p in found)
            rows = [(d, t, n) for (d, t), n in counts.items()]
            show.table(("direction", "topic", "papers"), rows, numbers=(2,))
            show.say(
                f"{len(found)} papers. Search: posttrain map WORDS. "
                'Where to begin: posttrain map --direction "Reasoning RL" --route'
            )
        else:
            shown = found[: self.limit] if self.limit else found
            rows = [(p.month, p.arxiv, _title(p), _runs(p)) for p in shown]
            show.table(("month", "arXiv", "paper", "here"), rows)
            if len(shown) < len(found):
                show.say(f"{len(shown)} of {len(found)} papers; --limit 0 shows all.")
            elif not found:
                show.say("no paper has all these words.")

    def _found(self) -> Sequence[Paper]:
        from posttrain.errors import ConfigError
        from posttrain.methods import map as papers

        if self.route:
            if not self.direction:
                raise ConfigError(f"--route needs --direction, one of {', '.join(papers.ROUTES)}.")
            return papers.route(self.direction)
        found = papers.search(" ".join(self.words))
        if self.direction:
            inside = {p for ps in papers.topics(self.direction).values() for p in ps}
            found = tuple(p for p in found if p in inside)
        return tuple(p for p in found if p.state != "not yet") if self.built else found


def _title(paper: Paper) -> str:
    named = not paper.short or paper.title.lower().startswith(paper.short.lower())
    return paper.title if named else f"{paper.short}: {paper.title}"


def _runs(paper: Paper) -> str:
    if paper.preset:
        return paper.preset
    return paper.methods[0].name + " (part)" if paper.state == "part" else "not yet"


def _plain(paper: Paper) -> dict[str, object]:
    return {**asdict(paper), "state": paper.state, "methods": [m.name for m in paper.methods]}
