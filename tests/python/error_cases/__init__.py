"""Mistakes that a caller can make, and the exceptions that they get on every rank. docs/error_messages.md shows them.

A module per section of the page: TITLE, SETUP (code before each case, shown once) and CASES.
"""

from dataclasses import dataclass
from textwrap import dedent
from typing import Any


@dataclass(frozen=True)
class Case:
    """`code` raises `error` on every rank of two."""

    title: str
    code: str
    error: type[Exception]
    once: str = ""  # code before it, run once in a process: what torch's operators are registered by
    only_on: int | None = None  # the rank that gets it; nothing is wrong on the other one, which sends nothing
    in_torchs_words: bool = False  # torch's own message, which programs may look for
    is_of_rank: bool = False  # each rank's message has numbers of its own
    of_threads: bool = False  # what only ranks that are threads do not have
    of_processes: bool = False  # what needs torch.distributed's groups, which threads do not have

    def error_on(self, rank: int) -> type[Exception | None]:
        return self.error if self.only_on in (None, rank) else type(None)


def case(title: str, code: str, error: type[Exception], once: str = "", **options: Any) -> Case:
    return Case(title, dedent(code).strip(), error, dedent(once).strip(), **options)
