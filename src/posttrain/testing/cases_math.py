"""Cases of the kind ``math_verifier``: the default verifier, with the options a case names."""

from __future__ import annotations

import threading
from typing import Any

from posttrain.errors import VerifierError
from posttrain.rewards.extract import Accept
from posttrain.rewards.math import MathAnswer
from posttrain.testing.case_file import AtMost, Facts, Given, NotYetError
from posttrain.testing.measure import measured

KINDS = ("numeric", "text", "multiple_choice")
_WARM = threading.Lock()
_warmed: list[bool] = []


def adapter(given: Given, _expected: Given) -> Facts:
    """Facts of one case."""
    if "judge_output" in given:
        raise NotYetError("the library has no parser of a judge's reply")
    gold, response = str(given["gold"]), str(given["response"])
    verifier = _verifier(given)
    _warm_up()
    main = measured(lambda: _verdict(verifier, gold, response))
    correct, status = main.value
    facts: dict[str, Any] = {
        "raises": False,
        "status": status,
        "max_seconds": AtMost(main.seconds),
        "max_wall_s": AtMost(main.seconds),
        "max_extra_mb": AtMost(main.extra_mb),
        "symmetric": lambda: _swapped(verifier, gold, response) == (correct, status),
    }
    if correct is not None:
        facts["correct"] = correct
    if "run_in" in given and _elsewhere(given, verifier, gold, response) != (correct, status):
        facts["correct"] = f"{correct} here, another verdict in a {given['run_in']}"
    return facts


def _verifier(given: Given) -> MathAnswer:
    kind = str(given.get("answer_type", "auto"))
    if kind not in (*KINDS, "auto"):
        raise NotYetError(f"unknown answer_type {kind!r}")
    extraction = given.get("extraction")
    if extraction not in (None, "final statement"):
        raise NotYetError(f"unknown extraction {extraction!r}")
    assumed = str(given.get("assume", "real"))
    if not any(sign in assumed for sign in (">", "<", "real", "positive", "integer")):
        raise NotYetError(f"unknown assume {assumed!r}")  # symbols are real throughout
    return MathAnswer(
        kind=kind,
        choices=tuple(given.get("choices", "ABCD")),
        accept=Accept.MARKED if extraction is None else Accept.STATEMENT,
    )


def _verdict(verifier: MathAnswer, gold: str, response: str) -> tuple[bool | None, str]:
    """The verdict, and the status under the library's own name."""
    try:
        judged = verifier.judge(gold, response)
    except VerifierError:
        return None, "unscorable"
    return judged.correct, str(judged.verdict)


def _swapped(verifier: MathAnswer, gold: str, response: str) -> tuple[bool | None, str]:
    return _verdict(verifier, verifier.extract(response), f"\\boxed{{{gold}}}")


def _elsewhere(
    given: Given, verifier: MathAnswer, gold: str, response: str
) -> tuple[bool | None, str]:
    """The verdict in another thread."""
    if "thread" not in str(given["run_in"]):
        raise NotYetError(f"unknown run_in {given['run_in']!r}")
    found: list[tuple[bool | None, str]] = []
    thread = threading.Thread(target=lambda: found.append(_verdict(verifier, gold, response)))
    thread.start()
    thread.join()
    return found[0] if found else (None, "the thread raised")


def _warm_up() -> None:
    """One comparison that needs algebra, so that a worker is running when time is taken."""
    with _WARM:
        if not _warmed:
            _warmed.append(MathAnswer(deadline_s=60.0).judge("x+1", "\\boxed{1+x}").correct is True)
