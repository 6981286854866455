from dataclasses import replace

import fixture_f
import pytest
import torch

from posttrain.errors import ConfigError, NumericsError
from posttrain.parts.aggregation import (
    ConstantLength,
    EpisodeMean,
    SequenceMean,
    SequenceSum,
    TokenMean,
    TokenSum,
)
from posttrain.parts.correction import MaskedWeight, TruncatedWeight, Uncorrected
from posttrain.parts.kl import K2, K3, K3StraightThrough, K3Weighted
from posttrain.parts.ratios import (
    NoRatio,
    PrefixMinRatio,
    PrefixRatio,
    SequenceMeanRatio,
    SequenceRatio,
    SequenceTokenRatio,
    TokenRatio,
)
from posttrain.parts.terms import (
    CrossEntropy,
    EntropyBonus,
    GivenCrossEntropy,
    KLPenalty,
    PolicyGradient,
)
from posttrain.parts.trust import CappedClip, ClippedRatio, DualClip, Unconstrained
from posttrain.parts.views import BarePrompt
from posttrain.types.term import Tally, TokenBatch


def run(term, batch=None, counts=fixture_f.COUNTS):
    """Loss, its slope at each trained token, and the metrics as numbers."""
    model = fixture_f.model()
    out = term(batch or fixture_f.batch(), model, counts, None)
    out.loss.backward()
    grad = model.policy_logprobs.grad
    assert grad is not None
    return (
        out.loss.item(),
        fixture_f.rows_of(grad).tolist(),
        {name: tally.value for name, tally in out.metrics.items()},
    )


REINFORCE = {"ratio": NoRatio(), "trust": Unconstrained()}


@pytest.mark.parametrize(
    ("aggregation", "clipped", "plain"),
    [
        (TokenMean(), -0.220500, 0.06),
        (SequenceMean(), -0.015300, -0.141667),
        (SequenceSum(), -0.551249, 0.15),
        (TokenSum(), -1.102499, 0.3),
        (ConstantLength(length=4), -0.137812, 0.0375),
        (EpisodeMean(), -0.015300, -0.141667),  # one row an episode: the sequence mean
    ],
)
def test_losses_of_the_fixture_under_every_aggregation(aggregation, clipped, plain):
    loss, slopes, _ = run(PolicyGradient(aggregation=aggregation))
    assert loss == pytest.approx(clipped, abs=2e-6)
    assert slopes[1] == 0.0
    assert slopes[4] == 0.0  # ratio 0.548812 with A < 0: held from below
    loss, _, _ = run(PolicyGradient(**REINFORCE, aggregation=aggregation))
    assert loss == pytest.approx(plain, abs=2e-6)


@pytest.mark.parametrize(
    ("term", "tokens", "slopes"),
    [
        # 5 tokens; the slope of each is that of its own loss divided by 5
        (
            PolicyGradient(),
            [-1.105171, -1.2, -0.818731, 1.221403, 0.8],
            [-1.105171, 0.0, -0.818731, 1.221403, 0.0],
        ),
        (
            PolicyGradient(trust=ClippedRatio(high=0.28)),
            [-1.105171, -1.28, -0.818731, 1.221403, 0.8],
            [-1.105171, 0.0, -0.818731, 1.221403, 0.0],
        ),
        (
            PolicyGradient(trust=Unconstrained()),
            [-1.105171, -1.349859, -0.818731, 1.221403, 0.548812],
            [-1.105171, -1.349859, -0.818731, 1.221403, 0.548812],
        ),
        (
            PolicyGradient(**REINFORCE),
            [0.9, 0.5, 1.2, -0.3, -2.0],
            [-1.0, -1.0, -1.0, 1.0, 1.0],
        ),
        (
            PolicyGradient(trust=DualClip(low=0.2, high=0.15, ceiling=1.2)),
            [-1.105171, -1.15, -0.818731, 1.2, 0.8],
            [-1.105171, 0.0, -0.818731, 0.0, 0.0],
        ),
        (
            PolicyGradient(trust=CappedClip(low=0.2, high=0.15, cap=1.2)),
            [-1.105171, -1.15, -0.818731, 1.2, 0.8],
            [-1.105171, 0.0, -0.818731, 0.0, 0.0],
        ),
        (  # against what the engine reported: exp(lp - lb)
            PolicyGradient(ratio=TokenRatio(against="rollout_logprobs"), trust=Unconstrained()),
            [-1.221403, -1.221403, -0.818731, 1.105171, 0.904837],
            [-1.221403, -1.221403, -0.818731, 1.105171, 0.904837],
        ),
        (
            PolicyGradient(correction=TruncatedWeight(cap=1.5)),
            [-1.221403, -1.085805, -0.818731, 1.105171, 1.2],
            [-1.221403, 0.0, -0.818731, 1.105171, 0.0],
        ),
        (  # rho 1.648721 is masked, the denominator stays 5
            PolicyGradient(correction=MaskedWeight(low=0.5, high=1.5)),
            [-1.221403, -1.085805, -0.818731, 1.105171, 0.0],
            [-1.221403, 0.0, -0.818731, 1.105171, 0.0],
        ),
        (  # row products of rho are 1 and 1.491825
            PolicyGradient(correction=TruncatedWeight(cap=1.2, level="sequence")),
            [-1.105171, -1.2, -0.818731, 1.465684, 0.96],
            [-1.105171, 0.0, -0.818731, 1.465684, 0.0],
        ),
        (  # row geometric means of rho are 1 and 1.221403
            PolicyGradient(correction=MaskedWeight(low=0.9, high=1.2, level="geometric")),
            [-1.105171, -1.2, -0.818731, 0.0, 0.0],
            [-1.105171, 0.0, -0.818731, 0.0, 0.0],
        ),
        (  # no old policy: the weight is pi/mu, [1.221403, 1.221403, .818731, 1.105171, .904837]
            PolicyGradient(**REINFORCE, correction=TruncatedWeight(cap=1.2)),
            [1.08, 0.6, 0.982477, -0.331551, -1.809675],
            [-1.2, -1.2, -0.818731, 1.105171, 0.904837],
        ),
    ],
)
def test_token_losses_and_slopes(term, tokens, slopes):
    loss, found, _ = run(term)
    assert loss == pytest.approx(sum(tokens) / 5, abs=2e-6)
    assert found == pytest.approx([s / 5 for s in slopes], abs=2e-6)


