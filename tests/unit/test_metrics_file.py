"""docs/metrics.md defines what is emitted, all of it and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.unit.loop_kit import Heard, Letters, loop_of, run_of
from typing_extensions import override

from posttrain.methods import METHODS, PAPER_ARGUMENTS, grpo
from posttrain.parts.correction import TruncatedWeight
from posttrain.parts.terms import EntropyBonus, PolicyGradient
from posttrain.parts.trust import DualClip
from posttrain.types.events import Evaluated, StepFinished
from posttrain.types.models import AdamW, Frozen, Trained
from posttrain.types.run import Evaluation, Phase, Steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"


def documented() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [row.split("`")[1] for row in rows]


def pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w+>", "[^/]+", name))


def undefined(names) -> set[str]:
    patterns = [pattern(name) for name in documented()]
    return {n for n in names if not any(p.fullmatch(n) for p in patterns)}


@dataclass(frozen=True)
class Answered(Letters):
    """Letters with an answer to imitate."""

    @override
    def draw(self, state, n, rng):
        return [replace(t, columns={"completion": "ab"}) for t in super().draw(state, n, rng)]


def preset(name):
    arguments = dict(PAPER_ARGUMENTS.get(name, {}))
    if "group_size" in inspect.signature(METHODS[name]).parameters:
        arguments["group_size"] = 2
    return METHODS[name](**arguments)


def corrected():
    """Terms that no preset has."""
    method = grpo(group_size=2)
    policy = PolicyGradient(trust=DualClip(), correction=TruncatedWeight())
    terms = (policy, *method.terms["policy"][1:], EntropyBonus(coef=0.01))
    return replace(method, name="corrected", terms={"policy": terms})


def emitted(method, folder) -> set[str]:
    plan = Evaluation(source=Letters(), every=0, num_tasks=2, samples=2)
    phase = Phase(method=method, source=Answered(), until=Steps(1), evaluation=plan)
    policy = Trained(path="-", optimiser=AdamW(lr=1e-3), compute="float32")
    needed = {p.model for p in method.probes} - {"policy"}
    models = {"policy": policy} | {name: Frozen(compute="float32") for name in needed}
    heard = Heard()
    loop_of(run_of(method, phases=(phase,), models=models), folder, emit=heard).fit(resume=False)
    events = [*heard.of(StepFinished), *heard.of(Evaluated)]
    assert len(events) == 2
    return {name for event in events for name in event.metrics}


def one_model(name) -> bool:
    return list(preset(name).terms) == ["policy"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    methods = [preset(name) for name in METHODS if one_model(name)]
    return {
        method.name: emitted(method, tmp_path_factory.mktemp(method.name))
        for method in (*methods, corrected())
    }


def test_every_emitted_name_is_defined(everything):
    assert {name: undefined(names) for name, names in everything.items() if undefined(names)} == {}


def test_every_defined_name_can_be_emitted(everything):
    ran = set().union(*everything.values())
    written = literals()
    unknown = [
        name
        for name in documented()
        if not any(pattern(name).fullmatch(n) for n in ran)
        and not any(pattern(name).fullmatch(w) or w == re.sub(r"<\w+>", "*", name) for w in written)
    ]
    assert unknown == []


def test_a_name_is_defined_once():
    names = documented()
    assert len(names) > 50
    assert sorted(set(names)) == sorted(names)
    assert undefined({"reward", "rewards/a/mean", "rewards/a/b/mean", "nothing"}) == {
        "rewards/a/b/mean", "nothing"}  # fmt: skip


def literals() -> set[str]:
    """Strings in the code that emits metrics; what is put into one is ``*``."""
    found = set()
    for folder in ("trainers", "parts"):
        for path in (ROOT / "src" / "posttrain" / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "*" for v in node.values)
                    found.add("".join(map(str, parts)))
    return found
