"""The catalogue: every method we know of, with its papers and its parts; built or not yet.

An entry says what a method is made of. Whether it runs here is never written down: it is built if
`METHODS` holds a preset of its name, and a part if `PARTS` names what does it within other methods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Literal, TypeAlias, get_args

from posttrain.errors import ConfigError, nearest
from posttrain.methods import METHODS
from posttrain.objectives.estimators import pass_at_k
from posttrain.parts.correction import MaskedWeight, TruncatedWeight
from posttrain.parts.keeps import RewardsDiffer
from posttrain.parts.kl import K2, K3, K3StraightThrough, K3Weighted
from posttrain.parts.kl_reward import KLInReward
from posttrain.parts.ratios import TokenRatio
from posttrain.parts.spread import spread_over_segments
from posttrain.parts.terms import EntropyBonus, KLPenalty
from posttrain.parts.trust import CappedClip, DualClip

Kind: TypeAlias = Literal["policy", "reward", "agent"]
"""Policy optimisation; rewards, search and evaluation; agents, several agents and systems."""

State: TypeAlias = Literal["built", "part", "not yet"]
"""A preset of its name; a part that other methods can take; neither."""

PARTS: Mapping[str, type | FunctionType] = MappingProxyType(
    {
        "bypass": TokenRatio,
        "dual_clip_ppo": DualClip,
        "dynamic_sampling": RewardsDiffer,
        "entropy_bonus": EntropyBonus,
        "icepop": MaskedWeight,
        "kl_k1_reward": KLInReward,
        "kl_k2_loss": K2,
        "kl_k3_loss": K3,
        "kl_k3_straight_through": K3StraightThrough,
        "kl_k3_weighted": K3Weighted,
        "kl_to_old": KLPenalty,
        "mis": MaskedWeight,
        "overlong_filtering": spread_over_segments,
        "pass_and_maj_at_k": pass_at_k,
        "tis": TruncatedWeight,
        "two_sided_clip": CappedClip,
    }
)
"""Methods that are no composition of their own, by catalogue name: the part that does it."""

ORDER: tuple[State, ...] = get_args(State)
"""States, the most complete first."""

CURVES = Path(__file__).parents[3] / "benchmarks" / "results" / "methods"
"""Recorded runs, one file a method, in a checkout of the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A method of the catalogue."""

    name: str
    """Name of its preset, if there is one."""
    title: str
    kind: Kind
    direction: str
    """One of the map's directions, e.g. ``Reasoning RL``."""
    topic: str
    """One of the map's topics."""
    papers: tuple[str, ...]
    """arXiv ids; empty where no one paper is its source."""
    parts: Mapping[str, str]
    """What it is made of, by axis, in words; empty where only the name is known."""

    @property
    def state(self) -> State:
        """What the library holds of it."""
        if self.name in METHODS:
            return "built"
        return "part" if self.name in PARTS else "not yet"

    @property
    def part(self) -> str:
        """Where the part is, ``module.Name``; empty if there is none."""
        found = PARTS.get(self.name)
        return "" if found is None else f"{found.__module__}.{found.__qualname__}"

    @property
    def curve(self) -> Path | None:
        """The recorded run, if the repository at hand has one."""
        path = CURVES / f"{self.name}.json"
        return path if path.is_file() else None


@cache
def all_methods() -> tuple[Entry, ...]:
    """Every entry, in the catalogue's own order."""
    text = files("posttrain.methods").joinpath("catalogue.jsonl").read_text(encoding="utf-8")
    rows = (json.loads(line) for line in text.splitlines())
    return tuple(Entry(**{**row, "papers": tuple(row["papers"])}) for row in rows)


def entry(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ConfigError: the catalogue has no such method; names the nearest one.
    """
    known = {method.name: method for method in all_methods()}
    found = known.get(name.lower().replace("-", "_").replace(" ", "_"))
    if found is None:
        raise ConfigError(
            f"the catalogue has no method {name!r}.{nearest(name, known)} List them all with "
            "posttrain methods."
        )
    return found


def by_paper(arxiv: str) -> tuple[Entry, ...]:
    """Entries whose source is a paper, built ones first."""
    found = [method for method in all_methods() if arxiv in method.papers]
    return tuple(sorted(found, key=lambda method: ORDER.index(method.state)))
