# PYTHON_ARGCOMPLETE_OK
"""The command line: pictures and plans without communication, dry runs, and what a running or hanging program does.

`python -m shardwise --help` lists the commands. The help of each has an example.
Shells complete commands and options by argcomplete, if shardwise[cli] is installed: eval "$(register-python-argcomplete --no-defaults shardwise)".
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

try:
    import argcomplete
    from argcomplete.completers import FilesCompleter
except ModuleNotFoundError:  # the commands work without completion
    argcomplete = None  # type: ignore[assignment]

from shardwise import __version__
from shardwise._build_facts import LAYERS
from shardwise._commands import doctor, hang, redistribution, watch
from shardwise._commands.arguments import PLACEMENTS, Parser, one_line
from shardwise.debug.picture import printable

COMMANDS = [redistribution, watch, hang, doctor]  # in the order of the help
if LAYERS:
    from shardwise._commands import dry_run, embeddings, pictures

    COMMANDS[:1] = [pictures, redistribution, embeddings, dry_run]
PROG = "python -m shardwise"


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog=PROG,
        description="Draws layouts, and plans redistributions and embedding tables, without communication.\n"
        "Shows the state of a running or hanging program, and checks a machine.",
        epilog=PLACEMENTS,
    )
    main.add_argument("--version", action="version", version=f"shardwise {__version__}")
    commands = main.add_subparsers(dest="command", required=True, prog=PROG)
    for each in COMMANDS:
        each.add_to(commands)
    return main


def main(arguments: Sequence[str] | None = None) -> None:
    commands = parser()
    if argcomplete is not None:
        argcomplete.autocomplete(commands, default_completer=completed_paths)  # type: ignore[arg-type]
    name = PROG
    try:
        options = commands.parse_args(arguments)
        name = f"{PROG} {options.command}"
        for line in options.run(options):
            print(printable(line))
        flush_output()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        drop_output()
        raise SystemExit(1) from None
    except (ValueError, IndexError, OSError, ModuleNotFoundError) as error:
        # Some builds of torch append a C++ trace.
        message = one_line(str(error).split("\nException raised from")[0].rstrip())
        if isinstance(error, OSError) and error.filename is None and error.strerror:
            message = f"standard output cannot be written: {error.strerror}. Send it elsewhere."
            drop_output()
        commands.exit(2, f"{name}: error: {message}\n")


def completed_paths(*, prefix: str, action: argparse.Action, **asked: object) -> list[str]:
    """Files and folders for options that take a path; nothing is guessed for the others."""
    return list(FilesCompleter()(prefix)) if action.type is Path else []


def drop_output() -> None:
    """Sends the rest of the output nowhere: the interpreter would write it at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_output() -> None:
    """Flushes both outputs, as far as the program has them."""
    for output in (sys.stdout, sys.stderr):
        if output is not None:
            output.flush()


def run_and_exit() -> NoReturn:
    """Runs main() and ends the process at once: the interpreter's exit through torch's modules takes longer than a picture."""
    main()
    flush_output()
    os._exit(0)


if __name__ == "__main__":
    run_and_exit()
