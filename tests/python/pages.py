"""The programs in the pages of docs/ and in README.md.

A block in the language `python` is code; an `output` block right after it is what rank 0 prints there. All blocks of a page are one
program, run in their order by four ranks that are threads. Comments of HTML, which a reader does not see, say otherwise:

    <!-- program: threads 2 -->       here begins a new program, on two ranks
    <!-- program: torchrun 4 -->      ... whose ranks are processes
    <!-- program: python -->          ... of one process, without ranks
    <!-- hidden
    code that belongs to the program
    -->
    <!-- file: first.py -->           the next block is a file, which commands on this page run
    <!-- fragment -->                 the next block is not run: code that asks for what a page cannot have, as a model of many GB

A `console` block holds commands, each after "$ ", and what they print. A command that is shown with its output is run; it is one of
torchrun or python.
"""

import ast
import itertools
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from command_line import finished_command
from markdown_it import MarkdownIt
from torchrun import forked_python, run_command

import shardwise
from shardwise.testing import run_ranks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(shardwise.__file__).parents[1]  # programs import the package that this process has
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_generated" not in path.parts)]
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e-?\d+)?")
ROUNDING = 0.011  # sums in another order may turn the last printed digit
COMMENT = re.compile(r"<!--\s*(program|hidden|file|fragment)\b:?[ ]*(.*?)\s*-->", re.DOTALL)


@dataclass
class Block:
    """Code, the line of the page that it begins on, and what it prints, where the page says so."""

    code: str
    line: int
    output: str | None = None


@dataclass
class Program:
    """Blocks that run one after the other, on `n_ranks` ranks; 0: without ranks."""

    launcher: str
    n_ranks: int
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Page:
    """What a page has to run."""

    path: Path
    programs: list[Program]
    files: dict[str, str]
    sessions: list[tuple[str, str]]
    n_fragments: int = 0
    n_indented: int = 0  # blocks of code that no fence says the language of


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read_page(path: Path) -> Page:
    page = Page(path, [], {}, [])
    program = Program("threads", 4)
    page.programs.append(program)
    file: str | None = None
    is_fragment = False
    last: Block | None = None  # the block that an output would be of
    for token in MarkdownIt("commonmark").enable("table").parse(path.read_text()):
        first_line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            for comment in COMMENT.finditer(token.content):
                kind, text = comment[1], comment[2]
                if kind == "program":
                    launcher, _, n_ranks = text.partition(" ")
                    assert launcher in {"threads", "torchrun", "python"}, f"{path}:{first_line}: {text}"
                    program = Program(launcher, int(n_ranks or 0))
                    page.programs.append(program)
                elif kind == "hidden":
                    program.blocks.append(Block(text + "\n", first_line + 1))
                elif kind == "file":
                    file = text
                else:
                    is_fragment = True
                    page.n_fragments += 1
        elif token.type == "code_block":
            page.n_indented += is_python(token.content)
        elif token.type == "fence":
            language = token.info.split(" ")[0]
            if language == "python" and is_fragment:
                compile(token.content, str(path), "exec")
            elif language == "python" and file:
                page.files[file] = token.content
            elif language == "python":
                last = Block(token.content, first_line + 1)
                program.blocks.append(last)
            elif language == "output":
                assert last is not None and last.output is None, f"{path}:{first_line}: the output of which block?"
                last.output = token.content
            elif language == "console":
                page.sessions += sessions_of(token.content)
            if language == "python":
                file, is_fragment = None, False
                continue
            last = None
    page.programs = [each for each in page.programs if each.blocks]
    return page


def is_python(text: str) -> bool:
    """Whether an indented block is code that ought to run."""
    try:
        return any(not isinstance(each, ast.Expr) or isinstance(each.value, ast.Call) for each in ast.parse(text).body)
    except SyntaxError:
        return False


def sessions_of(text: str) -> list[tuple[str, str]]:
    """The commands of a console block that are shown with their output."""
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    pairs = [command.partition("\n") for command in commands]
    return [(command, output) for command, _, output in pairs if output.strip()]


