import group_fixture
import numpy as np
import pytest
from group_fixture import group, observed, sampled

from posttrain.errors import ConfigError, NumericsError
from posttrain.parts.credit import (
    BatchMean,
    GroupMean,
    GroupStandardised,
    LeaveOneOut,
    RewardItself,
    RunningMean,
)
from posttrain.parts.kl_reward import KLInReward
from posttrain.parts.memory import MEAN_REWARD, RememberMeanReward
from posttrain.types.episode import Stop

NAN = float("nan")


def answers(credit, *groups, state=None):
    """The advantage of each answer (its only value), and that every other token is NaN."""
    columns = credit(groups, state or {})["advantages"]
    segments = [s for g in groups for s in g.segments]
    assert len(columns) == len(segments)
    found = []
    for column, segment in zip(columns, segments, strict=True):
        assert column.dtype == np.float32
        assert column.shape == segment.ids.shape
        if segment.trains:
            assert np.isnan(column[~segment.action_mask]).all()
            values = set(np.nan_to_num(column[segment.action_mask], nan=99.0).tolist())
            assert len(values) == 1
            found.append(column[segment.action_mask][0])
        else:
            assert np.isnan(column).all()
    return [float(v) for v in found]


@pytest.mark.parametrize(
    ("credit", "mixed", "lone"),
    [
        (GroupMean(), [0.5, -0.5, -0.5, 0.5], [0.75, -0.25, -0.25, -0.25]),
        (LeaveOneOut(), [2 / 3, -2 / 3, -2 / 3, 2 / 3], [1.0, -1 / 3, -1 / 3, -1 / 3]),
        (
            GroupStandardised(),
            [0.866024, -0.866024, -0.866024, 0.866024],
            [1.499997, -0.499999, -0.499999, -0.499999],
        ),
        (
            GroupStandardised(ddof=0),
            [0.999998, -0.999998, -0.999998, 0.999998],
            [1.732047, -0.577349, -0.577349, -0.577349],
        ),
        (
            GroupStandardised(eps=1e-4),
            [0.865875, -0.865875, -0.865875, 0.865875],
            [1.4997, -0.4999, -0.4999, -0.4999],
        ),
        (RewardItself(), [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_four_answers_to_one_prompt(credit, mixed, lone):
    assert answers(credit, group([1.0, 0.0, 0.0, 1.0])) == pytest.approx(mixed, abs=2e-6)
    assert answers(credit, group([1.0, 0.0, 0.0, 0.0])) == pytest.approx(lone, abs=2e-6)


@pytest.mark.parametrize("credit", [GroupMean(), LeaveOneOut(), GroupStandardised()])
def test_equal_rewards_and_single_answers_get_exactly_zero(credit):
    # 0.1 is no binary fraction: a mean of three of them need not equal it
    assert answers(credit, group([0.1, 0.1, 0.1])) == [0.0, 0.0, 0.0]
    assert answers(credit, group([0.7])) == [0.0]


@pytest.mark.parametrize("credit", [GroupMean(), LeaveOneOut(), GroupStandardised()])
def test_groups_of_any_size_do_not_touch_one_another(credit):
    first, second = group([1.0, 0.0, 0.5]), group([3.0, 5.0], draw=1)
    together = answers(credit, first, second)
    assert together == answers(credit, first) + answers(credit, second)


def test_an_unscorable_episode_is_left_out_and_moves_no_statistic():
    # of the scored 1, 0, 0: mean 1/3
    found = answers(GroupMean(), group([1.0, None, 0.0, 0.0]))
    assert found == pytest.approx([2 / 3, NAN, -1 / 3, -1 / 3], nan_ok=True)
    assert answers(RewardItself(), group([None, 2.0])) == pytest.approx([NAN, 2.0], nan_ok=True)


def test_a_refused_group_gets_nothing_and_counts_nowhere():
    groups = (group([1.0, 0.0]), group([9.0, 9.0, 9.0], refused=True, draw=1))
    found = answers(BatchMean(), *groups)
    assert found == pytest.approx([0.5, -0.5, NAN, NAN, NAN], nan_ok=True)


def test_batch_mean_is_over_the_whole_step():
    found = answers(BatchMean(), group([1.0, 0.0]), group([4.0], draw=1))
    assert found == pytest.approx([-2 / 3, -5 / 3, 7 / 3])


def test_running_mean_uses_earlier_steps_only():
    credit, memory = RunningMean(), RememberMeanReward(decay=0.75)
    first, second = group([1.0, 0.0, None]), group([2.0], draw=1)
    assert answers(credit, first) == pytest.approx([1.0, 0.0, NAN], nan_ok=True)
    state = memory({}, [first], {})
    assert answers(credit, second, state=state) == pytest.approx([2.0 - 0.5])
    state = memory(state, [second], {})
    assert state[MEAN_REWARD].column("mean").to_pylist() == [0.75 * 0.5 + 0.25 * 2.0]
    unscored = group([None], draw=2)
    assert memory(state, [unscored], {}) == state
    assert memory({}, [unscored], {}) == {}


def test_forced_tokens_get_no_advantage():
    segments = [observed(2), sampled(3, forced=2), sampled(1)]
    columns = GroupMean()([group([1.0, 0.0], segments=segments)], {})["advantages"]
    np.testing.assert_array_equal(columns[1], np.array([NAN, NAN, 0.5], np.float32))


def test_a_shared_segment_gets_the_mean_of_the_episodes_that_pass_it():
    # a trunk of 3 tokens, branches to 1, 0 and unscorable; another answer without the trunk
    segments = [observed(2), sampled(3), sampled(1), sampled(2), sampled(4), sampled(5)]
    paths = [(0, 1, 2), (0, 1, 3), (0, 1, 4), (0, 5)]
    shared = group([1.0, 0.0, None, 0.5], segments=segments, paths=paths)
    found = answers(GroupMean(), shared)  # mean 0.5: +.5, -.5, none, 0
    assert found == pytest.approx([0.0, 0.5, -0.5, NAN, 0.0], nan_ok=True)


def test_segments_that_do_not_train_get_nothing_and_their_episodes_are_no_siblings():
    segments = [observed(2), sampled(1), sampled(2), sampled(3, trains=False)]
    found = answers(GroupMean(), group([1.0, 0.0, 10.0], segments=segments))
    assert found == pytest.approx([0.5, -0.5])


def test_seats_and_tags_are_compared_apart():
    segments = [observed(2), *(sampled(i + 1, seat="ab"[i % 2]) for i in range(4))]
    both = group([1.0, 10.0, 0.0, 30.0], segments=segments)
    assert answers(GroupMean(), both) == pytest.approx([0.5, -10.0, -0.5, 10.0])
    assert answers(GroupMean(by=()), both) == pytest.approx([-9.25, -0.25, -10.25, 19.75])
    tagged = group([1.0, 0.0, 5.0], tags=["x", "x", "y"])
    assert answers(GroupMean(by=("tag",)), tagged) == pytest.approx([0.5, -0.5, 0.0])


def test_truncated_episodes_count_in_the_mean_whatever_becomes_of_them():
    cut = group([1.0, 0.0, 0.0], stops=[Stop.COMPLETED, Stop.MAX_TOKENS, Stop.COMPLETED])
    assert answers(GroupMean(), cut) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    held = answers(GroupMean(truncated="no_loss"), cut)
    assert held == pytest.approx([2 / 3, 0.0, -1 / 3])
    left = answers(GroupMean(truncated="left_out"), cut)
    assert left == pytest.approx([2 / 3, NAN, -1 / 3], nan_ok=True)


def test_kl_in_the_reward():
    # k1 a token: -1.0 - -1.5 = +.5 over 2 tokens; -2.0 - -1.0 = -1 over 3 tokens
    segments = [
        observed(2),
        sampled(3, forced=1, old_logprobs=-1.0, ref_logprobs=-1.5),
        sampled(3, old_logprobs=-2.0, ref_logprobs=-1.0),
    ]
    pair = group([1.0, 0.0], segments=segments)
    # rewards 1 - .1 * 1 = .9 and 0 + .1 * 3 = .3
    assert answers(KLInReward(credit=RewardItself(), beta=0.1), pair) == pytest.approx([0.9, 0.3])
    credit = KLInReward(beta=0.1)
    assert answers(credit, pair) == pytest.approx([0.6, -0.6])  # leave one out
    assert credit.reads == {"old_logprobs", "ref_logprobs"}
    assert credit.min_group == 2
    unscored = group([1.0, None], segments=segments)
    found = answers(KLInReward(credit=RewardItself(), beta=0.1), unscored)
    assert found == pytest.approx([0.9, NAN], nan_ok=True)


def test_kl_in_the_reward_says_what_is_missing():
    with pytest.raises(ConfigError, match="ref_logprobs"):
        KLInReward()(
            [group([1.0, 0.0], segments=[observed(2)] + [sampled(2, old_logprobs=-1)] * 2)], {}
        )
    broken = [observed(2), *[sampled(2, old_logprobs=-1.0, ref_logprobs=NAN)] * 2]
    with pytest.raises(NumericsError, match="token 0 of segment 1 in group 0-0-0"):
        KLInReward()([group([1.0, 0.0], segments=broken)], {})


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: GroupStandardised(ddof=2), "population"),
        (lambda: GroupStandardised(eps=-1.0), ">= 0"),
        (lambda: GroupMean(by=("seats",)), "Did you mean 'seat'"),
        (lambda: LeaveOneOut(truncated="left"), "Did you mean 'left_out'"),
        (lambda: KLInReward(beta=0.0), "LeaveOneOut"),
        (lambda: KLInReward(credit=KLInReward()), "twice"),
        (lambda: RememberMeanReward(decay=1.0), "\\[0, 1\\)"),
    ],
)
def test_meaningless_parts_are_refused_with_a_remedy(make, remedy):
    with pytest.raises(ConfigError, match=remedy):
        make()


def test_an_empty_step_gives_an_empty_column():
    assert GroupMean()([], {}) == {"advantages": []}
    assert group_fixture.group([]).totals().size == 0
    assert len(GroupMean()([group([])], {})["advantages"]) == 1
