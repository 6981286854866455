"""The settings in a GGUF file's header, read without its tensors.

Layout: magic, version, number of tensors, number of settings, then the settings as key, type and
value, all little-endian; strings and arrays carry their length.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9


def read_integers(path: Path) -> dict[str, int]:
    """Settings of the file that are whole numbers, by key.

    Raises:
        ValueError: the header ends early or holds an unknown type.
    """
    found: dict[str, int] = {}
    with path.open("rb") as file:
        file.seek(16)
        for _ in range(_number(file, "Q")):
            key = file.read(_number(file, "Q")).decode("utf-8")
            kind = _number(file, "I")
            if kind in _SCALARS:
                value = _number(file, _SCALARS[kind])
                if isinstance(value, int):
                    found[key] = value
            else:
                _skip(file, kind)
    return found


def _number(file: BinaryIO, code: str) -> int:
    data = file.read(struct.calcsize("<" + code))
    try:
        return struct.unpack("<" + code, data)[0]
    except struct.error as error:
        raise ValueError("the header ends early") from error


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_number(file, "Q"), 1)
        return
    if kind != _ARRAY:
        raise ValueError(f"the header holds a value of the unknown type {kind}")
    inner, length = _number(file, "I"), _number(file, "Q")
    if inner in _SCALARS:
        file.seek(length * struct.calcsize("<" + _SCALARS[inner]), 1)
        return
    for _ in range(length):
        _skip(file, inner)
