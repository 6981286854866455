"""Data sets of the Hugging Face hub; the only file that imports ``datasets``."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from posttrain.data.sources import ArrowTable, RowSource, Table
from posttrain.errors import DataError, MissingExtraError


@dataclass(frozen=True, slots=True)
class HFDataset(RowSource):
    """A data set by its hub id, or a folder ``datasets`` can read."""

    name: str
    split: str = "train"
    """Its split; slices such as ``train[:100]`` are allowed."""
    config: str = ""
    """Configuration, where the data set has several."""
    revision: str = ""
    """Commit or tag; empty takes the newest, which may change under a saved run."""

    @override
    def label(self) -> str:
        """Name, configuration and split."""
        return f"{self.name}{f'/{self.config}' if self.config else ''} [{self.split}]"

    @override
    def read(self) -> Table:
        """All rows, read when asked for.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: there is no such data set or split, or a file is damaged.
        """
        try:
            import datasets
            from datasets.exceptions import DatasetsError
        except ImportError as error:
            raise MissingExtraError(
                "datasets", extra="datasets", purpose=f"the data set {self.label()}"
            ) from error
        try:
            found = datasets.load_dataset(
                self.name,
                self.config or None,
                split=self.split,
                revision=self.revision or None,
            )
        except (OSError, ValueError, DatasetsError) as error:
            text = " ".join(str(error).split())
            raise DataError(f"the data set {self.label()} cannot be read: {text:.400}") from error
        return ArrowTable(found.with_format("arrow")[:])
