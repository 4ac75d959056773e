"""Every place in the sources that makes an error message, and whether a case of the catalogue provokes it.

    python scripts/error_sites.py            # the sites that no case of docs/errors.md provokes, by room
    python scripts/error_sites.py --all      # all sites
    python scripts/error_sites.py --table    # numbers per room, as a table of Markdown

A site is a TORCH_CHECK_VALUE and its like in C++, or a raise with words in Python. A message of the page belongs to a site if the words that stand
in the sources come in it, in their order. Not counted: internal assertions, kernels/cuda, compat's and the command line's messages for
arguments, and errors that only pass on another one.
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("placements", "plans", "pictures", "runtime", "ops", "wrappers", "python")
MACRO = re.compile(r"\b(?:TORCH_CHECK(?:_VALUE|_INDEX|_TYPE|_NOT_IMPLEMENTED|_WITH)?|C10_THROW_ERROR)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
HOLE = "\0"  # where a value stands in a message


@dataclass(frozen=True)
class Site:
    """Where a message is made, and its words with HOLE for each value."""

    room: str
    file: str
    line: int
    words: str

    def is_of(self, message: str) -> bool:
        """Whether the words stand in the message, in their order."""
        end = 0
        for part in self.words.split(HOLE):
            begin = message.find(part, end)
            if begin < 0:
                return False
            end = begin + len(part)
        return True

    def text(self) -> str:
        return self.words.replace(HOLE, "…")


def call_at(text: str, begin: int) -> str:
    """The arguments of the call whose "(" is before `begin`; parentheses within literals do not count."""
    depth, i = 1, begin
    while depth:
        if text[i] == '"':
            match = LITERAL.match(text, i)
            assert match is not None
            i = match.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return text[begin : i - 1]


def cpp_words(arguments: str) -> str:
    """The literals of a check's arguments, and HOLE for what stands between."""
    message = arguments
    first = LITERAL.search(message)
    if first is None:
        return ""
    is_format = "fmt::format(" in message[: first.start()]
    parts: list[str] = []
    end = first.start()
    for literal in LITERAL.finditer(message, first.start()):
        between = message[end : literal.start()].strip()
        inside = message[: literal.start()]
        nested = inside.count("(") - inside.count(")") > (1 if is_format else 0)
        if nested:
            end = literal.start()
            continue
        if between and parts:
            parts.append(HOLE)
        parts.append(literal[1].replace('\\"', '"').replace("\\n", "\n"))
        end = literal.end()
    words = "".join(parts)
    if is_format:
        words = re.sub(r"\{\{", "{", re.sub(r"\}\}", "}", re.sub(r"(?<!\{)\{[\w:.,]*\}(?!\})", HOLE, words)))
    return re.sub(f"{HOLE}+", HOLE, words)


def cpp_sites(path: Path, room: str) -> Iterator[Site]:
    text = re.sub(r"^\s*//.*$", lambda line: " " * len(line[0]), path.read_text(), flags=re.MULTILINE)
    for macro in MACRO.finditer(text):
        words = cpp_words(call_at(text, macro.end()))
        if len(re.sub(rf"\W|{HOLE}", "", words)) >= 12:
            yield Site(room, str(path.relative_to(ROOT)), text.count("\n", 0, macro.start()) + 1, words)


def python_words(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(python_words(part) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return python_words(node.left) + python_words(node.right)
    return HOLE


def python_sites(path: Path, room: str) -> Iterator[Site]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            words = re.sub(f"{HOLE}+", HOLE, python_words(node.exc.args[0]))
            if len(re.sub(rf"\W|{HOLE}", "", words)) >= 12:
                yield Site(room, str(path.relative_to(ROOT)), node.lineno, words)


def sites() -> list[Site]:
    found: list[Site] = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in (".cpp", ".h"):
                found += cpp_sites(path, room)
            elif path.suffix == ".py" and not re.search(
                r"shardwise/(compat/|__main__|_command|_embedding_command)", name
            ):
                found += python_sites(path, room)
    return found


def messages() -> list[str]:
    """Those on the page: each stands in a block of its own, after the name of the exception."""
    page = (ROOT / "docs" / "errors.md").read_text()
    return re.findall(r"^```text\n\w+: (.*?)\n```$", page, re.MULTILINE | re.DOTALL)


def covered(found: list[Site]) -> set[Site]:
    here = messages()
    return {site for site in found if any(site.is_of(message) for message in here)}


def table(found: list[Site]) -> str:
    here = covered(found)
    all_of = Counter(site.room for site in found)
    done = Counter(site.room for site in here)
    rows = [f"| `{room}/` | {all_of[room]} | {done[room]} |" for room in ROOMS if all_of[room]]
    heading = ["| room | places that make a message | provoked on this page |", "|---|---|---|"]
    return "\n".join([*heading, *rows, f"| together | {len(found)} | {len(here)} |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all sites, not only those without a case")
    parser.add_argument("--table", action="store_true", help="numbers per room")
    options = parser.parse_args()
    found = sites()
    if options.table:
        print(table(found))
        return
    here = set() if options.all else covered(found)
    for site in found:
        if site not in here:
            print(f"{site.file}:{site.line}: {site.text()}")


if __name__ == "__main__":
    main()
