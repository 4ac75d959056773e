"""Picture: the result of visualize_sharding() and similar functions, drawn when it is first used, printed or written to a file."""

from __future__ import annotations  # builds of the core alone have no _C.Figures

import html
import operator
import os
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardwise import _C

File = str | os.PathLike[str]

_PARTS = Path(__file__).parent / "page"


@cache
def formats() -> dict[str, tuple[str, ...]]:
    """The formats, and the suffixes of their files. This module draws pages; C++ draws and lists the other formats."""
    return {name: (suffix,) for name, suffix in _C.picture_formats()} | {"html": (".html", ".htm")}


class Picture:
    """A picture of a layout, a mesh, a module or a move. str(picture) is its text, a notebook shows it, and save() writes a file.

    >>> drawn = sw.debug.picture(sw.ones(4, 6, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> drawn
    <Picture of '[4, 6] as [Shard(0)] on 4 ranks (0-3), 96 bytes', drawn as text>
    >>> len(drawn.draw("html")) > 1000  # save("x.html") writes this page, which needs nothing else
    True

    Formats: "text"; "svg", a drawing for light and dark pages; "html", an interactive page; "json", the values for other
    programs. A picture is equal on every rank. It is drawn when it is first used. Nothing is sent.
    """

    def __init__(
        self, figures: _C.Figures, *, title: str = "", format: str = "text", color: bool = False, max_width: int = 100
    ) -> None:
        self._figures = figures
        self.title = title
        self.format = known_format(format)
        self.color = bool(color)
        self.max_width = known_width(max_width)

    def draw(self, format: str | None = None) -> str:
        """The picture in `format`; default: the format that it was made with. Raises ValueError for an unknown format. Cost: milliseconds; under a
        second for 10,000 ranks."""
        wanted = self.format if format is None else known_format(format)
        is_page = wanted == "html"
        return self._page() if is_page else self._figures.draw(wanted, self.color and wanted == "text", self.max_width)

    def save(self, file: File, format: str | None = None) -> Path:
        """Writes the picture to `file` and returns the path. The suffix of the file, or `format`, gives the format.

        Raises ValueError if the suffix is unknown or contradicts `format`, and OSError for a file that cannot be written.
        """
        wanted = format_of_file(file, format)
        path = Path(os.fsdecode(file))
        drawn = self.draw(wanted)
        try:
            path.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise type(error)(
                f"[picture] file {str(path)!r} cannot be written: {error.strerror}. Give a path in an existing folder that is writable."
            ) from None
        return path

    def __str__(self) -> str:
        return self.draw()

    def __repr__(self) -> str:
        return f"<Picture of {self._first_line()!r}, drawn as {self.format}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.draw("json") == other.draw("json") and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def _repr_html_(self) -> str | None:
        """The page in a frame, for notebooks. Without jinja2 they show the SVG."""
        if find_spec("jinja2") is None:
            return None
        style = "width:100%;height:560px;border:0"
        return f'<iframe srcdoc="{html.escape(self._page())}" style="{style}" title="Shardwise"></iframe>'

    def _repr_svg_(self) -> str:
        return self.draw("svg")

    def _first_line(self) -> str:
        return self.title or self._figures.draw("text", False, self.max_width).split("\n", 1)[0]

    def _page(self) -> str:
        data, text = (self._figures.draw(format, False, self.max_width) for format in ("page", "text"))
        data = data.replace("</", "<\\/").replace("<!--", "\\u003c!--")  # these would end the script element
        parts = {"svg_rules": _C.page_style(), "style": _part("page.css"), "script": _part("page.js")}
        return str(template_of(_PARTS / "page.html").render(title=self._first_line(), text=text, data=data, **parts))


@cache
def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


@cache
def template_of(page: Path) -> Any:
    """The template in a file. Raises ModuleNotFoundError without jinja2."""
    try:
        import jinja2  # needed only to draw pages
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "[picture] html needs jinja2, which is not installed. pip install shardwise[pages], or use another format: "
            f"{', '.join(name for name in formats() if name != 'html')}."
        ) from None

    loader = jinja2.FileSystemLoader([page.parent, _PARTS])  # both have parts that it includes
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader).get_template(page.name)


def known_width(max_width: int) -> int:
    """`max_width` as an int. Raises TypeError if it is no whole number, and ValueError if it is out of range."""
    try:
        width = operator.index(max_width)
    except TypeError:
        raise TypeError(
            f"[picture] max_width is {type(max_width).__name__}: it is the greatest number of columns of a text. Give a whole number such "
            "as 100."
        ) from None
    if not 1 <= width < 1 << 63:
        raise ValueError(
            f"[picture] max_width is {width}: a text has at least one column, and they are counted in 64 bits. Give a number such as 100."
        )
    return width


def known_format(format: str) -> str:
    """`format`. Raises TypeError if it is no text, and ValueError if it is unknown."""
    if not isinstance(format, str):
        raise TypeError(
            f"[picture] format is {type(format).__name__}: the name of a format is a string. Use one of {', '.join(formats())}."
        )
    if format not in formats():
        raise ValueError(
            f"[picture] format {format!r} is unknown: a picture is drawn in one of the formats it knows. Use one of "
            f"{', '.join(formats())}."
        )
    return format


def format_of_file(file: File | None, format: str | None) -> str:
    """The format of a picture in a file; without a file, `format` or text. Raises ValueError if the suffix of the file and `format` contradict each
    other, or neither gives a format."""
    if file is None:
        return "text" if format is None else known_format(format)
    if not isinstance(file, str | os.PathLike):
        raise TypeError(
            f"[picture] file is {type(file).__name__}: a picture is written to a path. Give a name such as 'x.html', or print the picture."
        )
    if "\0" in os.fsdecode(file):
        raise ValueError(
            f"[picture] file {os.fsdecode(file)!r} holds a null character, which no system has in a name. Give a name such as 'x.html'."
        )
    suffix = Path(os.fsdecode(file)).suffix.lower()
    by_name = next((name for name, suffixes in formats().items() if suffix in suffixes), None)
    wanted = by_name if format is None else known_format(format)
    if wanted is None:
        known = ", ".join(suffix for suffixes in formats().values() for suffix in suffixes)
        raise ValueError(
            f"[picture] file {str(file)!r} has a suffix that names no format: without format=, the suffix sets the format. Give "
            f"format=, or a name that ends in one of {known}."
        )
    if by_name not in (None, wanted):
        raise ValueError(
            f"[picture] file {str(file)!r} is named as {by_name}, and format is {format!r}: they must agree. Leave format out, or end "
            f"the name in {formats()[wanted][0]}."
        )
    return wanted


def made(
    figures: _C.Figures,
    format: str | None = None,
    file: File | None = None,
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
