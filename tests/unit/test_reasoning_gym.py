"""Tasks of reasoning-gym: splits that share nothing, prompts, and the data sets' own scores."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from posttrain.data.baselines import best_constant
from posttrain.data.reasoning_gym import ReasoningGym
from posttrain.errors import ConfigError, DataError, MissingExtraError, VerifierError
from posttrain.rewards.gym_score import runs_code, score
from posttrain.rewards.isolation import shared_workers
from posttrain.rewards.reasoning_gym import GymAnswer
from posttrain.types.episode import Episode, Group, Origin, Segment, Verdict
from posttrain.types.message import Task

pytest.importorskip("reasoning_gym")
RNG = np.random.default_rng(0)
TINY = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}


def draw(source, n, *, before=0):
    state = {"draws": pa.table({"count": [before]})}
    return source.draw(state, n, RNG)


def questions(tasks):
    return [t.columns["question"] for t in tasks]


def test_splits_and_examples_share_no_question_even_in_a_small_space():
    train = ReasoningGym(names=("chain_sum",), options=TINY, num_held_out=40, num_examples=3)
    held_out = replace(train, split="held_out")
    held = questions(draw(held_out, 40))
    assert len(set(held)) == 40
    seen = questions(draw(train, 300))
    shown = {m.content.split("\n")[0] for m in draw(train, 1)[0].prompt[:-1] if m.role == "user"}
    assert len(shown) == 3
    assert not set(held) & set(seen)
    assert not shown & {q.split("\n")[0] for q in (*held, *seen)}
    assert len(set(seen)) > 30


def test_held_out_tasks_do_not_depend_on_the_seed_and_training_tasks_do():
    source = ReasoningGym(names=("basic_arithmetic",), num_held_out=5)
    other = replace(source, seed=1)
    assert questions(draw(source, 4)) != questions(draw(other, 4))
    held = [replace(s, split="held_out") for s in (source, other)]
    assert draw(held[0], 5) == draw(held[1], 5)


def test_a_draw_depends_on_what_came_before_alone():
    source = ReasoningGym(names=("basic_arithmetic", "chain_sum"), num_tasks=7, num_held_out=0)
    whole = draw(source, 20)
    again = [*draw(source, 3), *draw(source, 17, before=3)]
    assert again == whole
    assert [t.id for t in whole[:7]] == [t.id for t in whole[7:14]]
    names = [t.columns["dataset"] for t in whole[:7]]
    assert (names.count("basic_arithmetic"), names.count("chain_sum")) == (4, 3)


def test_a_prompt_shows_solved_problems_of_its_own_data_set():
    source = ReasoningGym(
        names=("chain_sum", "spell_backward"),
        num_examples=2,
        num_held_out=2,
        instruction="End with Answer:",
        answer_format="Answer: {answer}",
        split="held_out",
    )
    for task in draw(source, 2):
        assert [m.role for m in task.prompt] == ["user", "assistant"] * 2 + ["user"]
        assert task.prompt[-1].content == f"{task.columns['question']}\nEnd with Answer:"
        assert task.prompt[1].content.startswith("Answer: ")
        backward = task.columns["dataset"] == "spell_backward"
        assert all(("backward" in m.content) is backward for m in task.prompt[::2])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"names": ()}, ConfigError, "names must be"),
        ({"names": ("chain_sum", "chain_sum")}, ConfigError, "names must be"),
        ({"num_tasks": 0}, ConfigError, "num_tasks must be"),
        ({"answer_format": "x"}, ConfigError, "answer_format"),
        ({"options": {"chain_sun": {}}}, ConfigError, "'chain_sum'"),
        ({"names": ("chain_sums",)}, ConfigError, "Did you mean 'chain_sum'"),
        ({"options": {"chain_sum": {"max_term": 3}}}, ConfigError, "Did you mean 'max_terms'"),
        ({"options": {"chain_sum": {"max_terms": -3}}}, ConfigError, "refuses"),
        ({"split": "held_out", "num_held_out": 0}, DataError, "num_held_out is 0"),
        ({"options": TINY, "num_held_out": 2000}, DataError, "too few different problems"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes, error, words):
    with pytest.raises(error, match=words):
        draw(ReasoningGym(**{"names": ("chain_sum",), **changes}), 1)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"posttrain\[tasks\]"):
        draw(ReasoningGym(names=("chain_sum",)), 1)
    with pytest.raises(MissingExtraError, match=r"posttrain\[tasks\]"):
        graded(GymAnswer(), Task(id="t", prompt="p", columns=dict.fromkeys(COLUMNS, 0)), "x")


COLUMNS = ("dataset", "options", "seed", "index", "size", "question")


def graded(verifier, task, *responses):
    segments = tuple(
        Segment(
            ids=np.zeros(1, np.int32),
            action_mask=np.ones(1, bool),
            rollout_logprobs=np.zeros(1, np.float32),
            version=np.zeros(1, np.int32),
            origin=Origin.SAMPLED,
            text=r,
        )
        for r in responses
    )
    episodes = tuple(Episode(episode_id=str(i), segments=(i,)) for i in range(len(responses)))
    group = Group(key=(0, 0, 0), task=task, segments=segments, episodes=episodes)
    return verifier.grade(task, group, range(len(responses)))


@pytest.fixture(scope="module")
def _warm():
    shared_workers(preload="reasoning_gym").call("operator:neg", 1, deadline_s=60)


@pytest.mark.usefixtures("_warm")
def test_answers_get_the_score_of_the_data_set():
    source = ReasoningGym(names=("countdown",), num_held_out=1, verifiers={"g": GymAnswer()})
    task = draw(source, 1)[0]
    assert task.verifiers == ("g",)
    responses = (f"So <answer>{task.gold}</answer>", "<answer>1+1</answer>", f"{task.gold}", "")
    rows = graded(source.verifiers["g"], task, *responses)
    assert [r.value for r in rows] == [1.0, 0.05, 0.0, 0.0]
    assert [r.verdict for r in rows] == [Verdict.GRADED] * 2 + [Verdict.NO_ANSWER] * 2
    assert rows[0].answer == task.gold
    assert "reasoning-gym" in rows[0].note
    whole = graded(GymAnswer(partial=False, weight=2.0), task, *responses[:2])
    assert [(r.value, r.weight) for r in whole] == [(1.0, 2.0), (0.0, 2.0)]


@pytest.mark.usefixtures("_warm")
def test_a_problem_that_cannot_be_made_again_is_unscorable():
    task = draw(ReasoningGym(names=("chain_sum",), num_held_out=0), 1)[0]
    changed = replace(task, columns={**task.columns, "question": "another?"})
    with pytest.raises(VerifierError, match="another problem"):
        graded(GymAnswer(), changed, "<answer>1</answer>")
    with pytest.raises(VerifierError, match="has no columns"):
        graded(GymAnswer(), Task(id="t", prompt="p"), "<answer>1</answer>")


@pytest.mark.parametrize(
    ("name", "answer", "runs"),
    [
        ("countdown", "(3 + 4) * 5 - 6/2", False),
        ("countdown", "open('x','w')", True),
        ("countdown", "open('x')!", True),
        ("countdown", "(1).__class__", True),
        ("countdown", "[x for x in (1,)]", True),
        ("countdown", "lambda: 1", True),
        ("countdown", "sqrt('open(1)')", True),
        ("simple_integration", "x**2/2 + sin(x) + C", False),
        ("polynomial_multiplication", "preview(x)", True),
        ("n_queens", "[['Q', '_'], ['_', 'Q']]", False),
        ("n_queens", "exec('1')", True),
        ("spiral_matrix", "1 2 3", False),
        ("chain_sum", "open('x')", False),
    ],
)
def test_answers_that_would_run_are_known(name, answer, runs):
    assert runs_code(name, answer) is runs


def test_code_in_an_answer_is_wrong_and_not_run(tmp_path):
    task = draw(ReasoningGym(names=("countdown",), num_held_out=0), 1)[0]
    answer = f"open({str(tmp_path / 'made')!r}, 'w').close() or {task.gold}"
    found = score({c: task.columns[c] for c in COLUMNS}, answer)
    assert found == {"score": 0.0, "how": "wrong: code in an answer is not run"}
    assert not (tmp_path / "made").exists()


def test_best_constant_counts_golds():
    tasks = [
        Task(id=str(i), prompt="p", gold=g) for i, g in enumerate(["3", "1", "3", "2", "1", "3"])
    ]
    assert best_constant(tasks) == ("3", 0.5)
    assert best_constant(tasks[1:2]) == ("1", 1.0)
    for bad in ([], [Task(id="a", prompt="p")]):
        with pytest.raises(DataError, match="gold answers"):
            best_constant(bad)
