"""JSON text that gives back what went in: bytes, numpy values, tuples and odd numbers by tag.

A value that JSON has no word for becomes an object with one key that names it: ``$bytes``
(base64), ``$array`` and ``$scalar`` (base64 of the bytes of an .npy file), ``$tuple``, ``$float``
(nan, inf, -inf), ``$int`` (hexadecimal, for integers beyond 64 bits) and ``$dict`` (key-value
pairs, where a key is no string or the object would read as a tag). Anything else is refused.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping

import numpy as np

from posttrain.errors import DataError

_TAGS = ("$bytes", "$array", "$scalar", "$tuple", "$float", "$int", "$dict")


def npy_bytes(array: np.ndarray, *, where: str) -> bytes:
    """The bytes of an .npy file holding the array; ``where`` names it in an error.

    Raises:
        DataError: the dtype holds Python objects or is one that .npy files cannot name.
    """
    named = np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(array.dtype))
    if array.dtype.hasobject or named != array.dtype:
        raise DataError(
            f"{where} is an array of dtype {array.dtype}, which cannot be stored without loss. "
            "Convert it to a plain numpy dtype (view bfloat16 as uint16, encode objects) first."
        )
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def from_npy_bytes(data: bytes) -> np.ndarray:
    """The array of an .npy file's bytes."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def dumps(value: object, *, where: str) -> str:
    """JSON text of a value; ``where`` names it in an error.

    Raises:
        DataError: the value, or one inside it, is of a type the tags do not cover.
    """
    return json.dumps(_encode(value, where), allow_nan=False)


def loads(text: str) -> object:
    """The value of a text that ``dumps`` made.

    Raises:
        DataError: the text is not JSON, or a tag holds what ``dumps`` never writes.
    """
    try:
        return _decode(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"stored JSON cannot be read back ({error}): {text[:80]!r}") from error


def _encode(value: object, where: str) -> object:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= 64 else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) is list:
        return [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where)
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        tag = "$array" if isinstance(value, np.ndarray) else "$scalar"
        return {tag: base64.b64encode(npy_bytes(np.asarray(value), where=where)).decode()}
    raise DataError(
        f"{where} is of type {type(value).__name__}, which cannot be stored. Allowed: None, bool, "
        "int, float, str, list, tuple, dict, bytes, numpy arrays and scalars. Convert the column "
        "in the source."
    )


def _encode_mapping(value: Mapping[object, object], where: str) -> object:
    plain = all(type(k) is str for k in value) and not (len(value) == 1 and _tag(value))
    if plain:
        return {k: _encode(v, f"{where}[{k!r}]") for k, v in value.items()}
    return {
        "$dict": [
            [_encode(k, f"{where} (a key)"), _encode(v, f"{where}[{k!r}]")]
            for k, v in value.items()
        ]
    }


def _tag(value: Mapping[object, object]) -> str:
    key = next(iter(value))
    return key if isinstance(key, str) and key in _TAGS else ""


def _scalar(text: str) -> object:
    return from_npy_bytes(base64.b64decode(text, validate=True))[()]


_READ: dict[str, Callable[..., object]] = {
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$array": lambda text: from_npy_bytes(base64.b64decode(text, validate=True)),
    "$scalar": _scalar,
    "$tuple": lambda items: tuple(_decode(i) for i in items),
    "$float": float,
    "$int": lambda text: int(text, 16),
    "$dict": lambda pairs: {_decode(k): _decode(v) for k, v in pairs},
}


def _decode(value: object) -> object:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if isinstance(value, dict):
        tag = _tag(value) if len(value) == 1 else ""
        return _READ[tag](value[tag]) if tag else {k: _decode(v) for k, v in value.items()}
    return value
