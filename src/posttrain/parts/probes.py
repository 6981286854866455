"""The probes most methods use, under the column names that terms and credit read."""

from __future__ import annotations

from posttrain.types.probe import AsSampled, Entropy, Probe, View

__all__ = ["entropy", "old_logprobs", "ref_logprobs", "teacher_logprobs"]


def old_logprobs(model: str = "policy") -> Probe:
    """The policy's own log-probs before the first update of the batch, by the trainer."""
    return Probe("old_logprobs", model=model)


def ref_logprobs(model: str = "ref") -> Probe:
    """Log-probs under the reference model."""
    return Probe("ref_logprobs", model=model)


def teacher_logprobs(model: str = "teacher", view: View | None = None) -> Probe:
    """Log-probs under a teacher, in the context that ``view`` makes (as sampled if None)."""
    return Probe("teacher_logprobs", model=model, view=view or AsSampled())


def entropy(model: str = "policy") -> Probe:
    """Entropy in nats of the distribution each token was drawn from, before the update."""
    return Probe("entropy", model=model, want=Entropy())