def test_sequence_ratios():
    # geometric means 1.068939 and 0.818731: GSPO's -mean(s A), each token 1/L of its row's slope
    loss, slopes, _ = run(PolicyGradient(ratio=SequenceMeanRatio(), aggregation=SequenceMean()))
    assert loss == pytest.approx((-1.068939 + 0.818731) / 2, abs=2e-6)
    assert slopes == pytest.approx([-1.068939 / 6] * 3 + [0.818731 / 4] * 2, abs=2e-6)

    same = run(PolicyGradient(ratio=SequenceTokenRatio(), aggregation=SequenceMean()))
    assert same[0] == pytest.approx(loss, abs=1e-6)
    assert same[1] == pytest.approx(slopes, abs=1e-6)

    # products 1.221403 and 0.670320; the loss is the row's, whatever its length
    free = {"trust": Unconstrained(), "aggregation": SequenceMean()}
    loss, slopes, _ = run(PolicyGradient(ratio=SequenceRatio(), **free))
    assert loss == pytest.approx((-1.221403 + 0.670320) / 2, abs=2e-6)
    assert slopes == pytest.approx([-1.221403 / 2] * 3 + [0.670320 / 2] * 2, abs=2e-6)


def test_prefix_ratios():
    # products so far [1.105171, 1.491825, 1.221403], [1.221403, .670320]; own slope only
    free = {"trust": Unconstrained(), "aggregation": TokenSum()}
    _, slopes, _ = run(PolicyGradient(ratio=PrefixRatio(), **free))
    expected = [-1.105171, -1.491825, -1.221403, 1.221403, 0.670320]
    assert slopes == pytest.approx(expected, abs=2e-6)
    # ratio times the smallest before it [1.105171, 1.491825, .904837], [1.221403, .670320]
    _, slopes, _ = run(PolicyGradient(ratio=PrefixMinRatio(), **free))
    expected = [-1.105171, -1.491825, -0.904837, 1.221403, 0.670320]
    assert slopes == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("estimator", "values", "slopes"),
    [
        # d is .3, .1, -.1, .3, -.5
        (K2(), [0.045, 0.005, 0.005, 0.045, 0.125], [0.3, 0.1, -0.1, 0.3, -0.5]),
        (
            K3(),
            [0.040818, 0.004837, 0.005171, 0.040818, 0.148721],
            [0.259182, 0.095163, -0.105171, 0.259182, -0.648721],
        ),
        (
            K3StraightThrough(),
            [0.040818, 0.004837, 0.005171, 0.040818, 0.148721],
            [0.3, 0.1, -0.1, 0.3, -0.5],
        ),
        (  # r k3 has the slope r d
            K3Weighted(),
            [0.045111, 0.006529, 0.004234, 0.049855, 0.081620],
            [0.331551, 0.134986, -0.081873, 0.366421, -0.274406],
        ),
    ],
)
def test_kl_estimators(estimator, values, slopes):
    loss, found, metrics = run(KLPenalty(beta=0.5, estimator=estimator))
    assert loss == pytest.approx(0.5 * sum(values) / 5, abs=2e-6)
    assert found == pytest.approx([0.5 * s / 5 for s in slopes], abs=2e-6)
    assert metrics["kl"] == pytest.approx(sum(values) / 5, abs=2e-6)
    assert metrics["kl/beyond_bound"] == 0.0


