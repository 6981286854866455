"""Run a file of cases: ``python -m posttrain.testing.cases FILE [--kind KIND] [--only TEXT]``.

One line a case, then a count a kind. The exit code is 1 if a case failed, 2 for a file that cannot
be read; a case that is not yet checked does not fail the run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence

from posttrain.errors import DataError
from posttrain.testing.case_file import (
    Adapter,
    Case,
    Facts,
    Given,
    NotYetError,
    Result,
    Status,
    check,
    read_cases,
)

MODULES: Mapping[str, str] = {
    "math_verifier": "posttrain.testing.cases_math",
    "loss_numerics": "posttrain.testing.cases_loss",
    "token_mask": "posttrain.testing.cases_tokens",
    "code_sandbox": "posttrain.testing.cases_code",
    "robustness": "posttrain.testing.cases_run",
}
"""By kind: the module whose ``adapter`` runs it."""


def adapter_of(kind: str) -> Adapter:
    """The adapter of a kind; one that says so where there is none."""
    module = MODULES.get(kind)
    if module is None or importlib.util.find_spec(module) is None:
        return _missing(kind)
    return importlib.import_module(module).adapter


def _missing(kind: str) -> Adapter:
    def adapter(given: Given, expected: Given) -> Facts:
        del given, expected
        raise NotYetError(f"no adapter for cases of the kind {kind!r}")

    return adapter


def run_cases(cases: Sequence[Case]) -> list[Result]:
    """The results, in order, each printed as it comes."""
    results = []
    for case in cases:
        started = time.monotonic()
        result = check(case, adapter_of(case.kind))
        results.append(result)
        seconds = time.monotonic() - started
        _say(f"{result.status:8} {case.id}{_because(result.notes)} ({seconds:.1f} s)")
    return results


def _because(notes: Sequence[str]) -> str:
    return f": {'; '.join(notes)}" if notes else ""


def summary(results: Sequence[Result]) -> str:
    """Counts by kind."""
    kinds = sorted({r.case.kind for r in results})
    lines = []
    for kind in (*kinds, "all"):
        statuses = [r.status for r in results if kind in (r.case.kind, "all")]
        counts = ", ".join(f"{statuses.count(s)} {s}" for s in Status)
        lines.append(f"{kind:15} {len(statuses):4}: {counts}")
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a file of cases and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m posttrain.testing.cases", description=__doc__)
    parser.add_argument("file", help="JSON lines with id, kind, input and expected")
    parser.add_argument("--kind", default="", help=f"one of {', '.join(MODULES)}")
    parser.add_argument("--only", default="", help="run cases whose id holds this text")
    options = parser.parse_args(arguments)
    try:
        cases = read_cases(options.file)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    chosen = [c for c in cases if options.kind in ("", c.kind) and options.only in c.id]
    results = run_cases(chosen)
    _say(summary(results))
    return int(any(r.status is Status.FAILED for r in results))


if __name__ == "__main__":
    sys.exit(main())
