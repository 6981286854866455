"""Sources of rows: in memory, JSON lines, Parquet, a hub data set, a Python function."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from posttrain.data.indexed import IndexedSource, drawn_before
from posttrain.data.rows import Row, RowReader
from posttrain.errors import ConfigError, DataError
from posttrain.types.env import EnvFactory
from posttrain.types.message import Task
from posttrain.types.method import Source, State, Verifier

_ENV = "env"


class Table(Protocol):
    """Rows that can be counted and read one by one."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row: ...

    def only(self, columns: Sequence[str]) -> Iterator[Row]:
        """All rows in order, with some of their columns."""
        ...


class ListTable:
    """Rows in a list; columns are those of any row."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.column_names = tuple(dict.fromkeys(name for row in rows for name in row))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Row:
        return self._rows[index]

    def only(self, columns: Sequence[str]) -> Iterator[Row]:  # noqa: ARG002
        """All rows."""
        return iter(self._rows)


class ArrowTable:
    """Rows of an Arrow table, read when asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.column_names = tuple(table.column_names)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int, /) -> Row:
        return self._table.slice(index, 1).to_pylist()[0]

    def only(self, columns: Sequence[str]) -> Iterator[Row]:
        """All rows with these columns, a thousand read at a time."""
        for batch in self._table.select(list(columns)).to_batches(max_chunksize=1000):
            yield from batch.to_pylist()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource(IndexedSource):
    """A source of rows; column names follow ``posttrain.data.rows``."""

    verifiers: Mapping[str, Verifier] = field(default_factory=dict)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Rewards by name."""
    env: EnvFactory | None = None
    """Environment that plays every task; None for tasks of one step."""
    prompt: str = ""
    """Column of the prompt; empty finds it by the usual names."""
    answer: str = ""
    """Column of the reference answer; empty finds it by the usual names."""
    chat: bool = False
    """Put prompts that are texts into a user message, for the chat template."""
    drop: tuple[str, ...] = ()
    """Columns left out, such as images."""
    shuffle: int | None = 0
    """Seed of the shuffle, another order in every pass; None keeps the order of the rows."""
    _memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @abstractmethod
    def label(self) -> str:
        """What the rows come from, for messages."""

    @abstractmethod
    def read(self) -> Table:
        """The rows."""

    @property
    @override
    def envs(self) -> Mapping[str, EnvFactory]:
        """The environment, if there is one."""
        return {} if self.env is None else {_ENV: self.env}

    @property
    @override
    def order(self) -> int | None:
        """``shuffle``."""
        return self.shuffle

    def _opened(self) -> tuple[Table, RowReader]:
        """Rows and their reader; every prompt was looked at once."""
        if "rows" not in self._memo:
            rows = self.read()
            if not len(rows):
                raise DataError(f"{self.label()} has no rows.")
            reader = RowReader(
                label=self.label(),
                columns=rows.column_names,
                prompt=self.prompt,
                answer=self.answer,
                chat=self.chat,
                drop=self.drop,
                env="" if self.env is None else _ENV,
            )
            for number, row in enumerate(rows.only(reader.prompt_columns)):
                reader.prompt_of(row, number)
            self._memo["rows"] = (rows, reader)
        return self._memo["rows"]

    @override
    def size(self) -> int:
        """Number of rows.

        Raises:
            DataError: the file is damaged or empty, or a row has no prompt.
        """
        return len(self._opened()[0])

    @override
    def at(self, index: int) -> Task:
        """The task of one row, counted from 0."""
        rows, reader = self._opened()
        return reader.task(rows[index], index)


@dataclass(frozen=True, slots=True)
class Rows(RowSource):
    """Rows in memory."""

    rows: tuple[Row, ...]

    @override
    def label(self) -> str:
        """The rows have no place to name."""
        return "the rows given"

    @override
    def read(self) -> Table:
        """The rows."""
        return ListTable(self.rows)


@dataclass(frozen=True, slots=True)
class JSONL(RowSource):
    """A file with one JSON object a line."""

    path: str

    @override
    def label(self) -> str:
        """The path."""
        return self.path

    @override
    def read(self) -> Table:
        """All lines.

        Raises:
            DataError: the file is missing, or a line is damaged or cut.
        """
        rows: list[Row] = []
        text = _existing(self.path).read_bytes()
        for number, line in enumerate(text.split(b"\n"), start=1):
            if line.strip():
                rows.append(_json_line(line, number, self.path, whole=text.endswith(b"\n")))
        return ListTable(rows)


def _existing(path: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"there is no file {file.absolute()}. Give the path of a data file.")
    return file


def _json_line(line: bytes, number: int, path: str, *, whole: bool) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        cut = "" if whole else " The file does not end in a line break: it may not be whole."
        raise DataError(f"line {number} of {path} is no JSON ({error}).{cut}") from error
    if not isinstance(row, dict):
        raise DataError(
            f"line {number} of {path} must be a JSON object, got {type(row).__name__}. One object "
            "a line is expected, not a list of them."
        )
    return row


@dataclass(frozen=True, slots=True)
class Parquet(RowSource):
    """A Parquet file, a folder of them, or a pattern such as ``data/*.parquet``."""

    path: str

    @override
    def label(self) -> str:
        """The path."""
        return self.path

    @override
    def read(self) -> Table:
        """All rows, column by column.

        Raises:
            DataError: a file is missing or damaged, or columns differ between files.
        """
        tables = [_parquet(file) for file in _matching(self.path)]
        try:
            return ArrowTable(pa.concat_tables(tables, promote_options="default"))
        except pa.ArrowInvalid as error:
            raise DataError(f"the files of {self.path} have different columns: {error}") from error


def _matching(path: str) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_dir():
        found = sorted(place.glob("*.parquet"))
    elif any(c in place.name for c in "*?["):
        found = sorted(place.parent.glob(place.name))
    else:
        return [_existing(path)]
    if not found:
        raise DataError(f"no Parquet file matches {place.absolute()}.")
    return found


def _parquet(file: Path) -> pa.Table:
    try:
        return pq.read_table(file, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"the Parquet file {file} ({file.stat().st_size} bytes) is damaged or was not "
            f"downloaded whole: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Generator(Source):
    """Tasks made by a function: the number of a draw and the seed decide each."""

    function: Callable[[np.random.Generator], Task | Row]
    """At the top of a module; gives a task, or a row as ``Rows`` takes it."""
    seed: int = 0
    """Another seed gives other tasks, e.g. held-out ones."""
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Rewards by name."""
    env: EnvFactory | None = None
    """Environment that plays every task a row gives."""
    chat: bool = False
    """Put prompts that are texts into a user message, for the chat template."""

    def __post_init__(self) -> None:
        named = isinstance(self.function, FunctionType)
        if not named or "<" in self.function.__qualname__:
            raise ConfigError(
                f"Generator.function must be a function defined with def at the top of a module, "
                f"got {self.function!r:.80}. A saved run could not find it again."
            )

    @property
    @override
    def envs(self) -> Mapping[str, EnvFactory]:
        """The environment, if there is one."""
        return {} if self.env is None else {_ENV: self.env}

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` tasks.

        Raises:
            DataError: the function gave neither a task nor a row with a prompt.
        """
        start = drawn_before(state)
        return [self._task(start + i) for i in range(n)]

    def _task(self, number: int) -> Task:
        made = self.function(np.random.default_rng([self.seed & 0xFFFFFFFF, number]))
        label = f"{self.function.__module__}:{self.function.__qualname__}"
        if isinstance(made, Task):
            return made
        if not isinstance(made, Mapping):
            raise DataError(f"{label} gave a {type(made).__name__}; give a Task or a dictionary.")
        env = "" if self.env is None else _ENV
        reader = RowReader(label=label, columns=tuple(made), chat=self.chat, env=env)
        return reader.task(made, number)
