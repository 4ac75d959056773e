"""Counts the rows of a DistributedEmbedding's tables that ids name most often."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shardwise._utils import on_all_ranks
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Shard


class HotRow(NamedTuple):
    """A row, the number of ids that named it, and the share of that number in all ids of its table (0 to 1).

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> layer.count_rows()
    >>> rows = layer([torch.tensor([3, 3, 4])])
    >>> layer.hot_rows("user", 1)  # of the ids of four ranks
    [HotRow(row=3, n_ids=8, share=0.666...)]
    """

    row: int
    n_ids: int
    share: float


@dataclass
class TableCounts:
    """This rank's ids of one table: at most `capacity` rows with their counts.

    If there are more rows, all counts are lowered by the largest count that does not fit, and rows whose count is then 0 are dropped (Misra, Gries,
    "Finding repeated elements", 1982, in batches as in Agarwal et al., "Mergeable summaries", 2012). A count is too low by at most
    n_ids / capacity.
    """

    capacity: int
    rows: torch.Tensor
    counts: torch.Tensor
    n_ids: int = 0

    def add(self, ids: torch.Tensor) -> None:
        rows, counts = ids.detach().cpu().reshape(-1).long().unique(return_counts=True)
        self.n_ids += ids.numel()
        self.rows, self.counts = merged(torch.cat([self.rows, rows]), torch.cat([self.counts, counts]))
        if len(self.rows) > self.capacity:
            counts = self.counts - self.counts.topk(self.capacity + 1).values[-1]
            self.rows, self.counts = self.rows[counts > 0], counts[counts > 0]


class RowCounts:
    """The counts of all tables. `owned`: whether the ids of each table count on this rank."""

    def __init__(self, n_tables: int, capacity: int, owned: Sequence[bool]) -> None:
        if capacity < 1:
            raise ValueError(f"[count_rows] capacity is {capacity}. Keep at least one row per table.")
        self._owned = owned
        self.tables = [
            TableCounts(capacity, torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
            for _ in range(n_tables)
        ]

    def add(self, table: int, ids: torch.Tensor) -> None:
        if self._owned[table]:
            self.tables[table].add(ids)

    def hottest(self, table: int, n: int, mesh: DeviceMesh) -> list[HotRow]:
        """The hottest `n` rows of all ranks together. Collective: three small gathers, and one each of the ranks' rows and of their counts."""
        own = self.tables[table]
        total = int(on_all_ranks([own.n_ids], mesh).sum())
        rows, counts = merged(gathered(own.rows, mesh), gathered(own.counts, mesh))
        order = counts.argsort(descending=True, stable=True)[:n]
        return [
            HotRow(row, count, count / max(total, 1))
            for row, count in zip(rows[order].tolist(), counts[order].tolist(), strict=True)
        ]


def merged(rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row once, with the sum of its counts."""
    rows, places = rows.unique(return_inverse=True)
    return rows, torch.zeros_like(rows).index_add_(0, places, counts)


def gathered(values: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All ranks' values, one rank after another, on all ranks. Ranks may have different numbers of them. [n] -> [sum of n]"""
    sizes = on_all_ranks([len(values)], mesh).flatten().tolist()
    here = values.to(mesh.device_type)
    return DTensor.from_local(here, mesh, [Shard(0, sizes=sizes)], shape=[sum(sizes)], stride=(1,)).full_tensor().cpu()
