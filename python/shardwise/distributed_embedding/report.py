"""What a DistributedEmbedding holds and what its last lookup sent, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def explained(layer: DistributedEmbedding) -> str:
    traffic = layer._core.traffic() or [(0, 0, 0)] * len(layer.configs)
    rows = []
    for index, (config, planned, (n_ids, n_rows, n_bytes)) in enumerate(
        zip(layer.configs, layer.plan.table_plans, traffic, strict=True)
    ):
        here = sum(values.nbytes for values, _, _ in layer._core.pieces(index))
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
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    return "\n".join(line(row, widths) for row in (HEADER, *rows))


def line(row: tuple[str, ...], widths: list[int]) -> str:
    """The names flush left, the numbers flush right."""
    cells = [
        cell.ljust(width) if column in (0, 3, 4) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def shortened(ranks: list[int]) -> str:
    """0-3, or 0, 5, 7; of many the first and how many more."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
