"""Pictures on their way to a terminal or a file."""

from __future__ import annotations

import sys

from shardwise import _C
from shardwise.debug.picture import File, Picture, format_of_file

__all__ = ["made", "shown_picture"]


def made(
    figures: _C.Figures,
    format: str | None,
    file: File | None,
    color: bool = False,
    max_width: int = 100,
    title: str = "",
) -> Picture:
    """The picture in `format`, else in that of `file`'s suffix, else text; written to `file` where there is one."""
    if file is not None:
        format = format_of_file(file, format)
    drawn = Picture(figures, title=title, format=format or "text", color=color, max_width=max_width)
    if file is not None:
        drawn.save(file, format)
    return drawn


def shown_picture(figures: _C.Figures, header: str, use_rich: bool, format: str | None, file: File | None) -> Picture:
    """The picture, printed under `header` where it is not written to `file`. Text is in colour with `use_rich`, and on terminals that
    have colours: as wide as these are."""
    drawn = made(figures, format, file, title=header)
    if file is not None:
        return drawn
    if header:
        print(header)
    if drawn.format != "text" or not (use_rich or sys.stdout.isatty()):
        print(drawn)
        return drawn
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True, color_system="256") if use_rich else Console()
    if not use_rich:
        drawn.max_width = console.width
    drawn.color = console.color_system is not None
    console.print(Text.from_ansi(str(drawn)), soft_wrap=True)
    return drawn