def test_kl_to_the_last_policy_needs_no_probe_of_a_reference():
    term = KLPenalty(beta=1.0, estimator=K2(), reference="old_logprobs")
    assert term.reads == {"old_logprobs"}
    loss, _, _ = run(term)  # d = [.1, .3, -.2, .2, -.6]
    assert loss == pytest.approx((0.01 + 0.09 + 0.04 + 0.04 + 0.36) / 10, abs=1e-6)


def test_entropy_bonus():
    values = torch.tensor([[float("nan"), 0.5, 0.7, 0.2], [float("nan"), 1.1, 0.4, float("nan")]])
    entropy = values.requires_grad_()
    model = replace(fixture_f.model(), entropy=entropy)
    out = EntropyBonus(coef=0.1, aggregation=SequenceMean())(
        fixture_f.batch(), model, fixture_f.COUNTS, None
    )
    assert out.loss.item() == pytest.approx(-0.1 * (1.4 / 3 + 1.5 / 2) / 2)
    out.loss.backward()
    assert entropy.grad is not None
    slopes = fixture_f.rows_of(entropy.grad)
    assert slopes.tolist() == pytest.approx([-0.1 / 6] * 3 + [-0.1 / 4] * 2)
    assert out.metrics["entropy"].value == pytest.approx(2.9 / 5)
    with pytest.raises(ConfigError, match="did not give"):
        EntropyBonus(coef=0.1)(fixture_f.batch(), fixture_f.model(), fixture_f.COUNTS, None)


def test_cross_entropy_needs_no_advantages():
    term = CrossEntropy(coef=2.0)
    assert term.reads == frozenset()
    assert term.tokens == "trained"
    assert GivenCrossEntropy().tokens == "given"
    loss, slopes, metrics = run(term)
    assert loss == pytest.approx(2 * 4.9 / 5)
    assert slopes == pytest.approx([-0.4] * 5)
    assert metrics["cross_entropy"] == pytest.approx(4.9 / 5)


def test_metrics_of_the_policy_term():
    _, _, metrics = run(PolicyGradient(correction=TruncatedWeight(cap=1.5)))
    assert metrics["clip_ratio/high_mean"] == pytest.approx(1 / 5)  # 1.349859 with A > 0
    assert metrics["clip_ratio/low_mean"] == pytest.approx(1 / 5)  # 0.548812 with A < 0
    assert metrics["clip_ratio/region_mean"] == pytest.approx(2 / 5)
    assert metrics["ratio/mean"] == pytest.approx(5.043976 / 5, abs=1e-6)
    assert metrics["ratio/min"] == pytest.approx(0.548812, abs=1e-6)
    assert metrics["ratio/max"] == pytest.approx(1.349859, abs=1e-6)
    # old - rollout = [.1, -.1, 0, -.1, .5]
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.8 / 5, abs=1e-6)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.5, abs=1e-6)
    assert metrics["sampling/importance_sampling_ratio/min"] == pytest.approx(0.904837, abs=1e-6)
    assert metrics["sampling/bounded_mean"] == pytest.approx(1 / 5)
    assert metrics["advantages/abs_mean"] == pytest.approx(1.0)


def test_filtered_sampling_is_compared_under_the_whole_distribution():
    # the engine kept e^-0.2 of the mass on one token: rho there is exp(-1.0 - (-1.1 - 0.2))
    mass = [[-0.2, 0.0, 0.0], [0.0, 0.0, fixture_f.NAN]]
    batch = fixture_f.batch(kept_logmass=mass)
    _, _, metrics = run(PolicyGradient(), batch)
    # |old - rollout| = [.3, .1, 0, .1, .5]
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(1.0 / 5, abs=1e-6)


@pytest.mark.parametrize("column", ["advantages", "old_logprobs", "rollout_logprobs"])
def test_nan_on_a_trained_token_is_an_error_that_names_it(column):
    rows = [[0.0, 0.0, 0.0], [0.0, fixture_f.NAN, fixture_f.NAN]]
    with pytest.raises(NumericsError, match=rf"{column}.*segment 2.*row 1, token 2"):
        run(PolicyGradient(), fixture_f.batch(**{column: rows}))


