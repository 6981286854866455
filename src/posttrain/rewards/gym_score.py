"""The score of one answer by a reasoning-gym data set's own rule: runs in a grading process."""

from __future__ import annotations

import ast
from functools import lru_cache
from importlib.metadata import version
from json import dumps, loads
from typing import Any

_AS_LITERAL = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
"""Data sets whose rule evaluates answers that read as Python."""
_AS_ALGEBRA = frozenset(
    {"simple_integration", "intermediate_integration", "polynomial_multiplication", "countdown",
     "puzzle24"}
)  # fmt: skip
"""Data sets whose rule hands answers to sympy's parser, which evaluates them as Python."""
_FUNCTIONS = frozenset(
    {"sqrt", "exp", "log", "ln", "sin", "cos", "tan", "cot", "sec", "csc", "asin",
     "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "Abs"}
)  # fmt: skip
_HARMLESS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Load, ast.UnaryOp, ast.USub,
    ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow,
    ast.BitXor, ast.Name,
)  # fmt: skip


def score(problem: dict[str, Any], answer: str) -> dict[str, object]:
    """``{"score", "how"}``; ``{"changed": reason}`` when the problem cannot be made again."""
    name = problem["dataset"]
    dataset = _dataset(name, dumps(problem["options"]), problem["seed"], problem["size"])
    entry = dataset[problem["index"]]
    how = f"scored by reasoning-gym {version('reasoning-gym')}"
    if entry["question"] != problem["question"]:
        return {"changed": f"{how} makes another problem from its seed than the task holds."}
    if runs_code(name, answer):
        return {"score": 0.0, "how": "wrong: code in an answer is not run"}
    return {"score": float(dataset.score_answer(answer, entry)), "how": how}


def runs_code(name: str, answer: str) -> bool:
    """Whether the data set's rule would evaluate more than literals and arithmetic."""
    if name not in _AS_LITERAL | _AS_ALGEBRA:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return name in _AS_ALGEBRA
    return not all(_harmless(node, texts=name in _AS_LITERAL) for node in ast.walk(tree))


def _harmless(node: ast.AST, *, texts: bool) -> bool:
    if isinstance(node, ast.Constant):  # sympy's functions evaluate texts they are given
        return texts or isinstance(node.value, int | float | complex)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    return isinstance(node, _HARMLESS)


@lru_cache(maxsize=16)
def _dataset(name: str, options: str, seed: int, size: int) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(name, seed=seed, size=size, **loads(options))
