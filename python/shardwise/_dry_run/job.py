"""Runs a program as several ranks of a job, each in a process of its own."""

import gc
import os
import runpy
import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from shardwise._dry_run.figures import RankFigures, without_collections
from shardwise._dry_run.ids import EQUAL_SHARES, IdModel
from shardwise._dry_run.meta_mode import Value
from shardwise._dry_run.run import dry_run
from shardwise._dry_run.world import Letters
from shardwise._progress import Notes

N_PROCESSES = os.cpu_count() or 1


@dataclass(frozen=True)
class Program:
    """A script or a module and its arguments, and how it is run."""

    arguments: tuple[str, ...]  # the script first
    n_ranks: int
    device_type: str
    value: Value
    ranks_per_host: int
    ids: IdModel = EQUAL_SHARES
    is_module: bool = False  # arguments[0] is the name of a module, as in python -m

    def as_rank(self, rank: int, others: Sequence[int] | None, letters: Letters | None = None) -> dry_run:
        """The run of one rank, which may stand for `others`. Raises ValueError for settings that no run has."""
        return dry_run(
            self.n_ranks,
            rank,
            device_type=self.device_type,
            value=self.value,
            ids=self.ids,
            ranks_per_host=self.ranks_per_host,
            _others=others,
            _letters=letters,
        )


Arguments = tuple[
    Program, int, bool, Sequence[int] | None
]  # the rank, whether its output is shown, and the ranks to compare with


def run_as(program: Program, ranks: Sequence[int]) -> list[RankFigures]:
    """The figures of these ranks. The first one's output is shown. Raises OSError if there is no such script, and ValueError for settings that no
    run has.

    Each rank is a process, as many at a time as there are cores. A program that ends with an error has figures up to there.
    """
    return _run_each([(program, rank, rank == ranks[0], None) for rank in ranks], Notes("dry-run", "ranks", len(ranks)))


def run_all(program: Program) -> list[RankFigures]:
    """Figures that stand for all ranks. Of each set of alike ranks, one runs. Alike ranks hold and send as much, and the program learned nothing that
    differs between them.
    """
    pending = list(range(program.n_ranks))
    found: list[RankFigures] = []
    notes = Notes("dry-run", "ranks", program.n_ranks)
    while pending:
        tried = sorted({pending[0], *pending[-1:], *pending[1 : N_PROCESSES - 1]})
        notes.n_done = program.n_ranks - len(pending)
        for figures in _run_each([(program, rank, not found and rank == 0, pending) for rank in tried], notes):
            if figures.rank not in pending:
                continue  # another one stands for it
            waiting = set(pending)
            figures.alike = sorted(waiting.intersection(figures.alike))
            pending = sorted(waiting.difference(figures.alike))
            found.append(figures)
    return found


def _run_each(arguments: Sequence[Arguments], notes: Notes) -> list[RankFigures]:
    program, rank, _, others = arguments[0]
    program.as_rank(rank, others)
    if not (program.is_module or Path(program.arguments[0]).is_file()):
        raise FileNotFoundError(
            f"[dry_run] there is no file {program.arguments[0]!r}. Give the path of a Python program."
        )
    import_module("shardwise._dry_run.checkpoints")  # once for all ranks, because it takes a while
    office = Office(program, {each[1]: each for each in arguments}, notes)
    try:
        for begin in range(0, len(arguments), N_PROCESSES):
            ranks = [each[1] for each in arguments[begin : begin + N_PROCESSES]]
            for rank in ranks:
                office.start(rank)
            for rank in ranks:
                office.serve(rank)
                notes.n_done += 1
    finally:
        office.close()
    return [office.found[each[1]] for each in arguments]


