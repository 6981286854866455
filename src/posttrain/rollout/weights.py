"""Weights an engine takes: which version, which names, and noise that can be drawn again."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from posttrain.errors import EngineError, nearest


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


@torch.no_grad()
def copy_weights(
    model: str,
    parameters: Mapping[str, Tensor],
    given: Mapping[str, object],
    *,
    also: Collection[str] = (),
) -> None:
    """Write given tensors into the parameters of the same names, cast to their dtype.

    Args:
        model: Its name, for messages.
        parameters: The parameters in use, tied ones once; written in place.
        given: New weights; every parameter must be there.
        also: Further names that may be given and are passed over (tied weights, buffers).

    Raises:
        EngineError: If a name is missing or unknown, or a shape differs; nothing is written then.
    """
    unknown = given.keys() - parameters.keys() - set(also)
    missing = parameters.keys() - given.keys()
    if unknown or missing:
        name = min(unknown or missing)
        raise EngineError(
            f"weights for the model {model!r} do not fit: {len(unknown)} unknown names, "
            f"{len(missing)} missing, the first {name!r}."
            f"{nearest(name, parameters if unknown else given)} Deliver every parameter by the "
            "name named_parameters gives it, adapters merged."
        )
    fresh = {name: torch.as_tensor(given[name]) for name in parameters}
    wrong = [name for name, tensor in fresh.items() if tensor.shape != parameters[name].shape]
    if wrong:
        name = min(wrong)
        raise EngineError(
            f"weights for the model {model!r}: {name!r} must be of shape "
            f"{tuple(parameters[name].shape)}, got {tuple(fresh[name].shape)}."
        )
    for name, tensor in fresh.items():
        parameters[name].copy_(tensor)


def noise(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Standard normal numbers for the parameter ``name``, float32 on the CPU.

    A draw depends on seed, name and shape alone, so a learner can make again what an engine
    added.
    """
    generator = torch.Generator().manual_seed((seed & 0xFFFFFFFF) << 31 ^ zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)


@torch.no_grad()
def add_noise(
    parameters: Mapping[str, Tensor], base: Mapping[str, Tensor], *, seed: int, scale: float
) -> None:
    """Set parameters to base + scale * noise, summed in float32 and cast once."""
    for name, parameter in parameters.items():
        drawn = noise(name, parameter.shape, seed).to(parameter.device)
        parameter.copy_(base[name].float() + scale * drawn)
