"""What a DistributedEmbedding holds and what its last lookup sent, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwise.distributed_embedding.storage import CacheCounts

if TYPE_CHECKING:
    from shardwise.distributed_embedding.layer import DistributedEmbedding

HEADER = (
    "table",
    "rows",
    "columns",
    "treatment",
    "ranks",
    "bytes here",
    "ids/sample",
    "ids",
    "rows asked",
    "bytes received",
)
CACHE_HEADER = (
    "table in files",
    "rows in memory",
    "hits",
    "misses",
    "hit rate",
    "evictions",
    "bytes read",
    "bytes written",
)


def explained(layer: DistributedEmbedding) -> str:
    traffic = layer._core.traffic() or [(0, 0, 0)] * len(layer.configs)
    rows = []
    for index, (config, planned, (n_ids, n_rows, n_bytes)) in enumerate(
        zip(layer.configs, layer.plan.table_plans, traffic, strict=True)
    ):
        here = layer._core.bytes_here(index)
        ranks = sorted({piece.rank for piece in planned.slices})
        rows.append(
            (
                config.name,
                f"{config.n_rows:,}",
                f"{config.n_columns:,}",
                planned.treatment,
                "all" if planned.treatment == "replicated" else shortened(ranks),
                f"{here:,}",
                f"{config.ids_per_sample:g}",
                *(f"{count:,}" for count in (n_ids, n_rows, n_bytes)),
            )
        )
    totals = [sum(int(row[column].replace(",", "")) for row in rows) for column in (5, 7, 8, 9)]
    rows.append(
        (f"{len(layer.configs)} tables", "", "", "", "", f"{totals[0]:,}", "", *(f"{total:,}" for total in totals[1:]))
    )
    text = aligned((HEADER, *rows), texts=(0, 3, 4))
    caches = [cache_row(name, counts) for name, counts in layer.cache_counts().items()]
    return text + ("\n\n" + aligned((CACHE_HEADER, *caches), texts=(0,)) if caches else "")


def cache_row(name: str, counts: CacheCounts) -> tuple[str, ...]:
    return (
        name,
        *(f"{each:,}" for each in counts[:3]),
        f"{counts.hit_rate:.1%}",
        *(f"{each:,}" for each in counts[3:]),
    )


def aligned(rows: Sequence[tuple[str, ...]], texts: tuple[int, ...]) -> str:
    """The columns `texts` flush left, numbers flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if column in texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def shortened(ranks: list[int]) -> str:
    """0-3, or 0, 5, 7; of many the first and how many more."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
