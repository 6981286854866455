"""Chains: hand-worked answers, splits that cannot overlap, and what a constant answer scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from posttrain.data.chains import (
    LONG,
    SHORT,
    STANDARD,
    STEPS,
    WIDE,
    ChainLevel,
    ChainProblem,
    constant_answer_accuracy,
    demonstrate,
    direct_solution,
    draw_problem,
    draw_problems,
    final_answer,
    is_correct,
    is_worked,
    max_solution_chars,
    split_of,
    worked_solution,
)
from posttrain.errors import ConfigError, DataError

LEVELS = [STEPS, SHORT, STANDARD, LONG, WIDE]


@pytest.mark.parametrize(
    ("operands", "operators", "modulus", "question", "worked", "answer"),
    [
        ((3, 5, 6), "-+", 7, "3-5+6", "3-5=5,5+6=4", "4"),
        ((6, 6), "+", 7, "6+6", "6+6=5", "5"),
        ((0, 1, 1, 6), "--+", 7, "0-1-1+6", "0-1=6,6-1=5,5+6=4", "4"),
        ((9, 10, 10), "-+", 11, "9-10+10", "9-10=10,10+10=9", "9"),
    ],
)
def test_hand_worked(operands, operators, modulus, question, worked, answer):
    problem = ChainProblem(operands, operators, modulus)
    assert problem.question == question
    assert worked_solution(problem) == worked
    assert problem.answer == answer
    assert direct_solution(problem) == f"={answer}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3-5=5,5+6=4", "4"),
        ("=4", "4"),
        ("= 4 ", "4"),
        ("3-5=5,5+6=", ""),
        ("4", None),
        ("", None),
        ("3-5=5=4", "4"),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize("text", ["=4x", "=04", "=-3", "=11", "4", "", "=4,5+6", "=4=", "=٤"])
def test_only_the_exact_answer_is_correct(text):
    assert not is_correct(text, "4")


def test_wrong_steps_do_not_cost_the_answer():
    assert is_correct("3-5=0,0+6=4", "4")


@pytest.mark.parametrize(("text", "worked"), [("=4", False), ("3-5=5", True), ("4", False)])
def test_is_worked(text, worked):
    assert is_worked(text) is worked


@pytest.mark.parametrize("level", LEVELS)
def test_every_demonstration_is_correct_and_fits(level):
    rng = np.random.default_rng(3)
    longest = max_solution_chars(level)
    for problem in draw_problems(rng, level, 300, split="train"):
        for text in (worked_solution(problem), direct_solution(problem)):
            assert is_correct(text, problem.answer)
            assert len(text) <= longest
        for step in worked_solution(problem).split(","):
            left, right = step.split("=")
            assert (eval(left) - int(right)) % problem.modulus == 0


def test_longest_solution():
    assert max_solution_chars(STANDARD) == 4 * 5 + 3 == len("0+1=1,1+2=3,3+3=6,6-4=2")
    assert max_solution_chars(WIDE) == 5 * 8 + 4  # every operand and result of two characters
    assert max_solution_chars(STEPS) == 5


def test_share_of_worked_demonstrations():
    rng = np.random.default_rng(0)
    problem = ChainProblem((3, 5, 6), "-+", 7)
    texts = [demonstrate(problem, rng, worked_share=0.3) for _ in range(2000)]
    share = sum(is_worked(t) for t in texts) / len(texts)
    assert abs(share - 0.3) < 0.04  # 4 standard errors
    assert demonstrate(problem, rng, worked_share=1.0) == "3-5=5,5+6=4"
    assert demonstrate(problem, rng, worked_share=0.0) == "=4"
    with pytest.raises(ConfigError, match=r"worked_share must be in \[0, 1\], got 25"):
        demonstrate(problem, rng, worked_share=25)


def test_the_same_seed_draws_the_same_problems():
    first = draw_problems(np.random.default_rng(5), STANDARD, 40, split="train")
    assert first == draw_problems(np.random.default_rng(5), STANDARD, 40, split="train")
    assert first != draw_problems(np.random.default_rng(6), STANDARD, 40, split="train")


def test_splits_never_overlap_even_between_levels():
    train = draw_problems(np.random.default_rng(1), SHORT, 5000, split="train")
    held = draw_problems(np.random.default_rng(1), STANDARD, 500, split="heldout", distinct=True)
    assert not {p.question for p in train} & {p.question for p in held}
    assert len({p.question for p in held}) == 500


def test_the_split_is_the_same_on_every_machine():
    questions = ("3-5+6", "1+1", "6-0-6", "2+3-4+5")
    assert [split_of(q) for q in questions] == ["train", "train", "heldout", "train"]


def test_one_question_in_ten_is_held_out():
    questions = [draw_problem(np.random.default_rng(i), STANDARD).question for i in range(4000)]
    share = sum(split_of(q) == "heldout" for q in questions) / len(questions)
    assert 0.08 < share < 0.12


def test_lengths_and_residues_are_drawn_evenly():
    rng = np.random.default_rng(2)
    problems = [draw_problem(rng, STANDARD) for _ in range(6000)]
    lengths = np.bincount([len(p.operands) for p in problems], minlength=6)[3:]
    assert np.all(np.abs(lengths - 2000) < 4 * np.sqrt(2000))
    operands = np.bincount([v for p in problems for v in p.operands])
    assert len(operands) == 7
    assert operands.min() > 0.94 * operands.mean()


def test_a_constant_answer_scores_one_in_modulus():
    every = [
        ChainProblem(values, "".join(signs), 7)
        for values in itertools.product(range(7), repeat=3)
        for signs in itertools.product("+-", repeat=2)
    ]
    assert constant_answer_accuracy(every) == 1 / 7
    held = draw_problems(np.random.default_rng(0), STANDARD, 1000, split="heldout", distinct=True)
    assert 1 / 7 <= constant_answer_accuracy(held) < 0.19


def test_constant_answer_counts_by_hand():
    problems = [ChainProblem((a, b), "+", 7) for a, b in [(1, 1), (2, 0), (3, 3)]]
    assert constant_answer_accuracy(problems) == 2 / 3  # 2, 2, 6
    with pytest.raises(DataError, match="at least one problem"):
        constant_answer_accuracy([])


def test_asking_for_more_distinct_problems_than_there_are():
    with pytest.raises(DataError, match=r"asked for 90 distinct heldout chains, found \d+ in"):
        draw_problems(np.random.default_rng(0), STEPS, 90, split="heldout", distinct=True)


@pytest.mark.parametrize("lengths", [(), (1,), (0, 3)])
def test_levels_without_steps_are_refused(lengths):
    with pytest.raises(ConfigError, match="each 2 or more"):
        ChainLevel(num_operands=lengths)


def test_modulus_one_is_refused():
    with pytest.raises(ConfigError, match="every answer is 0"):
        ChainLevel(num_operands=(3,), modulus=1)


@pytest.mark.parametrize(
    ("operands", "operators", "message"),
    [
        ((3,), "", "two or more operands"),
        ((3, 4), "+-", "one operator between each pair"),
        ((3, 4), "*", r"operators are '\+' and '-'"),
        ((3, 7), "+", r"operands are 0 \.\. 6"),
        ((-1, 3), "+", r"operands are 0 \.\. 6"),
    ],
)
def test_chains_that_cannot_be_read(operands, operators, message):
    with pytest.raises(DataError, match=message):
        ChainProblem(operands, operators, 7)
