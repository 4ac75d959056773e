"""Tables of text: the contents of a DistributedEmbedding, and what its last lookup sent."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from shardwise import _C
from shardwise.debug.memory import local_tensors
from shardwise.debug.text_tables import table_text
from shardwise.distributed_embedding.hot_rows import gathered
from shardwise.distributed_embedding.layer_parts import LayerParts
from shardwise.distributed_embedding.storage import CacheCounts

HEADER = (
    "table", "rows", "columns", "combined", "treatment", "ranks", "bytes", "here",
    "ids expected", "ids", "rows asked", "received",
)  # fmt: skip
NAMES = (0, 3, 4, 5)  # the columns of texts, which are flush left
CACHE_HEADER = (
    "table in files", "rows in memory", "hits", "misses", "hit rate", "evictions", "read", "written",
    "values in memory", "state in memory",
)  # fmt: skip


def explain(layer: LayerParts, *, reasons: bool = False) -> str:
    """A table of text, with a line per embedding table: its size, treatment, ranks, and bytes on all ranks and on this one; and for the
    last lookup the ids that the plan expected, the ids that arrived here, the rows that they named, and the bytes of rows that other ranks
    sent. Totals and the caches of tables in files follow. With `reasons`, it also gives the reason for the plan of each table. Sends
    nothing."""
    traffic = layer._core.traffic() or [(0, 0, 0)] * len(layer.configs)
    rows, reason_of = [], []
    totals = [0, 0, 0.0, 0, 0, 0]
    for index, (config, planned, (n_ids, n_rows, received)) in enumerate(
        zip(layer.configs, layer.plan.table_plans, traffic, strict=True)
    ):
        n_bytes = config.n_elements * layer.tables[config.name].element_size()
        here = layer._core.bytes_here(index)
        expected = config.ids_per_sample * layer._n_samples
        is_whole = planned.treatment == "replicated"
        numbers = (n_bytes, here, expected, n_ids, n_rows, received)
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        rows.append(
            (
                config.name,
                f"{config.n_rows:,}",
                f"{config.n_columns:,}",
                config.combiner,
                planned.treatment,
                "all" if is_whole else shortened(sorted({piece.rank for piece in planned.slices})),
                *shown(*numbers),
            )
        )
        reason_of.append(planned.reason)
    total = (f"{len(layer.configs)} tables", "", "", "", "", "", *shown(*totals))
    text = table_text("", HEADER, rows, NAMES, total=total).rstrip()
    if counts := layer.cache_counts():
        text += "\n\n" + caches_text(counts)
    if reasons:
        text += "\n\n" + "\n".join(f"{row[0]}: {reason}" for row, reason in zip(rows, reason_of, strict=True))
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


def memory_report(layer: LayerParts, *optimizers: torch.optim.Optimizer) -> MemoryReport:
    """The bytes of each rank: tables, state of these optimizers, gradients, and buffers of messages; print() shows a table. For tables in
    files, the rows in memory count as memory, and the files are counted separately. Collective: one gather of six numbers."""
    tables = layer._parameters_in_order()
    plans = layer.plan.table_plans
    kinds = [0, 0]
    hot = layer.cache_counts()
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
    numbers = torch.tensor([*kinds, state, gradients, layer._core.buffer_bytes(), in_files])
    return MemoryReport(
        tuple(RankMemory(*row) for row in gathered(numbers, layer.mesh).view(-1, len(numbers)).tolist())
    )


def caches_text(counts: Mapping[str, CacheCounts]) -> str:
    rows = [cache_row(name, each) for name, each in counts.items()]
    total = cache_row(
        f"{len(counts)} tables", CacheCounts(*(sum(column) for column in zip(*counts.values(), strict=True)))
    )
    return table_text("", CACHE_HEADER, rows, (0,), total=total).rstrip()


def cache_row(name: str, counts: CacheCounts) -> tuple[str, ...]:
    numbers = (f"{each:,}" for each in counts[:3])
    return (name, *numbers, f"{counts.hit_rate:.1%}", f"{counts[3]:,}", *map(in_units, counts[4:]))


def in_units(n_bytes: float) -> str:
    """1536 -> 1.5 KiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1000:
            return f"{n_bytes:,.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.1f} TiB"


def shortened(ranks: list[int]) -> str:
    """0-3, or 0, 5, 7; if there are many, the first ones and how many more."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