def test_nan_from_the_model_is_an_error():
    model = fixture_f.model()
    with torch.no_grad():
        model.policy_logprobs[0, 2] = fixture_f.NAN
    for term in (PolicyGradient(), KLPenalty(beta=0.1), CrossEntropy()):
        with pytest.raises(NumericsError, match="policy_logprobs"):
            term(fixture_f.batch(), model, fixture_f.COUNTS, None)


def test_a_missing_column_is_named():
    batch = fixture_f.batch()
    columns = {k: v for k, v in batch.columns.items() if k != "ref_logprobs"}
    with pytest.raises(ConfigError, match="ref_logprobs"):
        run(KLPenalty(beta=0.1), replace(batch, columns=columns))


def half(batch: TokenBatch, row: int) -> TokenBatch:
    """One row of the batch, as a micro-batch of its own."""
    picked = {
        name: value[row : row + 1]
        for name in batch.__dataclass_fields__
        if isinstance(value := getattr(batch, name), torch.Tensor)
    }
    return replace(batch, **picked, columns={k: v[row : row + 1] for k, v in batch.columns.items()})


@pytest.mark.parametrize(
    "aggregation",
    [TokenMean(), SequenceMean(), SequenceSum(), ConstantLength(length=7), EpisodeMean()],
)
@pytest.mark.parametrize("ratio", [TokenRatio(), SequenceMeanRatio(), PrefixMinRatio()])
def test_micro_batches_add_up_to_the_whole(aggregation, ratio):
    terms = (
        PolicyGradient(ratio=ratio, aggregation=aggregation, correction=TruncatedWeight()),
        KLPenalty(beta=0.1, aggregation=aggregation),
    )
    whole, parts = fixture_f.model(), fixture_f.model()
    batch, counts = fixture_f.batch(), fixture_f.COUNTS
    merged: dict[str, Tally] = {}
    for term in terms:
        out = term(batch, whole, counts, None)
        out.loss.backward()
        for row in (1, 0):
            model = replace(parts, policy_logprobs=parts.policy_logprobs[row : row + 1])
            part = term(half(batch, row), model, counts, None)
            part.loss.backward()
            for name, tally in part.metrics.items():
                merged[name] = merged[name].merge(tally) if name in merged else tally
        for name, tally in out.metrics.items():
            assert merged[name].value == pytest.approx(tally.value, abs=1e-6), name
    assert whole.policy_logprobs.grad is not None
    torch.testing.assert_close(
        parts.policy_logprobs.grad, whole.policy_logprobs.grad, rtol=0, atol=1e-7
    )


def test_a_batch_that_trains_nothing_gives_zero():
    batch = replace(fixture_f.batch(), loss_mask=torch.zeros(2, 4, dtype=torch.bool))
    for term in (PolicyGradient(), KLPenalty(beta=0.1), CrossEntropy()):
        loss, slopes, metrics = run(term, batch)
        assert loss == 0.0
        assert slopes == [0.0] * 5
        assert metrics == {}


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: PolicyGradient(ratio=NoRatio()), "trust=Unconstrained"),
        (
            lambda: PolicyGradient(
                ratio=TokenRatio(against="rollout_logprobs"), correction=TruncatedWeight()
            ),
            "twice",
        ),
        (lambda: PolicyGradient(under=BarePrompt()), "TruncatedWeight"),
        (lambda: KLPenalty(beta=0.0), "out for no penalty"),
        (lambda: EntropyBonus(coef=-0.1), "> 0"),
        (lambda: CrossEntropy(coef=0.0), "> 0"),
        (lambda: ClippedRatio(low=0.8, high=0.0), "not the bound itself"),
        (lambda: ClippedRatio(low=1.2), "not the bound itself"),
        (lambda: DualClip(ceiling=1.1), "1 \\+ high"),
        (lambda: CappedClip(cap=0.5), "1 \\+ high"),
        (lambda: TruncatedWeight(cap=0.5), ">= 1"),
        (lambda: TruncatedWeight(level="tokens"), "Did you mean 'token'"),
        (lambda: MaskedWeight(low=1.2), "ratio of 1 must be kept"),
        (lambda: ConstantLength(length=0), "max_tokens"),
    ],
)
def test_meaningless_parts_are_refused_with_a_remedy(make, remedy):
    with pytest.raises(ConfigError, match=remedy):
        make()


def test_a_view_of_another_context_goes_with_a_correction():
    term = PolicyGradient(under=BarePrompt(), correction=TruncatedWeight())
    assert term.view == BarePrompt()
    assert isinstance(PolicyGradient().correction, Uncorrected)