class Office:
    """Processes of ranks. It delivers the objects that they send each other, and starts the senders of those that a rank waits for."""

    def __init__(self, program: Program, arguments: Mapping[int, Arguments], notes: Notes) -> None:
        self.found: dict[int, RankFigures] = {}
        self._program, self._arguments, self._notes = program, arguments, notes
        self._processes: dict[int, tuple[BaseProcess, Connection]] = {}
        self._letters: defaultdict[tuple[int, int], deque[bytes]] = defaultdict(deque)  # by sender and receiver

    def start(self, rank: int) -> None:
        if rank in self._processes:
            return
        context = get_context("fork")
        here, there = context.Pipe()
        arguments = self._arguments.get(rank, (self._program, rank, False, None))
        process = context.Process(target=_send, args=(there, arguments))
        process.start()
        there.close()
        self._processes[rank] = process, here

    def serve(self, rank: int, wanted: deque[bytes] | None = None, waiting: tuple[int, ...] = ()) -> None:
        """Takes what the process of a rank tells until there is a letter in `wanted`, or the figures. `waiting`: ranks that wait for it."""
        process, connection = self._processes[rank]
        while rank not in self.found and not wanted:
            self._notes.wait_for(connection, f"rank {rank} runs")
            try:
                with without_collections():
                    told = connection.recv()
            except EOFError:
                process.join()
                raise ValueError(
                    f"[dry_run] the process of rank {rank} ended with exit code {process.exitcode} before its program did. A program must "
                    "not end by os._exit()."
                ) from None
            if isinstance(told, NoProgram):
                raise told
            if isinstance(told, RankFigures):
                self.found[rank] = told
                process.join()
            elif isinstance(told, tuple):
                self._letters[rank, told[0]].append(told[1])
            else:
                letters = self._letters[told, rank]
                if not letters and told not in (*waiting, rank) and 0 <= told < self._program.n_ranks:
                    self.start(told)
                    self.serve(told, letters, (*waiting, rank))
                connection.send(letters.popleft() if letters else None)

    def close(self) -> None:
        for rank, (process, _) in self._processes.items():
            if rank not in self.found:
                process.kill()
                process.join()


class NoProgram(ValueError):
    """There is no module of this name to run."""


def _send(connection: Connection, arguments: Arguments) -> None:
    gc.freeze()  # the modules of the parent process, so that collections in the program leave them out
    try:
        told: RankFigures | NoProgram = _run(*arguments, Letters(connection))
    except NoProgram as error:
        told = error
    with without_collections():
        connection.send(told)


def _run(program: Program, rank: int, is_shown: bool, others: Sequence[int] | None, letters: Letters) -> RankFigures:
    if not is_shown:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.argv = list(program.arguments)
    sys.path[0] = "" if program.is_module else str(Path(program.arguments[0]).resolve().parent)
    figures = _run_once(program, rank, others, letters)
    if "RankNumber" in figures.failure:  # the program, or a library, takes an int alone
        figures = _run_once(program, rank, None, letters)
    sys.stdout.flush()
    return figures


def _run_once(program: Program, rank: int, others: Sequence[int] | None, letters: Letters) -> RankFigures:
    run = program.as_rank(rank, others, letters)
    try:
        with run:
            if program.is_module:
                check_module(program.arguments[0])
                runpy.run_module(program.arguments[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program.arguments[0], run_name="__main__")
    except NoProgram:
        raise
    except (Exception, SystemExit):
        pass  # the figures have the error
    return run.figures


def check_module(name: str) -> None:
    """Raises NoProgram if there is no such module, or if it is a package that does not run."""
    found, missing = None, name
    try:
        found = find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            missing = f"{name}.__main__"
            found = find_spec(missing)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # of a package that imports another one
    if found is None:
        raise NoProgram(f"[dry_run] there is no module {missing!r}. Give the name of a module, as for `python -m`.")


def sampled(n_ranks: int, n: int) -> list[int]:
    """`n` ranks, evenly spaced, with the first and the last. Raises ValueError if there are fewer."""
    if n > n_ranks:
        raise ValueError(
            f"[dry_run] a sample of {n} ranks is more than the job has, {n_ranks}. Give {n_ranks} or less, or `--all`, which runs one rank of each "
            "set of alike ranks."
        )
    return sorted({round(i * (n_ranks - 1) / max(n - 1, 1)) for i in range(n)})
