"""Whether the files of a model are there and whole, before anything reads them."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.errors import ConfigError, DataError

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""


def check_folder(folder: Path) -> None:
    """Check a model folder.

    Raises:
        ConfigError: it holds no config.json; the message lists what it holds.
        DataError: a weights file is missing or not whole.
    """
    if not (folder / "config.json").is_file():
        held = sorted(p.name for p in folder.iterdir())
        listed = ", ".join(held[:10]) + (", ..." if len(held) > 10 else "") if held else "nothing"
        raise ConfigError(
            f"the folder {folder} has no config.json, so it is no model; it holds {listed}. Give "
            "the folder that save_pretrained wrote, a Hugging Face id, or a .gguf file."
        )
    for index in folder.glob("*.safetensors.index.json"):
        for shard in sorted(set(_read_index(index).values())):
            if not (folder / shard).is_file():
                raise DataError(
                    f"{index} names the weights file {shard}, which is not in {folder}: the "
                    "download or copy was not finished. Fetch it again."
                )
    for weights in sorted(folder.glob("*.safetensors")):
        check_safetensors(weights)


def _read_index(index: Path) -> dict[str, str]:
    try:
        return json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError) as error:
        raise DataError(f"{index} is damaged ({error}). Fetch it again.") from error


def check_safetensors(path: Path) -> None:
    """Compare a file's size with what its header promises.

    Raises:
        DataError: it is shorter, or its header cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(min(length, size))
    try:
        entries = json.loads(header)
        ends = [e["data_offsets"][1] for n, e in entries.items() if n != "__metadata__"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the weights file {path} ({size} bytes) has no readable header: it is damaged or was "
            "not downloaded whole. Fetch it again."
        ) from error
    wanted = _LENGTH_BYTES + length + max(ends, default=0)
    if size < wanted:
        raise DataError(
            f"the weights file {path} has {size} of {wanted} bytes: it was not downloaded or "
            "copied whole. Fetch it again."
        )


def check_gguf(path: Path) -> None:
    """Check that a GGUF file is there and is one.

    Raises:
        ConfigError: there is no such file; the message lists its neighbours.
        DataError: it is no GGUF file.
    """
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.gguf")) if path.parent.is_dir() else []
        found = f"{path.parent} holds {', '.join(near)}" if near else "no .gguf file is beside it"
        raise ConfigError(f"there is no file {path.absolute()}; {found}.")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise DataError(f"{path} is no GGUF file: it begins with {magic!r}, not with b'GGUF'.")
