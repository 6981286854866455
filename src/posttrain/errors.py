"""Every exception the library raises on purpose.

PosttrainError
├── ConfigError(ValueError)        a run, part or option cannot mean what was written
├── DataError(ValueError)          rows, columns, prompts or files that cannot be used
├── TemplateError(ValueError)      template, end token or padding that would train wrongly
├── VerifierError(RuntimeError)    nothing could be graded; the sample is unscorable, never 0
├── EnvError(RuntimeError)         an environment failed; the fault is not the policy's
├── EngineError(RuntimeError)      sampling or scoring failed
├── NumericsError(ArithmeticError) NaN or infinity where a trained token needs a number
├── CheckpointError(RuntimeError)  a checkpoint is missing, damaged or of another run
├── DeadlineError(TimeoutError)    a wait passed its deadline; the message names what was awaited
├── MissingExtraError(ImportError) an optional dependency is not installed; names the extra
└── InternalError(RuntimeError)    an invariant of the library broke: a bug to report

A message says what was wrong, what is allowed, what came, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PosttrainError(Exception):
    """Root of the tree; the command line prints it as one line and exits with 2."""


class ConfigError(PosttrainError, ValueError):
    """A run, part or option cannot mean what was written."""


class DataError(PosttrainError, ValueError):
    """Rows, columns, prompts or files that cannot be used."""


class TemplateError(PosttrainError, ValueError):
    """A chat template, end token or padding set-up that would train wrongly."""


class VerifierError(PosttrainError, RuntimeError):
    """Nothing could be graded; the sample becomes unscorable and is never scored 0."""


class EnvError(PosttrainError, RuntimeError):
    """An environment failed; the fault is not the policy's."""


class EngineError(PosttrainError, RuntimeError):
    """Sampling or scoring failed."""


class NumericsError(PosttrainError, ArithmeticError):
    """NaN or infinity where a trained token needs a number."""


class CheckpointError(PosttrainError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to another run."""


class DeadlineError(PosttrainError, TimeoutError):
    """A wait passed its deadline."""


class MissingExtraError(PosttrainError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f'Install it with: pip install "posttrain[{extra}]"'
        )


class InternalError(PosttrainError, RuntimeError):
    """An invariant of the library broke: a bug to report."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name, else an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
