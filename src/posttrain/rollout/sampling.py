"""Drawing one token a row from logits, with the log-prob it really had.

Shapes: R rows, V vocabulary, F rows with a filter, K candidates. Filters apply in the order
temperature, top-k, top-p, min-p, each on what the one before kept, renormalised; each keeps a
front part of the tokens ordered by logit, so together they keep the ``n`` largest. Of equal
logits the lower id comes first. Temperature 0 keeps the single most likely token of
temperature 1: its log-prob is 0 and its ``kept_logmass`` the log-prob at temperature 1.

A token is found by one uniform number and the inverse of the cumulative distribution. The number
comes from a counter, so it depends on the request's seed and the token's offset alone.
Source of the counter generator: Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.errors import NumericsError
from posttrain.types.ask import Decode

_GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_BLOCK = 256
"""Tokens summed before the search: it looks through blocks, then through one block."""
_SPARE = 16
"""Candidates looked at beyond those needed, to see the end of a run of equal logits."""
_ROUNDING = 1e-6
"""Share by which a mass may miss top_p, or a token min_p, and still reach it: float32 rounding."""


def _mix(word: np.ndarray) -> np.ndarray:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def uniforms(
    seeds: Sequence[int], offsets: Int[np.ndarray, " R"], count: int
) -> Float[np.ndarray, "R count"]:
    """Uniform numbers in [0, 1), float64: row r holds numbers offsets[r] ... of seeds[r].

    Seeds are taken modulo 2**64.
    """
    keys = _mix(np.array([seed & _WORD for seed in seeds], np.uint64))
    turns = offsets.astype(np.uint64)[:, None] + np.arange(1, count + 1, dtype=np.uint64)
    words = _mix(keys[:, None] + turns * np.uint64(_GAMMA))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The temperature and filters of each row, on the device of the logits."""

    temperature: Float[Tensor, " R"]
    """> 0; greedy rows hold 1."""
    top_k: Int[Tensor, " R"]
    """0 keeps all."""
    top_p: Float[Tensor, " R"]
    """float64, 1 keeps all."""
    min_p: Float[Tensor, " R"]
    kind: Int[Tensor, " R"]
    """0 draws from every token, 1 has a filter, 2 is greedy."""
    kinds: frozenset[int]
    """Every value of ``kind``, and maybe more."""
    scaled: bool
    """False if every temperature is 1."""

    @classmethod
    def of(cls, decodes: Sequence[Decode], device: torch.device | str = "cpu") -> Rules:
        """The rules of these decode settings, one row each."""
        temperature = [d.temperature or 1.0 for d in decodes]
        kind = [_kind(d) for d in decodes]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_k=torch.tensor([d.top_k for d in decodes], dtype=torch.int64, device=device),
            top_p=torch.tensor([d.top_p for d in decodes], dtype=torch.float64, device=device),
            min_p=torch.tensor([d.min_p for d in decodes], dtype=torch.float32, device=device),
            kind=torch.tensor(kind, dtype=torch.int64, device=device),
            kinds=frozenset(kind),
            scaled=any(t != 1.0 for t in temperature),
        )

    def rows(self, index: Tensor) -> Rules:
        """The rules of the rows that ``index`` names, in its order."""
        return Rules(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            kind=self.kind[index],
            kinds=self.kinds,
            scaled=self.scaled,
        )


_EVERY, _FILTERED, _GREEDY = 0, 1, 2


def _kind(decode: Decode) -> int:
    if decode.temperature == 0.0:
        return _GREEDY
    filters = decode.top_k > 0 or decode.top_p < 1.0 or decode.min_p > 0.0
    return _FILTERED if filters else _EVERY


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One token a row."""

    ids: Int[Tensor, " R"]
    logprobs: Float[Tensor, " R"]
    """float32, of the distribution really drawn from."""
    kept_logmass: Float[Tensor, " R"]
    """float32, log of the probability that the filters kept, at the row's temperature."""


