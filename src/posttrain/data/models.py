"""Models and tokenizers from where a user has them: a hub id, a folder, a GGUF file, ``tiny``.

Only ``transformers`` reads weights here. Files are looked at before they are read, so that a
missing or half-written one is named.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from posttrain.data.gguf_header import read_integers
from posttrain.data.model_files import check_folder, check_gguf
from posttrain.data.precision import cast_weights
from posttrain.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY = "tiny"
"""The embedded reasoner, built in code."""


def load_model(
    path: str | Path, *, dtype: torch.dtype | str = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A causal language model, in evaluation mode, on the CPU.

    Args:
        path: A Hugging Face id, a folder, a GGUF file, or ``tiny``.
        dtype: Precision of its weights; GGUF weights are unpacked to it.
        seed: Seed of the weights of ``tiny``.

    Raises:
        ConfigError: nothing can be found there; the message lists what was tried.
        DataError: a file is damaged, was not downloaded whole, or lacks weights.
        MissingExtraError: a GGUF file without the package that reads it.
    """
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if str(path) == TINY:
        return cast_weights(copy.deepcopy(_tiny(seed)[0]), kind).eval()
    place, options = _resolve(str(path))
    from transformers import AutoModelForCausalLM

    if "gguf_file" in options:
        options |= _dequantised()
    with _named_errors(str(path)), without_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=kind, output_loading_info=True, **options
        )
    model, info = loaded
    _refuse_missing(str(path), info)
    return _unquantised(model).eval()


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to a model, with its chat template where it has one.

    Raises:
        ConfigError, DataError, MissingExtraError: as ``load_model``.
    """
    if str(path) == TINY:
        return copy.deepcopy(_tiny(0)[1])
    place, options = _resolve(str(path))
    from transformers import AutoTokenizer

    with _named_errors(str(path)):
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        if "gguf_file" in options:
            _set_markers(tokenizer, Path(place) / options["gguf_file"])
    tokenizer.name_or_path = str(path)
    return tokenizer


def _set_markers(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Take begin, end and padding tokens from the file; some versions mix them up."""
    settings = read_integers(path)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = settings.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the bar transformers draws for every file; a run draws its own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@functools.lru_cache(maxsize=2)
def _tiny(seed: int) -> tuple[Any, Any]:
    from posttrain.data.tiny_model import build_tiny_reasoner

    return build_tiny_reasoner(seed)


def _resolve(path: str) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` takes: a place, and the file in it for GGUF."""
    local = Path(path).expanduser()
    if local.suffix == ".gguf":
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtraError("gguf", extra="gguf", purpose=f"reading {path}")
        check_gguf(local)
        return str(local.parent), {"gguf_file": local.name}
    if local.is_dir():
        check_folder(local)
        return str(local), {}
    if local.is_file():
        raise ConfigError(
            f"{path} is a file, but not a .gguf file. Give a Hugging Face id, a folder with "
            "config.json and weights, or a .gguf file."
        )
    if not _may_be_an_id(path):
        raise ConfigError(
            f"there is no model at {path!r}. Tried: the folder {local.absolute()} (does not "
            "exist); it cannot be a Hugging Face id, which is 'name' or 'owner/name'."
        )
    return path, {}


def _may_be_an_id(path: str) -> bool:
    parts = path.split("/")
    allowed = all(p and all(c.isalnum() or c in "._-" for c in p) for p in parts)
    return len(parts) <= 2 and allowed and not path.startswith(".")


def _dequantised() -> dict[str, Any]:
    """The option that unpacks GGUF blocks; older versions of transformers always do."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _unquantised(model: PreTrainedModel) -> PreTrainedModel:
    """The model without the mark of the quantised file it came from, so that it can be saved."""
    if getattr(model.config, "quantization_config", None) is not None and all(
        p.is_floating_point() for p in model.parameters()
    ):
        delattr(model.config, "quantization_config")
    return model


def _refuse_missing(path: str, info: dict[str, Any]) -> None:
    missing = sorted(info.get("missing_keys", ()))
    mismatched = sorted(str(m) for m in info.get("mismatched_keys", ()))
    if missing or mismatched:
        raise DataError(
            f"{path} has no weights, or weights of another shape, for "
            f"{', '.join((missing + mismatched)[:5])} ({len(missing) + len(mismatched)} in all); "
            "they would be random. Give a complete causal language model."
        )


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Boundary: errors of reading and downloading in the words of a user who gave ``path``."""
    try:
        yield
    except Exception as error:
        explained = _explained(path, error)
        if explained is None:
            raise
        raise explained from error


def _explained(path: str, error: Exception) -> ConfigError | DataError | None:
    """What went wrong with a model, or None for an error that has nothing to do with files."""
    text = " ".join(str(error).split())
    for link in _chain(error):
        request = getattr(link, "_request", None)  # the HTTP client keeps what it asked for
        if request is not None and not hasattr(link, "response"):
            return DataError(
                f"the download of {request.url} for {path!r} broke off ({link}). Nothing of that "
                "file is used. Start again when the connection holds: finished files are kept."
            )
    if isinstance(error, SafetensorError):
        return DataError(f"a weights file of {path} is damaged or not whole ({text}).")
    if not isinstance(error, OSError | ValueError | IndexError):
        return None
    if "onsistency check failed" in text:
        return DataError(f"a file downloaded for {path!r} is not whole: {text}")
    local = Path(path).expanduser().absolute()
    if local.suffix == ".gguf":
        size = local.stat().st_size
        return DataError(
            f"the GGUF file {path} ({size} bytes) cannot be read: it is damaged, was not "
            f"downloaded whole, or holds a model transformers does not know ({text})."
        )
    if local.exists():
        return DataError(f"{path} cannot be read as a causal language model: {text}")
    from huggingface_hub import constants

    hub = "not asked, HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    return ConfigError(
        f"there is no model at {path!r}. Tried: the folder {local} (does not exist); the local "
        f"cache {constants.HF_HUB_CACHE}; the hub ({hub}). The answer was: {text[:300]}"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, outermost first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
