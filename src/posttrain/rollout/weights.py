"""Weights an engine takes: which version, which names, and noise that can be drawn again."""

from __future__ import annotations

from posttrain.errors import EngineError


def check_version(model: str, version: int, present: int) -> None:
    """Refuse weights older than those in use.

    Raises:
        EngineError: If ``version`` is lower than ``present``.
    """
    if version < present:
        raise EngineError(
            f"the engine holds version {present} of the model {model!r} and was given version "
            f"{version}. Versions never go down: samples would carry the wrong one. Close the "
            "engine and build a new one to go back."
        )