def draw(logits: Float[Tensor, "R V"], uniform: Float[Tensor, " R"], rules: Rules) -> Drawn:
    """One token a row by its uniform number.

    Raises:
        NumericsError: If a row's logits hold NaN or plus infinity, or nothing but minus infinity.
    """
    scaled, probs = _distribution(logits, rules)
    if len(rules.kinds) == 1:
        return _draw_kind(next(iter(rules.kinds)), scaled, probs, uniform, rules)
    ids = torch.zeros_like(rules.kind)
    logprobs, kept = torch.zeros_like(rules.temperature), torch.zeros_like(rules.temperature)
    for kind in sorted(rules.kinds):
        rows = (rules.kind == kind).nonzero().flatten()
        if len(rows):
            some = (scaled[rows], probs[rows], uniform[rows], rules.rows(rows))
            drawn = _draw_kind(kind, *some)
            ids[rows] = drawn.ids
            logprobs[rows], kept[rows] = drawn.logprobs, drawn.kept_logmass
    return Drawn(ids, logprobs, kept)


def filtered_logprobs(logits: Float[Tensor, "R V"], rules: Rules) -> Float[Tensor, "R V"]:
    """Log-probs, float32, of the distribution ``draw`` draws from; minus infinity where dropped.

    Raises:
        NumericsError: As ``draw``.
    """
    scaled, probs = _distribution(logits, rules)
    for kind in rules.kinds - {_EVERY}:
        rows = (rules.kind == kind).nonzero().flatten()
        if len(rows):
            if kind == _GREEDY:
                ids = scaled[rows].argmax(-1, keepdim=True)
                kept = torch.ones_like(ids, dtype=probs.dtype)
            else:
                ids, kept = _kept(scaled[rows], probs[rows], rules.rows(rows))
            probs[rows] = torch.zeros_like(probs[rows]).scatter(1, ids, kept)
    return (probs / probs.sum(-1, keepdim=True)).log()


def _distribution(logits: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Logits over temperature and their softmax, both [R, V] float32."""
    scaled = logits.float()
    if rules.scaled:
        tau = rules.temperature[:, None]
        scaled = scaled / tau if scaled is logits else scaled.div_(tau)
    probs = torch.softmax(scaled, dim=-1)
    bad = probs[:, 0].isnan()
    if bool(bad.any()):
        rows = bad.nonzero().flatten().tolist()
        raise NumericsError(
            f"logits of rows {rows[:8]} of {len(bad)} are no distribution: they hold NaN or plus "
            "infinity, or nothing but minus infinity. Look at the weights and the precision of "
            "the model that made them."
        )
    return scaled, probs


def _draw_kind(kind: int, scaled: Tensor, probs: Tensor, uniform: Tensor, rules: Rules) -> Drawn:
    """``draw`` for rows of one kind."""
    if kind == _GREEDY:
        ids = scaled.argmax(-1)
        own = probs.gather(1, ids[:, None]).squeeze(1) / probs.sum(-1)
        return Drawn(ids, torch.zeros_like(own), own.log())
    if kind == _EVERY:
        ids, total = _invert(probs, uniform)
        # normalised by the sum the search used: softmax adds up a large vocabulary less exactly
        own = probs.gather(1, ids[:, None]).squeeze(1) / total
        return Drawn(ids, own.log().float(), torch.zeros_like(uniform, dtype=torch.float32))
    ids, kept = _kept(scaled, probs, rules)
    place, total = _invert(kept, uniform)
    own = kept.gather(1, place[:, None]).squeeze(1) / total
    kept_logmass = (total / probs.sum(-1)).log().float()
    return Drawn(ids.gather(1, place[:, None]).squeeze(1), own.log().float(), kept_logmass)


def _kept(scaled: Tensor, probs: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Candidates in order of id, [F, K], and their probabilities, 0 where a filter drops one."""
    V = probs.shape[-1]
    bound = _at_most(probs, rules)
    K = min(int(bound.max()) + _SPARE, V)
    while True:
        top, ids = scaled.topk(K, dim=-1)  # descending
        number = _num_kept(probs.gather(1, ids), bound, rules)[:, None]
        least = top.gather(1, number - 1)
        if K == V or bool((top[:, -1:] < least).all()):
            break  # every token that equals the least one kept is a candidate
        K = min(4 * K, V)
    most = int((top >= least).sum(-1).max())
    ids = ids[:, :most].sort(dim=-1).values
    logits = scaled.gather(1, ids)
    above, equal = logits > least, logits == least
    room = number - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= room))  # of equal logits the lower ids
    return ids, probs.gather(1, ids).where(keep, 0.0)


