"""Groups in Parquet files: one row a group, nothing lost, readable by others.

The columns are described in docs/episodes.md. A file is written aside and renamed, so a reader
sees the old one or the new one, never a half; its footer holds a digest of everything before it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.data.schema import GROUPS, VERSION, from_batch, to_row
from posttrain.errors import DataError
from posttrain.types.episode import Group

_KEY = "posttrain.groups"
_COUNT, _BYTES, _SHA256 = "posttrain.count", "posttrain.bytes", "posttrain.sha256"
_BATCH = 64
"""Groups a row group of the file holds."""
_CHUNK_BYTES = 1 << 20


def write_groups(path: str | Path, groups: Sequence[Group]) -> None:
    """Write groups to one Parquet file, replacing what is there.

    Raises:
        DataError: a group holds something that cannot be stored without loss; nothing is written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(aside, groups)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_groups(path: str | Path) -> list[Group]:
    """The groups of a file that ``write_groups`` made.

    Raises:
        DataError: the file is missing, damaged, or not a file of groups.
    """
    if not Path(path).is_file():
        raise DataError(f"no file of groups at {path}.")
    try:
        with pq.ParquetFile(path) as file:
            num_groups = _check(file, path)
            groups = [g for b in file.iter_batches(batch_size=_BATCH) for g in from_batch(b)]
            if len(groups) != num_groups:
                raise ValueError(f"it holds {len(groups)} groups of {num_groups}")
            return groups
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(
            f"{path} is damaged or was not written by write_groups: {error}. Use an earlier file."
        ) from error


def _check(file: pq.ParquetFile, path: str | Path) -> int:
    """The number of groups the file must hold, once it proves to be whole and ours."""
    raw = file.metadata.metadata or {}
    found = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in raw.items()}
    if _KEY not in found:
        raise DataError(
            f"{path} is a Parquet file but holds no groups (its metadata has no {_KEY!r}). "
            "Give a file that write_groups made."
        )
    if found[_KEY] != str(VERSION):
        raise DataError(
            f"{path} holds groups of schema {found[_KEY]}; this version of posttrain reads schema "
            f"{VERSION}. Read it with the version that wrote it."
        )
    if not file.schema_arrow.equals(GROUPS):
        raise ValueError("its columns are not those of the schema its metadata names")
    if _digest(Path(path), int(found.get(_BYTES, "-1"))) != found.get(_SHA256):
        raise ValueError("its bytes are not those that were written")
    return int(found.get(_COUNT, "-1"))


def _digest(path: Path, num_bytes: int) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while num_bytes > 0 and (chunk := file.read(min(num_bytes, _CHUNK_BYTES))):
            sha256.update(chunk)
            num_bytes -= len(chunk)
    return sha256.hexdigest()


class _HashingFile:
    """A file for writing that hashes what passes through it."""

    closed = False
    """Asked for by pyarrow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.num_bytes = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Hash and write."""
        self.sha256.update(data)
        self.num_bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._file.flush()


def _write(path: Path, groups: Sequence[Group]) -> None:
    schema = GROUPS.with_metadata({_KEY: str(VERSION)})
    with path.open("wb") as file:
        sink = _HashingFile(file)
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for start in range(0, len(groups), _BATCH):
                writer.write_table(_table(groups[start : start + _BATCH], schema))
            writer.add_key_value_metadata(
                {
                    _COUNT: str(len(groups)),
                    _BYTES: str(sink.num_bytes),
                    _SHA256: sink.sha256.hexdigest(),
                }
            )
        file.flush()
        os.fsync(file.fileno())


def _table(groups: Sequence[Group], schema: pa.Schema) -> pa.Table:
    rows = [to_row(group) for group in groups]
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError) as error:
        names = ", ".join(g.group_id for g in groups)
        raise DataError(
            f"a group among {names} has a field that does not fit the schema of stored groups: "
            f"{error}. Whole numbers must fit their column and text must be valid Unicode."
        ) from error


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
