"""Runs a program as several ranks of a job, each in a process of its own."""

import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from shardwise._dry_run.figures import RankFigures
from shardwise._dry_run.ids import EQUAL_SHARES, IdModel
from shardwise._dry_run.run import dry_run

N_PROCESSES = os.cpu_count() or 1


@dataclass(frozen=True)
class Program:
    """A script and its arguments, and how it is run."""

    arguments: tuple[str, ...]  # the script first
    n_ranks: int
    device_type: str
    value: float | None
    ranks_per_host: int
    ids: IdModel = EQUAL_SHARES

    def as_rank(self, rank: int, others: Sequence[int] | None) -> dry_run:
        """The run of one rank, which may stand for `others`. Raises ValueError for settings that no run has."""
        return dry_run(
            self.n_ranks,
            rank,
            device_type=self.device_type,
            value=self.value,
            ids=self.ids,
            ranks_per_host=self.ranks_per_host,
            _others=others,
        )


def run_as(program: Program, ranks: Sequence[int]) -> list[RankFigures]:
    """The figures of these ranks. The first one's output is shown. Raises OSError if there is no such script, and ValueError for settings that no
    run has.

    Each rank is a process, as many at a time as there are cores. A program that ends with an error has figures up to there.
    """
    return _run_each([(program, rank, rank == ranks[0], None) for rank in ranks])


def run_all(program: Program) -> list[RankFigures]:
    """Figures that stand for all ranks. Of each set of alike ranks, one runs. Alike ranks hold and send as much, and the program learned nothing that
    differs between them.
    """
    pending = list(range(program.n_ranks))
    found: list[RankFigures] = []
    while pending:
        tried = sorted({pending[0], *pending[-1:], *pending[1 : N_PROCESSES - 1]})
        for figures in _run_each([(program, rank, not found and rank == 0, pending) for rank in tried]):
            if figures.rank not in pending:
                continue  # another one stands for it
            waiting = set(pending)
            figures.alike = sorted(waiting.intersection(figures.alike))
            pending = sorted(waiting.difference(figures.alike))
            found.append(figures)
    return found


def _run_each(arguments: Sequence[tuple[Program, int, bool, Sequence[int] | None]]) -> list[RankFigures]:
    program, rank, _, others = arguments[0]
    program.as_rank(rank, others)
    script = Path(program.arguments[0])
    if not script.is_file():
        raise FileNotFoundError(f"[dry_run] there is no file {str(script)!r}. Give the path of a Python program.")
    found: list[RankFigures] = []
    for begin in range(0, len(arguments), N_PROCESSES):
        started = [_start(each) for each in arguments[begin : begin + N_PROCESSES]]
        found += [_result(*each) for each in started]
    return found


def _start(arguments: tuple[Program, int, bool, Sequence[int] | None]) -> tuple[int, BaseProcess, Connection]:
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, arguments))
    process.start()
    there.close()
    return arguments[1], process, here


def _send(connection: Connection, arguments: tuple[Program, int, bool, Sequence[int] | None]) -> None:
    connection.send(_run(*arguments))


def _result(rank: int, process: BaseProcess, connection: Connection) -> RankFigures:
    try:
        figures: RankFigures = connection.recv()
    except EOFError:
        process.join()
        raise ValueError(
            f"[dry_run] the process of rank {rank} ended with exit code {process.exitcode} before its program did. A program must "
            "not end by os._exit()."
        ) from None
    process.join()
    return figures


def _run(program: Program, rank: int, is_shown: bool, others: Sequence[int] | None) -> RankFigures:
    if not is_shown:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.argv = list(program.arguments)
    sys.path[0] = str(Path(program.arguments[0]).resolve().parent)
    figures = _run_once(program, rank, others)
    if "RankNumber" in figures.failure:  # the program, or a library, takes an int alone
        figures = _run_once(program, rank, None)
    sys.stdout.flush()
    return figures


def _run_once(program: Program, rank: int, others: Sequence[int] | None) -> RankFigures:
    run = program.as_rank(rank, others)
    with suppress(Exception, SystemExit), run:  # the figures have the error
        runpy.run_path(program.arguments[0], run_name="__main__")
    return run.figures


def sampled(n_ranks: int, n: int) -> list[int]:
    """`n` ranks, evenly spaced, with the first and the last."""
    n = min(n, n_ranks)
    return sorted({round(i * (n_ranks - 1) / max(n - 1, 1)) for i in range(n)})
