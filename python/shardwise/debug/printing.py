"""Makes pictures and prints them, or writes them to files."""

import os
import shutil
import sys

from shardwise import _C
from shardwise.debug.picture import File, Picture, format_of_file


def made(
    figures: _C.Figures,
    format: str | None,
    file: File | None,
    color: bool = False,
    max_width: int = 100,
    title: str = "",
) -> Picture:
    """The picture in `format`; default: by the suffix of `file`, else text. It is written to `file` if that is given."""
    drawn = Picture(figures, title=title, format=format_of_file(file, format), color=color, max_width=max_width)
    if file is not None:
        drawn.save(file, format)
    return drawn


# Plain characters for the lines of drawings and the shades and bars of plans, if the output has no others.
PLAIN_LINES = str.maketrans("┌┬┐├┼┤└┴┘╵╷╴╶│─⋮⋯…·░▒▓█▁▂▃▄▅▆▇", "+" * 9 + "||--|-:...:=%#1234567")


def printable(text: str) -> str:
    """`text` in characters that standard output can encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(PLAIN_LINES).encode(encoding, "replace").decode(encoding)


def shows_colors() -> bool:
    """True if standard output is a terminal with colours, and NO_COLOR is not set."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb", "unknown")


def shown_picture(figures: _C.Figures, header: str, use_rich: bool, format: str | None, file: File | None) -> Picture:
    """The picture, printed under `header` unless it is written to `file`. Text is in colour with `use_rich`, and on terminals with colours, whose
    width it then has."""
    drawn = made(figures, format, file, title=header)
    if file is not None or sys.stdout is None:  # a program may have no output
        return drawn
    if header:
        print(printable(header))
    if drawn.format == "text":
        drawn.color = use_rich or shows_colors()
        if sys.stdout.isatty() and not use_rich:
            drawn.max_width = shutil.get_terminal_size().columns
    print(printable(str(drawn)))
    return drawn
