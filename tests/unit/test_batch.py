"""Rows from groups: provenance, sharing, splitting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.unit.build import group, random_groups, segment
from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.trainers.batch import build_rows, collate, count, split
from posttrain.types.episode import Group, Origin, Piece, Said, Span
from posttrain.types.message import Task
from posttrain.types.probe import View
from posttrain.types.term import Counts, ModelOut, Stats, Term, TermOut, TokenBatch


@dataclass(frozen=True)
class Plain(Term):
    """Minus the log-prob times the advantage."""

    @property
    @override
    def reads(self):
        return frozenset({"advantages"})

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None):
        weights = batch.loss_mask.to(model.policy_logprobs.dtype) / counts.tokens
        return TermOut(-model.policy_logprobs * batch.column("advantages"), weights)


@dataclass(frozen=True)
class Imitate(Plain):
    tokens = "given"

    @property
    @override
    def reads(self):
        return frozenset()


@dataclass(frozen=True)
class Bare(View):
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        return (Said("user", task.prompt),)


@dataclass(frozen=True)
class PlainUnderBare(Plain):
    @property
    @override
    def view(self):
        return Bare()


def rows_of(groups, term=None):
    return build_rows(groups, (term or Plain(),), model="policy")


def test_two_turns_share_one_row_and_only_sampled_tokens_train():
    g = group(
        [
            segment([1, 2, 3], sampled=False),
            segment([4, 5], context=[(0, 3)], advantage=1.0),
            segment([6, 7, 8, 9], context=[(0, 3), (1, 2)], sampled=False, turn=1),
            segment([10, 11], context=[(0, 3), (1, 2), (2, 4)], advantage=-1.0),
        ],
        [(0, 1, 2, 3)],
    )
    (row,) = rows_of([g])
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert row.loss_mask.astype(int).tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert row.columns["advantages"][[3, 4, 9, 10]].tolist() == [1, 1, -1, -1]
    assert np.isnan(row.columns["advantages"][[0, 5]]).all()
    assert row.segment.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3]


def test_rewritten_history_opens_a_second_row():
    # turn 1 thinks (30 31) and says 40; the template then shows only 40
    g = group(
        [
            segment([1], sampled=False),
            segment([30, 31, 40], context=[(0, 1)], advantage=1.0),
            segment([1, 40, 2], sampled=False, turn=1),
            segment([50], context=[(2, 3)], advantage=1.0),
        ],
        [(0, 1, 2, 3)],
    )
    first, second = rows_of([g])
    trained = [r.ids[r.loss_mask].tolist() for r in (first, second)]
    assert trained == [[30, 31, 40], [50]]
    assert second.ids.tolist() == [1, 40, 2, 50]
    assert count([first, second]) == Counts(tokens=4, rows=2, episodes=1, groups=1)
    batch = collate([first], all_rows=[first, second])
    assert batch.episode_tokens.tolist() == [4]
    assert batch.row_tokens.tolist() == [3]


def test_a_prefix_shared_by_a_tree_is_trained_once():
    g = group(
        [
            segment([1, 2], sampled=False),
            segment([3, 4, 5], context=[(0, 2)], advantage=0.5),
            segment([6, 7], context=[(0, 2), (1, 3)], advantage=1.0),
            segment([8], context=[(0, 2), (1, 3)], advantage=-1.0),
            segment([9, 10], context=[(0, 2), (1, 2)], advantage=2.0),
        ],
        [(0, 1, 2), (0, 1, 3), (0, 1, 4)],
    )
    rows = rows_of([g])
    trained = sorted(i for r in rows for i in r.ids[r.loss_mask].tolist())
    assert trained == [3, 4, 5, 6, 7, 8, 9, 10]
    by_last = {r.ids.tolist()[-1]: r.ids.tolist() for r in rows}
    assert by_last[8] == [1, 2, 3, 4, 5, 8]
    assert by_last[10] == [1, 2, 3, 4, 9, 10]  # cut after two tokens of the prefix


def test_unscored_refused_and_untrained_segments_give_no_loss():
    unscored = group([segment([1], sampled=False), segment([2, 3], context=[(0, 1)])], [(0, 1)])
    refused = group(
        [segment([1], sampled=False), segment([2], context=[(0, 1)], advantage=1.0)],
        [(0, 1)],
        refused=True,
    )
    other = group(
        [segment([1], sampled=False), segment([2], context=[(0, 1)], advantage=1.0, model="foe")],
        [(0, 1)],
    )
    assert rows_of([unscored, refused, other]) == []


def test_given_tokens_train_only_for_a_term_that_imitates():
    given = segment(
        [5, 6],
        context=[(0, 2)],
        sampled=False,
        trains=True,
        origin=Origin.GIVEN,
        model="policy",
    )
    g = group([segment([1, 2], sampled=False), given], [(0, 1)])
    assert rows_of([g]) == []
    (row,) = rows_of([g], Imitate())
    assert row.loss_mask.tolist() == [False, False, True, True]


def test_a_view_with_messages_needs_a_renderer_and_uses_its_tokens():
    g = group(
        [segment([1, 2], sampled=False), segment([5, 6], context=[(0, 2)], advantage=1.0)], [(0, 1)]
    )
    with pytest.raises(ConfigError, match="user"):
        rows_of([g], PlainUnderBare())
    (row,) = build_rows(
        [g], (PlainUnderBare(),), model="policy", render=lambda *_: np.array([7, 7, 7])
    )
    assert row.ids.tolist() == [7, 7, 7, 5, 6]
    assert row.loss_mask.tolist() == [False] * 3 + [True, True]


def test_a_trained_token_with_nothing_before_it_is_refused():
    g = group([segment([5, 6], advantage=1.0)], [(0,)])
    with pytest.raises(DataError, match="nothing comes before"):
        rows_of([g])


def test_split_keeps_the_budget_and_a_groups_rows_together():
    rows = rows_of(random_groups(5, size=3))
    batches = split(rows, max_tokens=30, reach="token")
    assert sorted(map(id, (r for b in batches for r in b))) == sorted(map(id, rows))
    for batch in batches:
        assert max(r.num_tokens for r in batch) * len(batch) <= 30
    together = split(rows, max_tokens=30, reach="group")
    for g in range(5):
        assert sum(any(r.group == g for r in b) for b in together) == 1


def test_spans_compare_by_tokens_kept():
    assert Span(1, 2) != Span(1, 3)
