"""Tables of characters."""

import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest

WIDTH = 160
MOST_RUNS = 8
GAP = "  "
STYLE = re.compile(r"\x1b\[[\d;]*m")


def table_text(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int | Collection[int],
    *,
    total: Sequence[str] | None = None,
) -> str:
    """`texts`: the columns of texts, or the number of them if they come first; the others are numbers. `total`: a last row. Lines separate it and
    the heading from the rest. A table without it folds its longest texts to fit in WIDTH characters.
    """
    of_texts = range(texts) if isinstance(texts, int) else texts
    numbers = {i for i in range(len(columns)) if i not in of_texts}
    if total is None:
        lines = [line for row in aligned([columns, *rows], WIDTH, numbers) for line in row]
    else:
        heading, *body, last = aligned([columns, *rows, total], None, numbers)
        rule = "─" * width_of(heading[0])
        lines = [*heading, rule, *(line for row in body for line in row), rule, *last]
    return "".join(line.rstrip() + "\n" for line in ([title] if title else []) + lines)


def ranks_text(ranks: Iterable[int]) -> str:
    """Names ranks: "0-3, 7", or "3, 11, ..., 507 (64 ranks)"."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if len(runs) > MOST_RUNS:
        return f"{ordered[0]}, {ordered[1]}, ..., {ordered[-1]} ({len(ordered)} ranks)"
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """rank 2; ranks 0-3, 7."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks_text(ranks)}"


def aligned(rows: Sequence[Sequence[str]], width: int | None, numbers: Collection[int] = ()) -> list[list[str]]:
    """The lines of each row, in columns as wide as their widest cell. Columns `numbers` are aligned on the right. If the columns take more than
    `width` characters, the widest are folded.
    """
    widths = [max(width_of(line) for cell in cells for line in cell.split("\n")) for cells in zip(*rows)]
    if width is not None:
        available = width - len(GAP) * (len(widths) - 1)
        fitting = (n for n in range(max(widths), 1, -1) if sum(min(each, n) for each in widths) <= available)
        widest = next(fitting, 1)
        widths = [min(each, widest) for each in widths]

    def aligned_row(row: Sequence[str]) -> list[str]:
        lines = []
        for parts in zip_longest(*(folded(cell, width) for cell, width in zip(row, widths)), fillvalue=""):
            blanks = [" " * (width - width_of(part)) for part, width in zip(parts, widths)]
            lines.append(
                GAP.join(blanks[i] + part if i in numbers else part + blanks[i] for i, part in enumerate(parts))
            )
        return lines

    return [aligned_row(row) for row in rows]


def folded(cell: str, width: int) -> list[str]:
    """The lines of a cell, at most `width` wide: words stay whole if they fit."""
    lines: list[str] = []
    for line in cell.split("\n"):
        fits = width_of(line) <= width
        lines += [line] if fits else textwrap.wrap(line, width, break_on_hyphens=False)
    return lines


def width_of(text: str) -> int:
    """The number of terminal columns that `text` takes; ANSI styles take none."""
    text = STYLE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def in_units(n_bytes: float) -> str:
    """1536 -> 1.5 KiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1000:
            return f"{n_bytes:,.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.1f} TiB"


def in_time(seconds: float) -> str:
    """0.00123456 -> 1.23 ms"""
    rounded = float(f"{seconds:.3g}")
    unit, length = next((each for each in (("us", 1e-6), ("ms", 1e-3)) if rounded < 1000 * each[1]), ("s", 1.0))
    return f"{rounded / length:,.10g} {unit}"
