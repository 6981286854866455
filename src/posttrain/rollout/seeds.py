"""Seeds: every random choice of a run is a stable hash of where it is made.

An episode's seed is a hash of (run seed, phase, step, draw index, round, ask, member); its turns
and its environment hash that seed further, so a stored ``Episode.seed`` is enough to play the
same environment again. Python's ``hash`` differs between processes and is not used.
"""

from __future__ import annotations

import hashlib

import numpy as np

from posttrain.types.episode import Key


def derive(seed: int, *place: int | str) -> int:
    """A 63-bit seed for a place under another seed; equal arguments give equal seeds."""
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def episode_seed(run_seed: int, key: Key, *, round_: int, ask: int, member: int) -> int:
    """The seed of one member of an ask."""
    return derive(run_seed, *key, round_, ask, member)


def turn_seed(episode: int, turn: int) -> int:
    """The seed of the tokens of one turn, from the episode's."""
    return derive(episode, "turn", turn)


def env_generator(episode: int) -> np.random.Generator:
    """The generator an episode's environment starts with, from the episode's seed."""
    return np.random.default_rng(derive(episode, "env"))


def draw_generator(run_seed: int, *, phase: int, step: int, attempt: int) -> np.random.Generator:
    """The generator tasks are drawn with; ``attempt`` counts the redraws of the step."""
    return np.random.default_rng(derive(run_seed, "draw", phase, step, attempt))
