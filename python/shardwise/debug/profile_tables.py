"""Profiles as tables."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile, S
from shardwise.debug.text_tables import table_text

Texts = tuple[str, ...]  # the texts of a line, which come before its numbers


def check_number(name: str, value: object, what: str) -> None:
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"[profile] {name} is {value!r}, which is no whole number. Give {what}.")


def check_limit(limit: int) -> None:
    """Raises TypeError or ValueError if `limit` is no number of lines."""
    check_number("limit", limit, "the most lines of a table")
    if limit < 0:
        raise ValueError(f"[profile] limit is {limit}: a table cannot have this number of lines. Give 0 or more.")


def _short(source: str) -> str:
    """A line of the program, relative to the current folder and without the functions around its function."""
    return re.sub(r"[^ ]*<locals>\.", "", source.removeprefix(os.getcwd() + os.sep))


def without_inner(operators: Iterable[OperatorSpan]) -> list[OperatorSpan]:
    """The operators of one rank, each with its time, collectives and bytes less those of the operators in it. They must be sorted by their ends."""
    own: list[OperatorSpan] = []
    last: list[OperatorSpan] = []  # calls that are in none of the later calls so far
    for each in operators:
        inner = []
        while last and last[-1].begin_ns >= each.begin_ns:
            inner.append(last.pop())
        last.append(each)
        own.append(
            replace(
                each,
                end_ns=each.end_ns - sum(call.end_ns - call.begin_ns for call in inner),
                n_collectives=each.n_collectives - sum(call.n_collectives for call in inner),
                bytes_received=each.bytes_received - sum(call.bytes_received for call in inner),
            )
        )
    return own


def all_tables(profile: RankProfile, limit: int, of: str = "") -> str:
    """The three tables of one rank. `of` follows the titles of the first two."""
    operators = operator_table(profile.operators, f"operators{of}", limit)
    communications = communication_table(profile.communications, f"communications{of}", limit)
    return "\n".join([operators, communications, unasked_table(profile.communications, limit)])


def operator_table(operators: Iterable[OperatorSpan], title: str = "operators", limit: int = 20) -> str:
    """A line per operator and layouts: the number of calls, the time and the bytes received, without the operators in it."""
    lines: dict[Texts, list[OperatorSpan]] = {}
    for each in without_inner(operators):
        given, used = ", ".join(each.given), ", ".join(each.used)
        key = (each.op, each.rule, given, "as given" if used == given else used, ", ".join(each.results))
        lines.setdefault(key, []).append(each)
    texts = ["operator", "rule", "operands", "run as", "results"]
    return _table(title, texts, ["calls", "us", "collectives", "bytes received"], _most_time_first(lines), limit)


def communication_table(
    communications: Iterable[CommunicationSpan], title: str = "communications", limit: int = 20
) -> str:
    """A line per collective, operator, group and line of the program. "for": the rank that was waited for longest. "late": how long."""
    lines: dict[Texts, list[CommunicationSpan]] = {}
    for each in communications:
        key = (each.collective, each.op, " ".join(map(str, each.ranks)), _short(each.source))
        lines.setdefault(key, []).append(each)
    numbers = ["calls", "us", "waited us", "late us", "for", "sent", "received"]
    return _table(title, ["collective", "operator", "ranks", "line"], numbers, _most_time_first(lines), limit)


def unasked_table(communications: Iterable[CommunicationSpan], limit: int = 20) -> str:
    """The bytes that operators sent on their own: a line per line of the program and operator, most bytes first."""
    by_place: dict[tuple[str, str], list[CommunicationSpan]] = {}
    for each in communications:
        if not each.is_asked_for:
            by_place.setdefault((each.source, each.op), []).append(each)
    if not by_place:
        return "no communication that you did not ask for\n"

    def texts(source: str, op: str, calls: list[CommunicationSpan]) -> Texts:
        line = _short(source) or "(in a backward pass, or outside of Python)"
        what = next((each.layouts for each in calls if each.layouts), "")
        return line, op, ", ".join(dict.fromkeys(each.collective for each in calls)), what

    found = sorted(by_place.items(), key=lambda item: -sum(each.bytes_received for each in item[1]))
    lines = [(texts(*place, calls), calls) for place, calls in found]
    columns = ["line", "operator", "collectives", "what"]
    return _table("communication you did not ask for", columns, ["calls", "us", "bytes received"], lines, limit)


def _latest(calls: Iterable[CommunicationSpan]) -> str:
    late: dict[int, int] = {}
    for each in calls:
        if each.last_rank is not None and each.late_ns > 0:
            late[each.last_rank] = late.get(each.last_rank, 0) + each.late_ns
    return f"rank {max(late, key=lambda rank: late[rank])}" if late else ""


# The columns of numbers, as functions of the calls in a line.
NUMBERS: dict[str, Callable[[Sequence[Any]], str]] = {
    "calls": lambda calls: f"{len(calls)}",
    "us": lambda calls: f"{sum(each.microseconds for each in calls):,.0f}",
    "waited us": lambda calls: f"{sum(each.waited_ns for each in calls) / 1000:,.0f}",
    "late us": lambda calls: f"{sum(each.late_ns for each in calls) / 1000:,.0f}",
    "for": _latest,
    "collectives": lambda calls: f"{sum(each.n_collectives for each in calls)}",
    "sent": lambda calls: f"{sum(each.bytes_sent for each in calls):,}",
    "received": lambda calls: f"{sum(each.bytes_received for each in calls):,}",
    "bytes received": lambda calls: f"{sum(each.bytes_received for each in calls):,}",
}


def _most_time_first(lines: Mapping[Texts, list[S]]) -> list[tuple[Texts, list[S]]]:
    return sorted(lines.items(), key=lambda line: -sum(each.microseconds for each in line[1]))


def _table(
    title: str, texts: list[str], numbers: list[str], lines: Sequence[tuple[Texts, Sequence[Any]]], limit: int
) -> str:
    """A table of at most `limit` lines, with their texts and the numbers of their calls."""
    left_out = f" (the first {limit} of {len(lines)} lines)" if len(lines) > limit else ""
    rows = ((*key, *(NUMBERS[name](calls) for name in numbers)) for key, calls in lines[:limit])
    return table_text(title + left_out, [*texts, *numbers], rows, len(texts))
