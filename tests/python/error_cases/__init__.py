"""Mistakes that a caller can make, and the exceptions that they get on every rank. docs/errors.md shows them.

A module per section of the page: TITLE, SETUP (code before each case, shown once) and CASES.
"""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Case:
    """`code` raises `error` on every rank, of two that are threads."""

    title: str
    code: str
    error: type[Exception]
    in_torchs_words: bool = False  # torch's own message, which programs may look for
    is_of_rank: bool = False  # each rank's message has numbers of its own
    of_threads: bool = False  # what only ranks that are threads do not have


def case(title: str, code: str, error: type[Exception], **options: bool) -> Case:
    return Case(title, dedent(code).strip(), error, **options)