def assert_same_text(printed: str, expected: str) -> None:
    """Words are equal, numbers to within the rounding of the last digit; the width of the space between does not matter.

    "..." stands for a word that differs from run to run, as a speed does.
    """
    words = expected.split()
    shown = printed.split()
    printed = " ".join(
        "..." if wanted == "..." else word for word, wanted in itertools.zip_longest(shown, words, fillvalue="")
    )
    assert NUMBER.sub("#", " ".join(printed.split())) == NUMBER.sub("#", " ".join(expected.split())), printed
    numbers = [number(n) for n in NUMBER.findall(printed)]
    assert numbers == pytest.approx([number(n) for n in NUMBER.findall(expected)], abs=ROUNDING, rel=0), printed


def number(text: str) -> float:
    return float(text.replace(",", "")) if text.count(".") <= 1 else 0.0


class StreamOfThread:
    """A stream that each thread has for itself, where it asked for one; else the process's."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self._own = threading.local()

    def begin(self) -> StringIO:
        self._own.stream = StringIO()
        return self._own.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._own, "stream", self._usual), name)


def printed_of(act: Callable[[], None], stream: Any) -> str:
    printed = stream.begin()
    act()
    return printed.getvalue()


def code_of(block: Block, path: Path) -> Any:
    return compile("\n" * (block.line - 1) + block.code, str(path), "exec")


def run_program(program: Program, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the blocks; each prints what the page says."""
    outputs = (
        run_threads(program, path, monkeypatch) if program.launcher == "threads" else run_processes(program, folder)
    )
    for block, printed in zip(program.blocks, outputs, strict=True):
        if block.output is not None:
            assert_same_text(printed, block.output)


def run_threads(program: Program, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stream = StreamOfThread(sys.stdout)
    monkeypatch.setattr(sys, "stdout", stream)

    def body(rank: int) -> list[str]:
        names: dict[str, Any] = {"__name__": "page"}
        return [printed_of(lambda block=block: exec(code_of(block, path), names), stream) for block in program.blocks]

    return run_ranks(program.n_ranks, body)[0]


MARK = "@@ end of block @@"
OF_RANK_0 = 'import os, sys\nif os.environ["RANK"] != "0":\n    sys.stdout = open(os.devnull, "w")\n'
LAST_OF_RANKS = "import torch.distributed as dist\nif dist.is_initialized():\n    dist.destroy_process_group()\n"


def run_processes(program: Program, folder: Path) -> list[str]:
    text = "".join(f'{block.code}\nprint("{MARK}", flush=True)\n' for block in program.blocks)
    if program.launcher == "torchrun":
        text = OF_RANK_0 + text + LAST_OF_RANKS
    (folder / "page.py").write_text(text)
    command = f"torchrun --nproc-per-node {program.n_ranks} page.py" if program.n_ranks else "python page.py"
    *outputs, rest = printed_by(command, folder).split(MARK + "\n")
    assert not rest.strip()
    return outputs


def printed_by(command: str, folder: Path) -> str:
    """What `command` prints in `folder`; files of the repository are named as from its root."""
    words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in shlex.split(command)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(PACKAGE), prepend=os.pathsep)
        if words[0] == "torchrun":
            finished = run_command(shlex.join(words))
        elif words[:3] == ["python", "-m", "shardwise"]:
            finished = finished_command(*words[3:])
        else:
            assert words[0] == "python", f"{command}: pages show the output of torchrun and python only"
            finished = forked_python(*words[1:])
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def fill(path: Path) -> None:
    """Writes what the programs of a page print into its output blocks."""
    lines = path.read_text().splitlines(keepends=True)
    printed: list[tuple[Block, str]] = []
    for program in read_page(path).programs:
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
            patch.chdir(folder)
            is_threads = program.launcher == "threads"
            outputs = run_threads(program, path, patch) if is_threads else run_processes(program, Path(folder))
        printed += zip(program.blocks, outputs, strict=True)
    for block, output in sorted(printed, key=lambda pair: -pair[0].line):
        if block.output is not None:
            begin = next(i for i in range(block.line, len(lines)) if lines[i].startswith("```output")) + 1
            end = next(i for i in range(begin, len(lines)) if lines[i].startswith("```"))
            lines[begin:end] = [output.rstrip("\n") + "\n"]
    path.write_text("".join(lines))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        fill(Path(argument).resolve())
