"""Tables larger than memory: where their rows are kept, and the counts of their caches."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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
