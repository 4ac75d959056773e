"""Tables of characters."""

import io
from collections.abc import Collection, Iterable, Sequence

WIDTH = 160
UNFOLDED = 1 << 16
RULED = "    \n    \n ── \n    \n    \n ── \n    \n    \n"  # a line below the heading, and one above the total


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
    from rich.box import Box  # some hundredths of a second, which `import shardwise` need not take
    from rich.console import Console
    from rich.table import Table

    of_texts = range(texts) if isinstance(texts, int) else texts
    table = Table(title=title or None, box=None, pad_edge=False, title_justify="left", show_edge=False)
    if total is not None:
        table.box, table.show_footer, table.padding = Box(RULED), True, (0, 1, 0, 0)
    for i, column in enumerate(columns):
        table.add_column(
            column,
            footer="" if total is None else total[i],
            justify="left" if i in of_texts else "right",
            overflow="fold",
            no_wrap=total is not None,
        )
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(  # plain text in any environment
        file=text,
        width=WIDTH if total is None else UNFOLDED,
        height=25,  # with a width and a height, a dumb terminal does not use its own
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
    ).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
