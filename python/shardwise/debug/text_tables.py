"""Tables of characters."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

__all__ = ["table_text"]

WIDTH = 160


def table_text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], n_texts: int) -> str:
    """The first `n_texts` columns are texts, the others numbers."""
    from rich.console import Console  # some hundredths of a second, which `import shardwise` need not take
    from rich.table import Table

    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < n_texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
