"""python -m shardwise hang: who waits for whom, from the files of shardwise.debug.dump()."""

import argparse
from pathlib import Path

from shardwise import _C
from shardwise.debug.flight_files import read_flights
from shardwise.debug.hang import describe_hang, hang_rows
from shardwise.debug.text_tables import table_text

EPILOG = """A program writes the files when a wait takes long, when a communication fails, by shardwise.debug.dump(), and on
SIGUSR1 (kill -USR1 PID) if it was started with SHARDWISE_DUMP_SIGNAL=1. They are written to the folder that
SHARDWISE_DUMP_FOLDER names, or to the folder of temporary files. If a rank has several files, the newest is read; files
of other runs are ignored.

examples:
  python -m shardwise hang
  python -m shardwise hang dumps
  python -m shardwise hang dumps/shardwise-rank*.json"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "hang",
        help="who waits for whom, from the files that a hanging program wrote",
        description="Shows who waits for whom, in which call and since when, and what each rank does.",
        epilog=EPILOG,
    )
    command.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="shardwise-rank*.json of all ranks, or their folder; default: the folder that programs write to",
    )
    command.set_defaults(run=run)


def files_of(given: Path) -> list[Path]:
    """Returns the files of ranks in a folder. Raises ValueError if it has none."""
    if not given.is_dir():
        return [given]
    found = sorted(given.glob("shardwise-rank*.json"))
    if not found:
        raise ValueError(
            f"[hang] {given} has no files of ranks. Give the folder of shardwise-rank*.json, or these files."
        )
    return found


def run(options: argparse.Namespace) -> list[str]:
    files = [file for given in options.files or [Path(_C.dump_folder())] for file in files_of(given)]
    flights = read_flights(files)
    heading, *rows = hang_rows(flights)
    lines = [describe_hang(flights), "", table_text("", heading, rows, len(heading)).rstrip()]
    n_left_out = len(files) - len(flights)
    if n_left_out > 0:
        lines += ["", f"left out: {n_left_out} of {len(files)} files, of other runs, older of their rank, or not whole"]
    return lines