def _at_most(probs: Tensor, rules: Rules) -> Tensor:
    """A bound of the tokens each row has to look at, [F], found without sorting."""
    V = probs.shape[-1]
    bound = torch.full_like(rules.top_k, V)
    if bool((rules.top_p < 1.0).any()):
        # tokens below (1 - top_p) / V weigh less than 1 - top_p together: no row needs them
        floor = ((1.0 - rules.top_p) / V).float()[:, None]
        bound = torch.minimum(bound, (probs >= floor).sum(-1))
    if bool((rules.min_p > 0.0).any()):
        bound = torch.minimum(bound, _above_min_p(probs, rules).sum(-1))
    # top-p needs the mass of all that top-k kept
    return torch.where(rules.top_k > 0, rules.top_k, bound).clamp(min=1, max=V)


def _num_kept(sorted_probs: Tensor, bound: Tensor, rules: Rules) -> Tensor:
    """Tokens each row keeps, [F], from its probabilities in descending order, [F, K]."""
    place = torch.arange(sorted_probs.shape[-1], device=sorted_probs.device)
    inside = place < bound[:, None]
    mass = sorted_probs.double().where(inside, 0.0).cumsum(-1)
    whole = torch.where(rules.top_k > 0, mass[:, -1], 1.0)[:, None]
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0)) / whole
    nucleus = (before < rules.top_p[:, None] - _ROUNDING) | (rules.top_p == 1.0)[:, None]
    return (inside & nucleus & _above_min_p(sorted_probs, rules)).sum(-1).clamp(min=1)


def _above_min_p(probs: Tensor, rules: Rules) -> Tensor:
    floor = rules.min_p[:, None] * probs.amax(-1, keepdim=True) * (1.0 - _ROUNDING)
    return probs >= floor


def _invert(probs: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Where each row's cumulative mass first exceeds uniform * total, and the total, both [R]."""
    V = probs.shape[-1]
    if V <= 2 * _BLOCK:
        mass = probs.cumsum(-1, dtype=torch.float64)
        return _first_above(mass, uniform * mass[:, -1]), mass[:, -1]
    whole = V // _BLOCK * _BLOCK
    sums = probs[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1)
    if whole < V:
        sums = torch.cat((sums, probs[:, whole:].sum(-1, keepdim=True)), dim=1)
    mass = sums.cumsum(-1, dtype=torch.float64)
    target = uniform * mass[:, -1]
    block = _first_above(mass, target)[:, None]
    before = torch.nn.functional.pad(mass, (1, 0)).gather(1, block).squeeze(1)
    places = block * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inside = probs.gather(1, places.clamp(max=V - 1)).where(places < V, 0.0)
    token = _first_above(inside.cumsum(-1, dtype=torch.float64), target - before)
    return block.squeeze(1) * _BLOCK + token, mass[:, -1]


def _first_above(mass: Tensor, target: Tensor) -> Tensor:
    """First place where ascending ``mass`` [R, n] exceeds ``target`` [R]; never one of mass 0."""
    below_all = torch.nextafter(mass[:, -1], torch.zeros_like(target))
    bounded = torch.minimum(target, below_all)[:, None]
    return torch.searchsorted(mass, bounded, right=True).squeeze(1)
