"""What is logged about the groups of a step; every name is defined in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.types.episode import Fault, Group, Origin, Verdict

ZERO_STD = 1e-8
"""Groups whose rewards spread less than this have nothing to learn."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, lengths, stops and faults of a step's groups, by TRL's names where they exist."""
    kept = [g for g in groups if not g.refused]
    return {
        **_rewards(kept),
        **_completions(kept),
        **_counts(groups, kept),
    }


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    totals = [g.totals() for g in groups]
    scored = [t[np.isfinite(t)] for t in totals]
    everything = np.concatenate(scored) if scored else np.zeros(0)
    found: dict[str, float] = {}
    if len(everything):
        spreads = np.array([t.std() for t in scored if len(t)])
        found["reward"] = float(everything.mean())
        found["reward_std"] = float(everything.std(ddof=1)) if len(everything) > 1 else 0.0
        found["frac_reward_zero_std"] = float((spreads < ZERO_STD).mean())
    by_name: dict[str, list[float]] = {}
    for group in groups:
        for row in group.rewards:
            if row.value is not None:
                by_name.setdefault(row.name, []).append(row.value)
    for name, values in sorted(by_name.items()):
        found[f"rewards/{name}/mean"] = float(np.mean(values))
        found[f"rewards/{name}/std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return found


def _completions(groups: Sequence[Group]) -> dict[str, float]:
    lengths, ended, cut = [], [], 0
    for group in groups:
        for episode in group.episodes:
            segments = [group.segments[s] for s in episode.segments]
            if not any(s.origin is Origin.SAMPLED for s in segments):
                continue
            length = sum(int(s.action_mask.sum()) for s in segments)
            lengths.append(length)
            if episode.stop.truncated:
                cut += 1
            else:
                ended.append(length)
    if not lengths:
        return {}
    found = {
        "completions/mean_length": float(np.mean(lengths)),
        "completions/min_length": float(np.min(lengths)),
        "completions/max_length": float(np.max(lengths)),
        "completions/clipped_ratio": cut / len(lengths),
    }
    if ended:
        found["completions/mean_terminated_length"] = float(np.mean(ended))
        found["completions/min_terminated_length"] = float(np.min(ended))
        found["completions/max_terminated_length"] = float(np.max(ended))
    return found


def _counts(groups: Sequence[Group], kept: Sequence[Group]) -> dict[str, float]:
    episodes = [(g, e) for g in kept for e in range(len(g.episodes))]
    unscored = sum(g.total(e) is None for g, e in episodes if list(g.rewards_for(e)))
    failed = [g.episodes[e].fault for g, e in episodes if g.episodes[e].fault is not Fault.NONE]
    found = {
        "groups/kept": float(len(kept)),
        "groups/refused": float(len(groups) - len(kept)),
        "episodes": float(len(episodes)),
        "episodes/unscored": float(unscored),
        "episodes/failed": float(sum(f.infrastructure for f in failed)),
    }
    for fault in sorted(set(failed)):
        found[f"faults/{fault.value}"] = float(failed.count(fault))
    for verdict in (Verdict.TIMEOUT, Verdict.UNSCORABLE, Verdict.NO_ANSWER):
        number = sum(r.verdict is verdict for g in kept for r in g.rewards)
        if number:
            found[f"verdicts/{verdict.value}"] = float(number)
    return found


def sampled_tokens(groups: Sequence[Group]) -> int:
    """Tokens that seats drew in these groups, refused ones included."""
    return sum(int(s.action_mask.sum()) for g in groups for s in g.segments)


def mismatch(groups: Sequence[Group]) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's, on the tokens just trained."""
    gaps = []
    for group in groups:
        for segment in group.segments:
            column = segment.columns.get("old_logprobs") or segment.columns.get("policy_logprobs")
            if column is None or group.refused or segment.temperature <= 0:
                continue
            drawn = segment.rollout_logprobs
            kept = segment.columns.get("kept_logmass")
            drawn = drawn if kept is None else drawn + kept.values
            gap = np.abs(column.values - drawn)
            gaps.append(gap[np.isfinite(gap)])
    gaps = np.concatenate(gaps) if gaps else np.zeros(0)
    if not len(gaps):
        return {}
    return {
        "sampling/sampling_logp_difference/mean": float(gaps.mean()),
        "sampling/sampling_logp_difference/max": float(gaps.max()),
    }
