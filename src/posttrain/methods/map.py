"""The map: papers on reinforcement learning of language models, by direction and topic.

``papers.jsonl`` holds title, short name, month, arXiv id, direction and topic of each. These facts
come from the public reading list yingyingxia666/awesome-agentic, commit 853a024, which is released
under CC0 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from posttrain.errors import ConfigError, nearest
from posttrain.methods.catalogue import Entry, State, by_paper

ROUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Reasoning RL": (
            "2411.15124",  # the whole of post-training, with verifiable rewards
            "2402.03300",  # GRPO
            "2501.12948",  # RL from a base model
            "2501.12599",  # mirror descent, length, partial rollouts
            "2503.18892",  # what it takes on open base models
            "2503.20783",  # the biases of GRPO
            "2503.14476",  # clipping, dead groups, token means
            "2504.05118",  # with a learned value
            "2305.20050",  # step labels
            "2410.01679",  # Monte-Carlo step values
            "2504.16084",  # without labels
        ),
        "Agentic RL": (
            "2503.09516",  # search inside the answer
            "2503.23383",  # code inside the answer
            "2504.13958",  # rewards for calls
            "2502.18449",  # patches
            "2504.20073",  # many turns, and how they collapse
            "2505.10978",  # groups of steps
            "2503.15478",  # credit by turn
            "2411.02337",  # a curriculum of the agent's own
            "2507.02259",  # memory as an action
            "2501.12326",  # screens
        ),
        "OPD": (
            "2410.18252",  # training on samples of older weights
            "2503.14286",  # tapered off-policy REINFORCE
            "2506.13585",  # clipped weights instead of clipped tokens
            "2507.18071",  # ratios of whole answers
            "2505.24298",  # fully asynchronous
            "2506.09501",  # why two engines differ
            "2505.22617",  # how entropy falls
            "2306.08543",  # distillation by policy gradient
            "2306.13649",  # distillation on the student's own samples
        ),
        "Multi-Agent": (
            "2305.14325",  # debate
            "2311.17371",  # when debate helps
            "2410.06101",  # two copies that teach each other
            "2502.18439",  # trained debate
            "2504.16129",  # a chain of seats
            "2404.10642",  # an adversarial game
            "2506.24119",  # baselines by role
            "2505.03335",  # tasks the model writes itself
            "2504.15257",  # a model that writes workflows
        ),
    }
)
"""For newcomers: papers of each direction in the order to read them, foundations first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper's place on the map."""

    title: str
    short: str
    """The method's own abbreviation; empty if it has none."""
    month: str
    """Year and month, ``2025-03``."""
    arxiv: str
    """Empty for what is not on arXiv."""
    direction: str
    topic: str

    @property
    def methods(self) -> tuple[Entry, ...]:
        """Methods of the catalogue that come from this paper, built ones first."""
        return by_paper(self.arxiv) if self.arxiv else ()

    @property
    def preset(self) -> str:
        """Name of the preset that runs it; empty if there is none."""
        return next((m.name for m in self.methods if m.state == "built"), "")

    @property
    def state(self) -> State:
        """``built`` if a preset runs it, ``part`` if a part of it is here."""
        return self.methods[0].state if self.methods else "not yet"


@cache
def papers() -> tuple[Paper, ...]:
    """Every paper, in the order of the list."""
    text = files("posttrain.methods").joinpath("papers.jsonl").read_text(encoding="utf-8")
    rows = (json.loads(line) for line in text.splitlines())
    return tuple(
        Paper(**{**row, "short": row["short"] or "", "arxiv": row["arxiv"] or ""}) for row in rows
    )


def search(words: str) -> tuple[Paper, ...]:
    """Papers in which every word occurs, those that have it in the short name or title first.

    Title, short name, arXiv id, direction, topic and preset are searched, in any case. Without a
    word, all papers.
    """
    wanted = words.lower().split()
    found = [paper for paper in papers() if _holds(paper, wanted)]
    return tuple(sorted(found, key=lambda paper: _rank(paper, wanted)))


def topics(direction: str) -> Mapping[str, tuple[Paper, ...]]:
    """Papers of a direction by topic, newest first within each.

    Raises:
        ConfigError: there is no such direction.
    """
    inside = [paper for paper in papers() if paper.direction == _direction(direction)]
    newest = sorted(inside, key=lambda paper: paper.month, reverse=True)
    names = dict.fromkeys(paper.topic for paper in inside)
    return {name: tuple(p for p in newest if p.topic == name) for name in names}


def route(direction: str) -> tuple[Paper, ...]:
    """The reading route of a direction.

    Raises:
        ConfigError: there is no such direction.
    """
    known = {paper.arxiv: paper for paper in papers()}
    return tuple(known[arxiv] for arxiv in ROUTES[_direction(direction)])


def _direction(name: str) -> str:
    for known in ROUTES:
        if known.lower() == name.lower():
            return known
    raise ConfigError(
        f"the map has the directions {', '.join(ROUTES)}; got {name!r}.{nearest(name, ROUTES)}"
    )


def _holds(paper: Paper, words: Sequence[str]) -> bool:
    text = " ".join(
        (paper.title, paper.short, paper.arxiv, paper.direction, paper.topic, paper.preset)
    ).lower()
    return all(word in text for word in words)


def _rank(paper: Paper, words: Sequence[str]) -> tuple[bool, bool, str]:
    title, short = paper.title.lower(), paper.short.lower()
    return (
        short != " ".join(words),
        not all(word in title or word in short for word in words),
        _reversed(paper.month),
    )


def _reversed(month: str) -> str:
    """Sorts newest first: 9 for 0, and so on."""
    return month.translate(str.maketrans("0123456789", "9876543210"))
