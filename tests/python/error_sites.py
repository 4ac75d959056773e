"""Every place in the sources that makes an error message, and whether a case of the catalogue provokes it.

    python tests/python/error_sites.py            # the sites that no case of tests/python/error_cases/ provokes, by reason
    python tests/python/error_sites.py --all      # all sites, by room
    python tests/python/error_sites.py --table    # numbers per room, as a table of Markdown

A site is a SW_CHECK_VALUE (text/check.h), a TORCH_CHECK_VALUE and their like in C++, or a raise with words in Python. A message of the page belongs to a site if the words that stand
in the sources come in it, in their order. Not counted: internal assertions, kernels/cuda, shardwise/ (C++ alone), compat's and the command line's
messages for arguments, and errors that only pass on another one.

ELSEWHERE names every site that the page does not have, by words of its message or by its place: what other machines or programs say, and what C++ programs
alone can do wrong, of which a test in C++ has the words. A test holds that these are all.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "_generated" / "errors.txt"
ROOMS = ("placements", "plans", "text", "pictures", "runtime", "ops", "threads", "wrappers", "python")
MACRO = re.compile(r"\b(?:(?:TORCH|SW)_CHECK(?:_VALUE|_INDEX|_TYPE|_NOT_IMPLEMENTED|_WITH)?|C10_THROW_ERROR)\(")
DEFINED = "text/check.h"  # has the macros
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
HOLE = "\0"  # where a value stands in a message

IN_CPP = "a program in C++ alone: its test is in tests/"
ELSEWHERE = {
    "a GPU for which nothing was built or started": (
        ' tensors. Start the ranks with one: "cpu:gloo,cuda:nccl"',
        ", for which this build of Shardwise has no kernels",
        ", and the map lives in host memory. Give a mesh",
    ),
    "a build without Gloo": ("this build has no Gloo",),
    "an environment without a package of an extra, or with another torch": (
        " needs tqdm, which is not installed",
        " needs jinja2, which is not installed",
        "was compiled against torch ",
    ),
    "forward mode, whose level belongs to the process and not to a rank that is a thread": (
        "torch has no forward mode of this",
        "its conversions have no forward mode",
    ),
    "a build of the core alone": (" in this build, which has the core alone",),
    "a process group of one's own, without a store": ("and cannot read its members' pieces",),
    "a file that is written to while it is read, or was made by hand": (
        "its elements end after its ",
        "the local part was saved as ",
    ),
    "ranks that differ under the check, which tests/python/test_lone_calls.py starts": (
        " as call ",
        "SHARDWISE_CHECK_SECONDS is ",
        "the ranks have different offsets",
        " to be equal on all ranks, but it is not",
    ),
    "more ranks than two": (
        "and torch.distributed.tensor then splits it differently",
        ", which overlap. Give the slices of ",
    ),
    "a backend whose groups all ranks of the world make": (
        " alone does not exist, and the rank cannot ",
        ": their backend needs all ranks to make a group",
    ),
    "a dry run, which ranks cannot start: tests/python/test_dry_run.py and test_dry_run_command.py": (
        " is being counted already",
        " are being recorded already",
        " reads a value (",
        "Give the path of a Python program",
        "Give the name of a module, as for ",
        " ranks is more than the job has, ",
        " before its program did",
        ", which needs values, and a dry run has none",
        ", which sends none. Objects of other ranks",
        ", and on meta nothing is known of the others' pieces",
    ),
    "a file of a dry run: tests/python/test_dry_run_ids.py": (
        "the histogram of ids has ",
        "Give finite numbers of 0 or more",
        "Give a number for each row or for each of some equal ranges",
    ),
    "a search by dry runs, which ranks cannot start: tests/python/test_suggest.py": (
        " does not take the batch: ",
        " plans fits into ",
        "no plan runs: ",
    ),
    "another program that sends to the live page": ("python/shardwise/live/board.py",),
    "what torch's tracers ask for, and take as an answer": (
        "graphs of DTensors are for the meshes of the process",
        " reads the values of its operands, but a traced program has no values",
        " takes a DTensor that was not made in the graph",
    ),
    IN_CPP: (
        # meshes and layouts
        " make different calls",
        "mesh is null",
        " places for ",
        "[local_sizes] rank ",
        " names for a mesh of ",
        " ranks, and this program is one process",
        " ranks, and the world has ",
        "[save] got a DTensor, ",
        ", which has no dim ",
        " again after a strided Shard",
        # groups and worlds
        " does not exist: the world has ",
        " occurs twice in ",
        "got no ranks",
        " does not fit a world of ",
        "[run_ranks] rank ",
        "the process groups of these ranks were destroyed",
        " is not a member of the group of ranks ",
        " is not set. Start the program with torchrun --no-python",
        ". Give it a number in [",
        # collectives and messages
        " do not split a tensor of shape ",
        " but receives ",
        " does not exist: the group has ",
        ", which is not contiguous",
        "is empty, of shape ",
        ", but the exchange is of ",
        " has a message ",
        " did not send within ",
        "a reader starts no message",
        "this process was forked from a rank",
        "takes no more messages, because one failed before",
        "there are no more facts",
        " do not lie in the ",
        # pieces, rules
        "[to_piece] rank ",
        " pieces, but",
        "[from_local] piece ",
        "torch has no operator ",
        # backends of threads
        " was written to between the call and its wait()",
        ", but the backend of ranks ",
        " cannot be grouped with sends and receives",
        "NCCL has no ",
        "never waited for its ",
        "cannot reduce with a pre-multiplied sum",
        " rows do not split evenly among ",
        " do not add up to the ",
        ", which expects ",
        " tensors. Pass one.",
        " names member ",
        " elements does not hold ",
        # layers
        "there are no inputs to concatenate",
        " uses table ",
        " inputs for ",
        "storage is set for table ",
        " has two slices of the same columns of table ",
        " tables, but the layer has ",
        "the plan puts table ",
        "[parallel_embedding] padding_idx ",
        "[parallel_weight] mesh dim ",
        "[parallel_weight] dim ",
        " does not exist: the mesh is ",
        "the route was not made by dispatch_tokens()",
    ),
}


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

    def is_meant_by(self, part: str) -> bool:
        """Words of the message, or the beginning of its place."""
        return part in self.words or self.file.startswith(part)

    def text(self) -> str:
        return self.words.replace(HOLE, "…")


def depths(text: str, begin: int = 0) -> Iterator[tuple[int, str, int]]:
    """Each place outside of literals, with its character and how many brackets are open after it."""
    depth, i = 0, begin
    while i < len(text):
        if text[i] == '"':
            match = LITERAL.match(text, i)
            assert match is not None
            i = match.end()
            continue
        depth += (text[i] in "([{") - (text[i] in ")]}")
        yield i, text[i], depth
        i += 1


def call_at(text: str, begin: int) -> str:
    """The arguments of the call whose "(" is before `begin`."""
    return text[begin : next(i for i, _, depth in depths(text, begin) if depth < 0)]


def split_arguments(text: str) -> list[str]:
    """At the commas that are neither within literals nor within brackets."""
    commas = [i for i, character, depth in depths(text) if character == "," and depth == 0]
    return [text[after + 1 : before].strip() for after, before in pairwise([-1, *commas, len(text)])]


def literal_words(argument: str) -> str | None:
    """The text of adjacent literals; None if the argument has other parts than literals."""
    if LITERAL.sub("", argument).strip():
        return None
    return "".join(literal.replace('\\"', '"').replace("\\n", "\n") for literal in LITERAL.findall(argument))


def cpp_words(arguments: list[str], are_formatted: bool) -> str:
    """The literals of a message's parts, and HOLE for what is a value. `are_formatted`: the parts are fmt::format's arguments."""
    parts = []
    for argument in arguments[:1] if are_formatted else arguments:
        calls_format = argument.startswith("fmt::format(")
        words = literal_words(split_arguments(call_at(argument, len("fmt::format(")))[0] if calls_format else argument)
        if (calls_format or are_formatted) and words is not None:
            words = re.sub(r"(?<!\{)\{[\w:.,]*\}(?!\})", HOLE, words).replace("{{", "{").replace("}}", "}")
        parts.append(HOLE if words is None else words)
    return re.sub(f"{HOLE}+", HOLE, "".join(parts))


def cpp_sites(path: Path, room: str) -> Iterator[Site]:
    text = re.sub(r"^[ \t]*//.*$", lambda line: " " * len(line[0]), path.read_text(), flags=re.MULTILINE)
    for macro in MACRO.finditer(text):
        n_before = 2 if macro[0].endswith("_WITH(") else 1  # the condition, the exception's type
        arguments = split_arguments(call_at(text, macro.end()))[n_before:]
        words = cpp_words(arguments, are_formatted=macro[0].startswith("SW_"))
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
            if path.suffix in (".cpp", ".h") and name != DEFINED:
                found += cpp_sites(path, room)
            elif path.suffix == ".py" and not re.search(
                r"shardwise/(compat/|__main__|_command|_embedding_command)", name
            ):
                found += python_sites(path, room)
    return found


def made_page() -> str:
    """The list of errors that scripts/docs makes."""
    if not PAGE.exists():
        sys.exit(
            f"{PAGE.relative_to(ROOT)} is not there. Run ./scripts/docs first: it runs the cases and writes this file."
        )
    return PAGE.read_text()


def messages(page: str) -> list[str]:
    """The messages of the page: each stands in a block of its own, after the name of the exception."""
    return re.findall(r"^```text\n\w+: (.*?)\n```$", page, re.MULTILINE | re.DOTALL)


def elsewhere(site: Site) -> str | None:
    """Why the page cannot have it; None for what it can."""
    return next((why for why, parts in ELSEWHERE.items() if any(site.is_meant_by(part) for part in parts)), None)


def cpp_test_texts() -> list[str]:
    """The tests in C++; literals beside each other are one."""
    paths = (ROOT / "tests").rglob("*.cpp")
    return [re.sub(r'"\s*\n\s*"', "", path.read_text()).replace('\\"', '"') for path in paths]


def covered(found: list[Site], page: str) -> set[Site]:
    here = messages(page)
    return {site for site in found if any(site.is_of(message) for message in here)}


def table(found: list[Site]) -> str:
    here = covered(found, made_page())
    counts = [Counter(site.room for site in sites) for sites in (found, here, of_cpp(found, here))]
    rows = [
        f"| `{room}/` | " + " | ".join(str(count[room]) for count in counts) + " |" for room in ROOMS if counts[0][room]
    ]
    heading = ["| room | places that make a message | provoked on this page | by tests in C++ |", "|---|---|---|---|"]
    return "\n".join([*heading, *rows, "| together | " + " | ".join(str(count.total()) for count in counts) + " |", ""])


def of_cpp(found: list[Site], here: set[Site]) -> list[Site]:
    return [site for site in found if site not in here and elsewhere(site) == IN_CPP]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all sites, not only those without a case")
    parser.add_argument("--table", action="store_true", help="numbers per room")
    options = parser.parse_args()
    found = sites()
    if options.table:
        print(table(found))
        return
    if options.all:
        for site in found:
            print(f"{site.file}:{site.line}: {site.text()}")
        return
    here = covered(found, made_page())
    left = [site for site in found if site not in here]
    for why in (None, *ELSEWHERE):
        those = [site for site in left if elsewhere(site) == why]
        if those:
            print(f"{why or 'no case'}:")
        for site in those:
            print(f"  {site.file}:{site.line}: {site.text()}")
    if any(elsewhere(site) is None for site in left):
        sys.exit(1)


if __name__ == "__main__":
    main()
