"""The tables of a DistributedEmbedding: its parameters by their names, and where the rows of tables larger than memory are kept."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import nn

from shardwise import _C
from shardwise._C import EmbeddingPlan, TableConfig
from shardwise.device_mesh import DeviceMesh

# The attributes of every module, such as "training": no parameter can have such a name.
TAKEN = frozenset(vars(nn.Module()))


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for names that no parameter can have."""
    wrong = [name for name in names if "." in name or name in TAKEN]
    if wrong:
        raise ValueError(
            f"[DistributedEmbedding] tables cannot be called {wrong}: names in state dicts have no dots, and modules use these words. Give "
            "other names."
        )


class TableParameters(nn.Module, Mapping[str, nn.Parameter]):
    """A mapping of parameters, like nn.ParameterDict, but names may be those of methods: a table may be called "items"."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._parameters.update(parameters)

    def __getitem__(self, name: str) -> nn.Parameter:
        return cast("nn.Parameter", self._parameters[name])

    def __setitem__(self, name: str, parameter: nn.Parameter) -> None:
        self._parameters[name] = parameter

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)


class EmbeddingTables(nn.Module):
    """The base of DistributedEmbedding: the facts that the other modules of this folder, which the layer imports, use."""

    configs: list[TableConfig]
    plan: EmbeddingPlan
    mesh: DeviceMesh
    tables: TableParameters
    _core: _C.DistributedEmbedding
    _n_samples = 0  # of the last lookup

    def _index_of(self, table: int | str, of: str = "there is no table") -> int:
        names = [config.name for config in self.configs]
        if isinstance(table, str) and table in names:
            return names.index(table)
        if isinstance(table, int) and 0 <= table < len(names):
            return table
        raise ValueError(f"[DistributedEmbedding] {of} {table!r}. There are {names}.")

    def _parameters_in_order(self) -> list[nn.Parameter]:
        return [self.tables[config.name] for config in self.configs]


@dataclass(frozen=True)
class FileStorage:
    """Keeps the rows of a table in files, and the frequently used rows in memory, too.

    - `folder`: a folder on a local disk. Each rank that has rows makes a file there. The file has no name, so nothing is left when the process
      ends or is killed.
    - `cache_rows`, `cache_bytes`: the size of the cache in memory, per rank and per column slice: a number of rows, or the bytes of their
      values, without the state of a fused optimizer. Give one of them. The cache must hold all rows that one lookup of all ranks requests
      from one rank.

    >>> storage = {"user": sw.FileStorage(".", cache_rows=64)}  # a folder of a local disk
    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)], storage=storage)
    >>> (user,) = layer([torch.tensor([3, 4])])
    >>> user.shape, layer.cache_counts()["user"].slots
    (torch.Size([2, 8]), 64)
    """

    folder: str | os.PathLike[str]
    cache_rows: int | None = None
    cache_bytes: int | None = None


class CacheCounts(NamedTuple):
    """The counts of one rank's cache of a table since it was made. An access is one distinct row that a lookup requested from this rank.

    >>> counts = sw.CacheCounts(100, hits=90, misses=10, evictions=0, bytes_read=640, bytes_written=0, value_bytes=6400, state_bytes=0)
    >>> counts.hit_rate
    0.9
    """

    slots: int  # rows in memory, at most
    hits: int
    misses: int
    evictions: int
    bytes_read: int  # from the file: values and optimizer state
    bytes_written: int
    value_bytes: int  # memory that the cache takes now for values
    state_bytes: int  # memory that it takes for the state of a fused optimizer

    @property
    def hit_rate(self) -> float:
        """Hits divided by accesses; 0 before the first access."""
        return self.hits / max(self.hits + self.misses, 1)


def by_index(storage: Mapping[int | str, FileStorage], indices: Sequence[int]) -> dict[int, tuple[str, int, int]]:
    """The storages in the form that the C++ layer takes. Raises TypeError for other values, and ValueError for a table that is named twice."""
    result: dict[int, tuple[str, int, int]] = {}
    for index, (table, where) in zip(indices, storage.items(), strict=True):
        if not isinstance(where, FileStorage):
            raise TypeError(
                f"[DistributedEmbedding] the storage of table {table!r} is a {type(where).__name__}. Give FileStorage."
            )
        if index in result:
            raise ValueError(
                f"[DistributedEmbedding] storage names table {table!r} twice, by name and index. Name it once."
            )
        result[index] = (os.fspath(where.folder), where.cache_rows or 0, where.cache_bytes or 0)
    return result
