"""The contents of a DistributedEmbedding, the messages of its last lookup, and the rows that ids name most often."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shardwise import _C
from shardwise._utils import on_all_ranks
from shardwise.debug.places import local_tensors
from shardwise.debug.text_tables import in_units, ranks_text, table_text
from shardwise.device_mesh import DeviceMesh
from shardwise.distributed_embedding.table_parameters import CacheCounts, EmbeddingTables
from shardwise.dtensor import DTensor
from shardwise.placement_types import Shard

HEADER = (
    "table", "rows", "columns", "combined", "treatment", "ranks", "bytes", "here",
    "ids expected", "ids", "rows asked", "received",
)  # fmt: skip
NAMES = (0, 3, 4, 5)  # the columns of texts, which are flush left
CACHE_HEADER = (
    "table in files", "rows in memory", "hits", "misses", "hit rate", "evictions", "read", "written",
    "values in memory", "state in memory",
)  # fmt: skip


def explain(layer: EmbeddingTables, *, reasons: bool = False) -> str:
    """A table of text, with a line per embedding table: its size, treatment, ranks, and bytes on all ranks and on this one; and for the
    last lookup the ids that the plan expected, the ids that arrived here, the rows that they named, and the bytes of rows that other ranks
    sent. Totals and the caches of tables in files follow. With `reasons`, it also gives the reason for the plan of each table. Sends
    nothing."""
    traffic = layer._core.traffic() or [(0, 0, 0)] * len(layer.configs)
    rows, numbers = [], []
    plans = layer.plan.table_plans
    for index, (config, planned, arrived) in enumerate(zip(layer.configs, plans, traffic, strict=True)):
        n_bytes = config.n_elements * layer.tables[config.name].element_size()
        expected = config.ids_per_sample * layer._n_samples
        numbers.append((n_bytes, layer._core.bytes_here(index), expected, *arrived))
        is_whole = planned.treatment == "replicated"
        ranks = "all" if is_whole else ranks_text({piece.rank for piece in planned.slices})
        size = (f"{config.n_rows:,}", f"{config.n_columns:,}")
        rows.append((config.name, *size, config.combiner, planned.treatment, ranks, *shown(*numbers[-1])))
    total = (f"{len(rows)} tables", "", "", "", "", "", *shown(*map(sum, zip(*numbers, strict=True))))
    text = table_text("", HEADER, rows, NAMES, total=total).rstrip()
    if counts := cache_counts(layer):
        text += "\n\n" + caches_text(counts)
    if reasons:
        text += "\n\n" + "\n".join(f"{row[0]}: {planned.reason}" for row, planned in zip(rows, plans, strict=True))
    return text


def shown(
    n_bytes: float, here: float, expected: float, n_ids: float, n_rows: float, received: float
) -> tuple[str, ...]:
    return (in_units(n_bytes), in_units(here), f"{expected:,.0f}", f"{n_ids:,}", f"{n_rows:,}", in_units(received))


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> layer.memory_report().ranks[0].replicated
    0
    """

    replicated: int  # tables that every rank has
    sharded: int  # for tables in files: the rows in memory
    optimizer: int  # for tables in files: the state of these rows
    gradients: int
    buffers: int  # buffers of rows on their way, kept for the next step
    files: int = 0  # tables and optimizer state in files

    @property
    def total(self) -> int:
        """The bytes in memory."""
        return self.replicated + self.sharded + self.optimizer + self.gradients + self.buffers


@dataclass(frozen=True)
class MemoryReport:
    """The bytes of each rank; str() is a table. Totals and imbalance count memory, not files.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> report = layer.memory_report()
    >>> sum(memory.sharded for memory in report.ranks)
    32000
    """

    ranks: tuple[RankMemory, ...]

    @property
    def total(self) -> int:
        return sum(rank.total for rank in self.ranks)

    @property
    def imbalance(self) -> float:
        """The bytes of the rank that holds most, divided by the mean."""
        return max(rank.total for rank in self.ranks) * len(self.ranks) / max(self.total, 1)

    def __str__(self) -> str:
        header = ["rank", "replicated", "sharded", "optimizer", "gradients", "buffers", "in all"]
        columns = [[getattr(rank, name) for rank in self.ranks] for name in (*header[1:6], "total")]
        if any(rank.files for rank in self.ranks):
            header.append("in files")
            columns.append([rank.files for rank in self.ranks])
        rows = [(str(rank), *map(in_units, numbers)) for rank, numbers in enumerate(zip(*columns, strict=True))]
        total = ("all", *(in_units(sum(column)) for column in columns))
        totals = [rank.total for rank in self.ranks]
        heaviest = totals.index(max(totals))
        return (
            table_text("", header, rows, (), total=total)
            + f"imbalance {self.imbalance:.2f}: rank {heaviest} holds {in_units(totals[heaviest])}, the mean is "
            + in_units(self.total / len(totals))
        )


def memory_report(layer: EmbeddingTables, *optimizers: torch.optim.Optimizer) -> MemoryReport:
    """The bytes of each rank: tables, state of these optimizers, gradients, and buffers of messages; print() shows a table. For tables in
    files, the rows in memory count as memory, and the files are counted separately. Collective: one gather of six numbers."""
    tables = layer._parameters_in_order()
    plans = layer.plan.table_plans
    kinds = [0, 0]
    hot = cache_counts(layer)
    state = sum(counts.state_bytes for counts in hot.values())
    in_files = 0
    for index, (config, planned) in enumerate(zip(layer.configs, plans, strict=True)):
        n_bytes = sum(values.nbytes for values, _, _ in layer._core.pieces(index))
        if counts := hot.get(config.name):
            in_files += n_bytes
            n_bytes = counts.value_bytes
        kinds[planned.treatment != "replicated"] += n_bytes
    for table in tables:
        for optimizer in optimizers:
            for value in optimizer.state.get(table, {}).values():
                for tensor in local_tensors(value):
                    in_file = _C.lies_in_file(tensor)
                    in_files += tensor.nbytes * in_file
                    state += tensor.nbytes * (not in_file)
    gradients = sum(tensor.nbytes for table in tables for tensor in local_tensors(table.grad))
    numbers = [*kinds, state, gradients, layer._core.buffer_bytes(), in_files]
    return MemoryReport(tuple(RankMemory(*row) for row in on_all_ranks(numbers, layer.mesh).tolist()))


def cache_counts(layer: EmbeddingTables) -> dict[str, CacheCounts]:
    """For each table in files, the counts of this rank's cache since it was made."""
    counts = {config.name: layer._core.cache_counts(index) for index, config in enumerate(layer.configs)}
    return {name: CacheCounts(*each) for name, each in counts.items() if each is not None}


def caches_text(counts: Mapping[str, CacheCounts]) -> str:
    def row(name: str, each: CacheCounts) -> tuple[str, ...]:
        numbers = (f"{number:,}" for number in each[:3])
        return (name, *numbers, f"{each.hit_rate:.1%}", f"{each[3]:,}", *map(in_units, each[4:]))

    every = CacheCounts(*map(sum, zip(*counts.values(), strict=True)))
    rows = [row(name, each) for name, each in counts.items()]
    return table_text("", CACHE_HEADER, rows, (0,), total=row(f"{len(counts)} tables", every)).rstrip()


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
