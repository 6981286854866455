"""What a request asks of any engine: what it may use, how long it may go on, when it stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from posttrain.errors import ConfigError, EngineError, nearest
from posttrain.types.engine import Capability, SampleRequest, ScoreItem
from posttrain.types.episode import Stop
from posttrain.types.probe import Entropy, GradNorm, Hidden, TopK, Value

Decoder: TypeAlias = Callable[[Sequence[int]], str]
"""Text of token ids."""

_MOST_BYTES = 4
"""Bytes of a character in UTF-8, at most: a token may hold as little as one of them."""
_SPARE_TOKENS = 8
"""Tokens beyond those, for special tokens without text."""


_NEEDS: dict[type, Capability] = {
    TopK: "topk",
    Entropy: "entropy",
    Value: "value",
    Hidden: "hidden",
    GradNorm: "grad_norm",
}


def check_requests(
    requests: Sequence[SampleRequest],
    *,
    models: Collection[str],
    decoders: Collection[str],
    capabilities: Collection[Capability],
) -> None:
    """Refuse what an engine with these models, text decoders and capabilities cannot draw.

    Raises:
        EngineError: For a model it does not hold.
        ConfigError: For a decode setting it cannot keep.
    """
    for request in requests:
        decode = request.decode
        known_model(request.model, models)
        if decode.mixture is not None:
            _need("mixture", "Decode.mixture", capabilities)
            known_model(decode.mixture[0], models)
        if decode.stop_when is not None:
            _need("stop_when", "Decode.stop_when", capabilities)
        if decode.stop and request.model not in decoders:
            raise ConfigError(
                f"Decode.stop is {decode.stop!r}, but the engine was given no decode function for "
                f"the model {request.model!r}, so it cannot see text. Pass decode= to the engine, "
                "or stop at token ids with Decode.stop_ids."
            )


def check_items(
    items: Sequence[ScoreItem], *, models: Collection[str], capabilities: Collection[Capability]
) -> None:
    """Refuse what an engine with these models and capabilities cannot score.

    Raises:
        EngineError: For a model it does not hold.
        ConfigError: For a want it cannot give.
    """
    for item in items:
        known_model(item.model, models)
        need = _NEEDS.get(type(item.want))
        if need is not None:
            _need(need, f"scoring {item.want!r}", capabilities)


def known_model(name: str, models: Collection[str]) -> None:
    """Refuse a model the engine does not hold.

    Raises:
        EngineError: If it does not.
    """
    if name not in models:
        raise EngineError(
            f"the engine holds no model {name!r}, only {sorted(models)}.{nearest(name, models)}"
        )


def _need(capability: Capability, what: str, capabilities: Collection[Capability]) -> None:
    if capability not in capabilities:
        raise ConfigError(
            f"{what} needs an engine with the capability {capability!r}; this one has "
            f"{sorted(capabilities)}."
        )


def room(request: SampleRequest, max_context: int) -> tuple[int, Stop]:
    """Tokens the segment may still take, forced ones included, and how it stops when it has.

    ``max_tokens`` counts what was drawn before; ``max_context`` (0: no limit) bounds context and
    segment together.
    """
    left = max(request.decode.max_tokens - len(request.drawn), 0)
    if max_context:
        free = max(max_context - len(request.ids) - len(request.drawn), 0)
        if free < left:
            return free, Stop.MAX_CONTEXT
    return left, Stop.MAX_TOKENS


def forced_left(request: SampleRequest) -> tuple[int, ...]:
    """Forced tokens not yet put; they come first and never end the segment."""
    return request.decode.forced[len(request.drawn) :]


def ends_by_rule(
    request: SampleRequest,
    said: Sequence[int],
    logprobs: Sequence[float],
    decode: Decoder | None,
) -> bool:
    """Whether a stop string or the rule of the request ends the segment at its last token.

    Args:
        request: What was asked.
        said: The segment so far, what was drawn before an interruption included.
        logprobs: Those of the tokens of this request; the rule sees NaN for earlier ones.
        decode: Text of ids, where there are stop strings.
    """
    rules = request.decode
    if rules.stop and decode is not None and completes_string(said, rules.stop, decode):
        return True
    unknown = [float("nan")] * len(request.drawn)
    return rules.stop_when is not None and rules.stop_when(said, [*unknown, *logprobs])


def completes_string(ids: Sequence[int], stop: Sequence[str], decode: Decoder) -> bool:
    """Whether the last of the segment's ids completes a stop string.

    A string that was complete before the last token does not count again, so forced tokens may
    hold one.
    """
    most = max(map(len, stop))
    window = list(ids[-(_MOST_BYTES * most + _SPARE_TOKENS) :])
    text = decode(window)
    ends = [text.rfind(s) + len(s) for s in stop if s in text]
    # a character cut in two decodes to U+FFFD: it is not yet text
    return bool(ends) and max(ends) > len(decode(window[:-1]).rstrip("\ufffd"))
