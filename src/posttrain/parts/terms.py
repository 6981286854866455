"""Terms: the summands of a model's loss, each made of smaller parts.

Shapes: B rows, T positions. Metrics carry TRL's names where TRL has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError
from posttrain.objectives.imitation import cross_entropy
from posttrain.objectives.kl import kl_beyond_bound, kl_k3
from posttrain.objectives.masking import select_trained
from posttrain.objectives.ratios import behaviour_log_ratio, beyond_bound, bounded_exp
from posttrain.objectives.surrogates import policy_gradient
from posttrain.parts.aggregation import Aggregation, TokenMean
from posttrain.parts.correction import Corrected, Correction, Uncorrected
from posttrain.parts.kl import K3, KLEstimator
from posttrain.parts.ratios import NoRatio, Ratio, TokenRatio
from posttrain.parts.reading import ROLLOUT, trained_column, trained_entropy, trained_policy
from posttrain.parts.tallies import Series, tallies
from posttrain.parts.trust import ClippedRatio, TrustRegion, Unconstrained
from posttrain.types.probe import AsSampled, View
from posttrain.types.term import Counts, ModelOut, Needs, Stats, Term, TermOut, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient(Term):
    """Make tokens likelier by their advantage: ratio, trust region, correction, aggregation."""

    ratio: Ratio = field(default_factory=TokenRatio)
    """What the policy is compared with, and at which level."""

    trust: TrustRegion = field(default_factory=ClippedRatio)
    """How far a ratio may carry the update."""

    aggregation: Aggregation = field(default_factory=TokenMean)
    """How tokens are averaged."""

    correction: Correction = field(default_factory=Uncorrected)
    """Weights for tokens that a stale or otherwise different policy drew."""

    under: View = field(default_factory=AsSampled)
    """The context the tokens are scored in; another one than they were sampled in needs a
    correction, or a ratio against ``rollout_logprobs``."""

    def __post_init__(self) -> None:
        corrected = not isinstance(self.correction, Uncorrected)
        if isinstance(self.ratio, NoRatio) and not isinstance(self.trust, Unconstrained):
            raise ConfigError(
                f"{type(self.trust).__name__} bounds a ratio, and there is none with NoRatio. "
                "Use trust=Unconstrained(), or a ratio such as TokenRatio()."
            )
        if corrected and self.ratio.against == ROLLOUT:
            raise ConfigError(
                f"a ratio against {ROLLOUT} already corrects for the sampler; "
                f"{type(self.correction).__name__} would do so twice. Use "
                "correction=Uncorrected(), or a ratio against old_logprobs."
            )
        if not isinstance(self.under, AsSampled) and not (
            corrected or self.ratio.against == ROLLOUT
        ):
            raise ConfigError(
                f"tokens scored under {type(self.under).__name__} were drawn in another context, "
                "so a correction is needed: correction=TruncatedWeight(), or a ratio against "
                f"{ROLLOUT}."
            )

    @property
    @override
    def reads(self) -> frozenset[str]:
        """The advantages, and the column of the ratio."""
        return self.ratio.reads | {"advantages"}

    @property
    @override
    def view(self) -> View:
        """``under``."""
        return self.under

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """Policy losses of the drawn tokens, their weights, and how the bounds hold.

        Raises:
            NumericsError: NaN or infinity on a trained token.
        """
        mask = batch.loss_mask
        advantages = trained_column(batch, "advantages")
        log_ratio = self.ratio(batch, model)
        ratio = bounded_exp(log_ratio)
        if isinstance(self.ratio, NoRatio):
            losses = policy_gradient(model.policy_logprobs, advantages, mask)
        else:
            losses = self.trust(ratio, advantages, mask)
        drift = self._drift(batch, model)
        corrected = self.correction(drift, mask)
        if corrected is not None:
            losses = losses * corrected.weights
        series: dict[str, Series] = {
            **self._ratio_series(batch, model, log_ratio),
            **self.trust.series(ratio.detach(), advantages, mask),
            **_drift_series(drift, corrected),
            "advantages/abs_mean": ("mean", advantages.abs()),
        }
        entropy = trained_entropy(batch, model)
        if entropy is not None:
            series["entropy"] = ("mean", entropy)
        return TermOut(losses, self.aggregation(batch, counts), tallies(series, mask))

    def _drift(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """Log-ratio of the policy before the update to the one that sampled."""
        own = self.ratio.against
        if own in ("", ROLLOUT):
            before = model.policy_logprobs.detach()
        else:
            before = trained_column(batch, own)
        return behaviour_log_ratio(before, trained_column(batch, ROLLOUT), batch.loss_mask)

    def _ratio_series(
        self, batch: TokenBatch, model: ModelOut, log_ratio: Float[Tensor, "B T"]
    ) -> dict[str, Series]:
        if isinstance(self.ratio, NoRatio):
            return {}
        log_ratio = log_ratio.detach()
        ratio = bounded_exp(log_ratio)
        old = trained_column(batch, self.ratio.against)
        return {
            "ratio/mean": ("mean", ratio),
            "ratio/min": ("min", ratio),
            "ratio/max": ("max", ratio),
            "ratio/beyond_bound": ("mean", beyond_bound(log_ratio).float()),
            "kl_to_old": ("mean", kl_k3(model.policy_logprobs.detach(), old, batch.loss_mask)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KLPenalty(Term):
    """Keep the policy near a reference model, in the loss."""

    beta: float
    """Loss a nat, > 0. GRPO uses 0.04, R1-Zero 0.001."""

    estimator: KLEstimator = field(default_factory=K3)
    """How the KL is estimated from the sampled token, and with which gradient."""

    aggregation: Aggregation = field(default_factory=TokenMean)
    """How tokens are averaged; the policy term's, so that beta means what its paper says."""

    reference: str = "ref_logprobs"
    """Column of the reference's log-probs; ``old_logprobs`` keeps to the last policy."""

    def __post_init__(self) -> None:
        if not self.beta > 0.0:
            raise ConfigError(
                f"KLPenalty.beta must be > 0, got {self.beta}. Leave the term, and the probe of "
                "the reference, out for no penalty."
            )

    @property
    @override
    def reads(self) -> frozenset[str]:
        """The reference's column and what the estimator reads."""
        return self.estimator.reads | (frozenset({self.reference}) - {ROLLOUT})

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """Beta times the estimate on every drawn token.

        Raises:
            NumericsError: NaN or infinity on a trained token.
        """
        policy = trained_policy(batch, model)
        reference = trained_column(batch, self.reference)
        kl = self.estimator(batch, policy, reference)
        beyond = kl_beyond_bound(policy, reference, batch.loss_mask).float()
        metrics = tallies(
            {"kl": ("mean", kl), "kl/beyond_bound": ("mean", beyond)}, batch.loss_mask
        )
        return TermOut(self.beta * kl, self.aggregation(batch, counts), metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBonus(Term):
    """Reward the policy for staying undecided: -coef times the exact entropy."""

    needs: ClassVar[frozenset[Needs]] = frozenset({"logprobs", "entropy"})

    coef: float
    """Loss a nat, > 0; 1e-4 to 1e-2 in published runs."""

    aggregation: Aggregation = field(default_factory=TokenMean)
    """How tokens are averaged; the policy term's."""

    def __post_init__(self) -> None:
        if not self.coef > 0.0:
            raise ConfigError(
                f"EntropyBonus.coef must be > 0, got {self.coef}. Leave the term out for none."
            )

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """Minus the entropy of every drawn token's distribution.

        Raises:
            ConfigError: the learner gave no entropy.
            NumericsError: NaN or infinity on a trained token.
        """
        entropy = trained_entropy(batch, model)
        if entropy is None:
            raise ConfigError(
                "EntropyBonus needs the entropy of the policy, which the learner did not give. "
                "Use a learner that honours Term.needs."
            )
        chosen = select_trained(entropy, batch.loss_mask)
        metrics = tallies({"entropy": ("mean", chosen)}, batch.loss_mask)
        return TermOut(-self.coef * chosen, self.aggregation(batch, counts), metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy(Term):
    """Imitate every token of the segments that train, whoever chose it: given and drawn."""

    tokens: ClassVar[Literal["drawn", "given", "trained", "observed"]] = "trained"

    aggregation: Aggregation = field(default_factory=TokenMean)
    """How tokens are averaged."""

    coef: float = 1.0
    """Weight beside other terms, > 0."""

    def __post_init__(self) -> None:
        _check_coef(self, self.coef)

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """-log pi of every trained token.

        Raises:
            NumericsError: NaN or infinity on a trained token.
        """
        return _imitate(batch, model, counts, coef=self.coef, aggregation=self.aggregation)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCrossEntropy(Term):
    """Imitate given tokens alone: demonstrations beside sampled episodes."""

    tokens: ClassVar[Literal["drawn", "given", "trained", "observed"]] = "given"

    aggregation: Aggregation = field(default_factory=TokenMean)
    """How tokens are averaged."""

    coef: float = 1.0
    """Weight beside other terms, > 0."""

    def __post_init__(self) -> None:
        _check_coef(self, self.coef)

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """-log pi of every given token.

        Raises:
            NumericsError: NaN or infinity on a trained token.
        """
        return _imitate(batch, model, counts, coef=self.coef, aggregation=self.aggregation)


def _imitate(
    batch: TokenBatch, model: ModelOut, counts: Counts, *, coef: float, aggregation: Aggregation
) -> TermOut:
    losses = cross_entropy(trained_policy(batch, model), batch.loss_mask)
    series: dict[str, Series] = {"cross_entropy": ("mean", losses)}
    entropy = trained_entropy(batch, model)
    if entropy is not None:
        series["entropy"] = ("mean", entropy)
    return TermOut(coef * losses, aggregation(batch, counts), tallies(series, batch.loss_mask))


def _check_coef(part: Term, coef: float) -> None:
    if not coef > 0.0:
        raise ConfigError(
            f"{type(part).__name__}.coef must be > 0, got {coef}. Leave the term out for none."
        )


def _drift_series(drift: Float[Tensor, "B T"], corrected: Corrected | None) -> dict[str, Series]:
    difference = drift.abs()
    series: dict[str, Series] = {
        "sampling/sampling_logp_difference/mean": ("mean", difference),
        "sampling/sampling_logp_difference/max": ("max", difference),
    }
    if corrected is None:
        return series
    return {
        **series,
        "sampling/importance_sampling_ratio/min": ("min", corrected.weights),
        "sampling/importance_sampling_ratio/mean": ("mean", corrected.weights),
        "sampling/importance_sampling_ratio/max": ("max", corrected.weights),
        "sampling/bounded_mean": ("mean", corrected.bounded.float()),
    }
