"""Profiles as tables."""

import os
import re
from collections.abc import Iterable
from dataclasses import replace

from shardwise.debug.spans import CommunicationSpan, OperatorSpan
from shardwise.debug.text_tables import table_text


def check_number(name: str, value: object, what: str) -> None:
    """Raises TypeError unless it is a whole number."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"[profile] {name} is {value!r}, which is no whole number. Give {what}.")


def check_limit(limit: int) -> None:
    """Raises TypeError or ValueError for what is no number of lines."""
    check_number("limit", limit, "the most lines of a table")
    if limit < 0:
        raise ValueError(f"[profile] limit is {limit}: a table has no such number of lines. Give 0 or more.")


def _short(source: str) -> str:
    """Of a line of the program: below the current folder, and without the functions around its function."""
    return re.sub(r"[^ ]*<locals>\.", "", source.removeprefix(os.getcwd() + os.sep))


def without_inner(operators: Iterable[OperatorSpan]) -> list[OperatorSpan]:
    """Each operator with the time, the collectives and the bytes of its own: without those of the operators in it.

    `operators`: of one rank, by their ends.
    """
    own: list[OperatorSpan] = []
    last: list[OperatorSpan] = []  # calls that nothing later is known to be around
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


def operator_table(operators: Iterable[OperatorSpan], title: str = "operators", limit: int = 20) -> str:
    """A line per operator and layouts: how often, how long, what was received for it, without the operators in it."""
    groups: dict[tuple[str, str, str, str, str], list[OperatorSpan]] = {}
    for each in without_inner(operators):
        given, used = ", ".join(each.given), ", ".join(each.used)
        key = (each.op, each.rule, given, "as given" if used == given else used, ", ".join(each.results))
        groups.setdefault(key, []).append(each)
    rows = sorted(groups.items(), key=lambda item: -sum(each.microseconds for each in item[1]))
    return table_text(
        title + _left_out(len(rows), limit),
        ["operator", "rule", "operands", "run as", "results", "calls", "us", "collectives", "bytes received"],
        (
            (
                *key,
                f"{len(calls)}",
                f"{sum(each.microseconds for each in calls):,.0f}",
                f"{sum(each.n_collectives for each in calls)}",
                f"{sum(each.bytes_received for each in calls):,}",
            )
            for key, calls in rows[:limit]
        ),
        5,
    )


def communication_table(
    communications: Iterable[CommunicationSpan], title: str = "communications", limit: int = 20
) -> str:
    """A line per collective, operator, group and line of the program. "for": the rank that was waited for longest. "late": how long."""
    groups: dict[tuple[str, str, str, str], list[CommunicationSpan]] = {}
    for each in communications:
        key = (each.collective, each.op, " ".join(map(str, each.ranks)), _short(each.source))
        groups.setdefault(key, []).append(each)
    rows = sorted(groups.items(), key=lambda item: -sum(each.microseconds for each in item[1]))
    return table_text(
        title + _left_out(len(rows), limit),
        ["collective", "operator", "ranks", "line", "calls", "us", "waited us", "late us", "for", "sent", "received"],
        (
            (
                *key,
                f"{len(calls)}",
                f"{sum(each.microseconds for each in calls):,.0f}",
                f"{sum(each.waited_ns for each in calls) / 1000:,.0f}",
                f"{sum(each.late_ns for each in calls) / 1000:,.0f}",
                _latest(calls),
                f"{sum(each.bytes_sent for each in calls):,}",
                f"{sum(each.bytes_received for each in calls):,}",
            )
            for key, calls in rows[:limit]
        ),
        4,
    )


def _latest(calls: Iterable[CommunicationSpan]) -> str:
    late: dict[int, int] = {}
    for each in calls:
        if each.last_rank is not None and each.late_ns > 0:
            late[each.last_rank] = late.get(each.last_rank, 0) + each.late_ns
    return f"rank {max(late, key=lambda rank: late[rank])}" if late else ""


def unasked(communications: Iterable[CommunicationSpan]) -> dict[tuple[str, str], list[CommunicationSpan]]:
    """What operators sent on their own, by the program's line and the operator; most bytes first."""
    groups: dict[tuple[str, str], list[CommunicationSpan]] = {}
    for each in communications:
        if not each.is_asked_for:
            groups.setdefault((each.source, each.op), []).append(each)
    return dict(sorted(groups.items(), key=lambda item: -sum(each.bytes_received for each in item[1])))


def unasked_table(communications: Iterable[CommunicationSpan], limit: int = 20) -> str:
    """A line per line of the program and operator."""
    rows = list(unasked(communications).items())
    if not rows:
        return "no communication that you did not ask for\n"
    return table_text(
        "communication you did not ask for" + _left_out(len(rows), limit),
        ["line", "operator", "collectives", "what", "calls", "us", "bytes received"],
        (
            (
                _short(source) or "(in a backward pass, or outside of Python)",
                op,
                ", ".join(dict.fromkeys(each.collective for each in calls)),
                next((each.layouts for each in calls if each.layouts), ""),
                f"{len(calls)}",
                f"{sum(each.microseconds for each in calls):,.0f}",
                f"{sum(each.bytes_received for each in calls):,}",
            )
            for (source, op), calls in rows[:limit]
        ),
        4,
    )


def _left_out(n_rows: int, limit: int) -> str:
    return f" (the first {limit} of {n_rows} lines)" if n_rows > limit else ""
