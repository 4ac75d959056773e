"""Docstrings are Markdown, as the pages are; autodoc reads reStructuredText. This turns the one into the other.

Paragraphs, lists, code in backticks, indented blocks of Python, and sessions, which begin with ">>>".
"""

import re
import textwrap
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark")
SESSION = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


def to_rst(text: str) -> list[str]:
    """The lines of reStructuredText that say what the Markdown `text` says."""
    lines: list[str] = []
    indents: list[str] = []
    marker: str | None = None
    text = SESSION.sub(lambda session: textwrap.indent(session[0], "    "), text)
    for token in PARSER.parse(text):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            indents.append("")
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            indents.pop()
            lines.append("")
        elif token.type == "list_item_open":
            marker = f"{token.info}." if token.info else "-"
            indents[-1] = " " * (len(marker) + 1)
        elif token.type in ("fence", "code_block"):
            language = token.info or ("pycon" if token.content.lstrip().startswith(">>>") else "python")
            outer = "".join(indents)
            lines += [f"{outer}.. code-block:: {language}", ""]
            lines += [f"{outer}   {line}".rstrip() for line in token.content.splitlines()] + [""]
        elif token.type == "inline":
            outer = "".join(indents[:-1]) if marker else "".join(indents)
            first = f"{outer}{marker} " if marker else outer
            for i, line in enumerate(inline(token).split("\n")):
                lines.append((first if i == 0 else "".join(indents)) + line)
            lines.append("")
            marker = None
    return lines


def inline(token: Token) -> str:
    text = ""
    for child in token.children or []:
        if child.type == "code_inline":
            text += f"``{child.content}``"
        elif child.type in ("softbreak", "hardbreak"):
            text += "\n"
        else:
            words = re.sub(r"([\\*_|`])", r"\\\1", child.content)
            follows_literal = (
                text.endswith("``") and words[:1].isalnum()
            )  # whose end wants a space, or one that is not shown
            text += "\\ " + words if follows_literal else words
    return text


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
