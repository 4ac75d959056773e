"""Finds who waits for whom, from the files of all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shardwise.debug.flight_files import CLOCKS_DIFFER, Call, Flight, Flights
from shardwise.debug.text_tables import ranks_in_words, ranks_text

FAILURE = "a communication failed"  # the reason of a file
LISTED_RANKS = 16  # the most ranks that have a row each


def describe_hang(flights: dict[int, Flight]) -> str:
    """One or two sentences: which ranks part or wait, for whom, in which call, since when, and where the others are; and the number of files of
    other runs."""
    n_of_others = flights.n_of_other_runs if isinstance(flights, Flights) else 0
    files = "1 file" if n_of_others == 1 else f"{n_of_others} files"
    return _sentences(_as_of_now(flights)) + (f" Left out: {files} of another run." if n_of_others else "")


def _sentences(flights: dict[int, Flight]) -> str:
    waits = _waits(flights)
    parting = _first_parting(flights)
    if parting is not None:
        return _words_of_parting(parting, flights) + (f" {_words_of_wait(waits[0], flights, True)}" if waits else "")
    if not waits:
        return _words_of_rest(flights)
    circle = _circle(waits, flights)
    return _words_of_circle(circle, flights) if circle else _words_of_wait(waits[0], flights)


def _as_of_now(flights: dict[int, Flight]) -> dict[int, Flight]:
    """Marks the files that other ranks' files show to be outdated. A rank writes a file when it waits long, and none when it goes on.

    If a call that needs all ranks has ended on one, all ranks have come to it, and it ends on each of them. So a rank whose file says less has made
    the calls up to there since it wrote the file.
    """
    last: dict[tuple[int, ...], Call] = {}  # the last such call of each group
    ends: dict[tuple[tuple[int, ...], int], Call] = {}
    for flight in flights.values():
        for call in flight.calls:
            if not call.needs_all or call.state != "done" or call.end is None:
                continue
            known = ends.setdefault((call.group, call.call), call)
            ends[call.group, call.call] = max(known, call, key=_end)
            if call.group not in last or last[call.group].call < call.call:
                last[call.group] = call

    def is_outdated(flight: Flight) -> bool:
        later = [
            last[group] for group, n_calls in flight.n_calls.items() if group in last and last[group].call > n_calls
        ]
        if any(_end(call) > flight.time - _slack(flight, call, flights) for call in later):
            return True
        waits = [call for call in flight.calls if call.waits_since is not None]
        same = [ends[call.group, call.call] for call in waits if (call.group, call.call) in ends]
        return any(_end(call) > flight.time + _slack(flight, call, flights) for call in same)

    return {
        rank: replace(flight, is_outdated=True, line="") if is_outdated(flight) else flight
        for rank, flight in flights.items()
    }


def _end(call: Call) -> float:
    return call.begin if call.end is None else call.end


def _slack(flight: Flight, call: Call, flights: dict[int, Flight]) -> float:
    """The seconds by which the clocks of a file and of another rank's call may differ."""
    return 0.0 if flight.host == flights[call.rank].host else CLOCKS_DIFFER


def _is_before(flight: Flight, call: Call, flights: dict[int, Flight]) -> bool:
    """True if a rank wrote its file before another rank began to wait in this call, so that the file does not say what the rank did since."""
    if flight.current() is not None:
        return False  # the rank waits, and wrote its file once
    return flight.is_outdated or flight.time + _slack(flight, call, flights) < call.since


@dataclass(frozen=True)
class _Wait:
    """The ranks that wait in one call, or failed in it, and the ranks that have not come to it."""

    calls: list[Call]  # of the ranks that wait
    missing: list[int]

    @property
    def call(self) -> Call:
        return self.calls[0]

    @property
    def has_failed(self) -> bool:
        return all(call.state == "failed" for call in self.calls)


def _missing(call: Call, flights: dict[int, Flight]) -> list[int]:
    """The ranks of the group that have not come to this call, or left no file."""

    def has_come(rank: int) -> bool:
        flight = flights.get(rank)
        if flight is None:
            return False
        if call.call > 0:
            return flight.n_calls.get(call.group, 0) >= call.call
        # Members may stay away from such a call: whether this one must come is unknown.
        same = (other for other in flight.calls if (other.group, other.name) == (call.group, call.name))
        return any(other.end is None for other in same)

    return [rank for rank in call.group if rank != call.rank and not has_come(rank)]


def _waits(flights: dict[int, Flight]) -> list[_Wait]:
    """The waits, oldest first, but first those whose missing ranks wait for nobody."""
    together: dict[tuple[tuple[int, ...], int, str], list[Call]] = {}
    for call in filter(None, (flight.current() for flight in flights.values())):
        together.setdefault((call.group, call.call, call.name), []).append(call)
    waits = [
        _Wait(calls, sorted(set(_missing(calls[0], flights)) - {call.rank for call in calls}))
        for calls in together.values()
    ]

    def order(wait: _Wait) -> tuple[bool, bool, float]:
        is_at_the_root = any(not _is_waiting(rank, flights) for rank in wait.missing)
        return not is_at_the_root, wait.has_failed, min(call.since for call in wait.calls)

    return sorted(waits, key=order)


def _is_waiting(rank: int, flights: dict[int, Flight]) -> bool:
    call = flights[rank].current() if rank in flights else None
    return call is not None and call.waits_since is not None


def _first_parting(flights: dict[int, Flight]) -> list[Call] | None:
    """The earliest call that ranks made differently, as each rank made it."""
    calls: dict[tuple[tuple[int, ...], int], list[Call]] = {}
    for call in (call for flight in flights.values() for call in flight.calls if call.call > 0):
        calls.setdefault((call.group, call.call), []).append(call)
    differing = [same for same in calls.values() if len({call.kind for call in same}) > 1]
    return min(differing, key=lambda same: min(call.begin for call in same), default=None)


def _circle(waits: Sequence[_Wait], flights: dict[int, Flight]) -> list[Call]:
    """Calls of which each waits for the rank of the next one, and the last for the rank of the first. [] if some missing rank waits for nobody."""
    if any(not _is_waiting(rank, flights) for wait in waits for rank in wait.missing):
        return []
    path: list[Call] = []
    call: Call | None = waits[0].call
    while call is not None and call.rank not in [earlier.rank for earlier in path]:
        path.append(call)
        missing = _missing(call, flights)
        call = flights[missing[0]].current() if missing else None
    return [] if call is None else path[[earlier.rank for earlier in path].index(call.rank) :]


def _words_of_parting(calls: list[Call], flights: dict[int, Flight]) -> str:
    kinds: dict[tuple[str, str, str, int | None], list[Call]] = {}
    for call in calls:
        kinds.setdefault(call.kind, []).append(call)
    differ_in_bytes = len({kind[:3] for kind in kinds}) < len(kinds)

    def made(call: Call) -> str:
        n_bytes = f" with {call.bytes_sent:,} bytes" if differ_in_bytes and call.bytes_sent is not None else ""
        return f"{call.words()}{n_bytes}{_at(_place(call, flights))}"

    parts = [f"{ranks_in_words([call.rank for call in same])} made it {made(same[0])}" for same in kinds.values()]
    return f"The ranks parted at call {calls[0].call} of the {ranks_in_words(calls[0].group)}: {', '.join(parts)}."


def _place(call: Call, flights: dict[int, Flight]) -> str:
    """The line of the call: as recorded, or where the rank still is, or where it was when it wrote its file because the call failed."""
    flight = flights[call.rank]
    has_failed_in_it = call.state == "failed" and call is flight.last and flight.reason == FAILURE
    return call.source or (flight.line if call.end is None or has_failed_in_it else "")


def _words_of_wait(wait: _Wait, flights: dict[int, Flight], have_parted: bool = False) -> str:
    call = min(wait.calls, key=lambda each: each.since)
    who = ranks_in_words([each.rank for each in wait.calls]).capitalize()
    have = "have" if len(wait.calls) > 1 else "has"
    places: dict[str, list[int]] = {}
    for each in wait.calls:
        places.setdefault(_place(each, flights), []).append(each.rank)
    what = f"{call.words()}, {_number(call)}"
    if len(places) == 1:
        what += _at(_place(call, flights))
    else:
        parts = [f"{ranks_in_words(ranks)}{_at(place) or ' elsewhere'}" for place, ranks in [*places.items()][:4]]
        parts += [f"{len(places) - 4} more"] if len(places) > 4 else []
        what += f", which they made in different lines: {', '.join(parts)}"
    if wait.has_failed:
        text = f"{who} {have} failed in {what}"
    else:
        text = f"{who} {have} waited {flights[call.rank].time - call.since:.1f} s, since {_time(call.since)}, "
        text += f"for {ranks_in_words(wait.missing)} in {what}" if wait.missing else f"in {what}"
    if not wait.missing and have_parted:
        return f"{text}."
    if not wait.missing and len(places) > 1:
        return f"{text}. All ranks have come to it, and may wait for different things: SHARDWISE_CHECK=1 says how their calls differ."
    if not wait.missing:
        return f"{text}; all others have made this call: they compute before they wait for it, or messages are lost."
    return f"{text}; {'; '.join(_words_of_missing(rank, call, flights) for rank in wait.missing[:4])}" + (
        f"; and {len(wait.missing) - 4} more." if len(wait.missing) > 4 else "."
    )


def _number(call: Call) -> str:
    return f"call {call.call} of the {ranks_in_words(call.group)}" if call.call else ranks_in_words(call.group)


def _words_of_missing(rank: int, call: Call, flights: dict[int, Flight]) -> str:
    flight = flights.get(rank)
    if flight is None:
        return f"rank {rank} left no file: it is gone, or nobody asked it (kill -USR1 PID, if it was started with SHARDWISE_DUMP_SIGNAL=1)"
    own, last = flight.current(), flight.last
    if _is_before(flight, call, flights):
        before = f", when its last communication was {last.words()}, {_number(last)}" if last else ""
        file = f"rank {rank}'s file is of {_time(flight.time)}, from before this wait{before}"
        return f"{file}: kill -USR1 {flight.pid} writes a new one, if it was started with SHARDWISE_DUMP_SIGNAL=1"
    made = f"rank {rank} has made {flight.n_calls.get(call.group, 0)} of these calls"
    if own is not None and own.waits_since is not None:
        return f"{made} and waits in {own.words()} with the {ranks_in_words(own.group)}{_at(flight.place(own))}"
    if own is not None:
        return f"{made} and failed in {own.words()}"
    ended = f", the last communication {last.words()} at {_time(last.end or last.begin)}" if last else ""
    return f"{made}{ended}" + (f", and is at {flight.line}" if flight.line else "")


def _words_of_circle(circle: list[Call], flights: dict[int, Flight]) -> str:
    parts = []
    for call, later in zip(circle, [*circle[1:], circle[0]], strict=True):
        where = f"{call.words()} of the {ranks_in_words(call.group)}{_at(_place(call, flights))}"
        parts.append(f"rank {call.rank} waits for rank {later.rank} in {where}")
    since = min(call.since for call in circle)
    return f"Ranks wait for each other since {_time(since)}: {', '.join(parts)}."


def _words_of_rest(flights: dict[int, Flight]) -> str:
    n_ranks = max(flight.n_ranks for flight in flights.values())
    absent = sorted(set(range(n_ranks)) - set(flights))
    text = f"No rank of {len(flights)} waits for another"
    last = max((flight.last for flight in flights.values() if flight.last), key=lambda call: call.begin, default=None)
    if last is not None:
        text += f"; the last communication was {last.words()} of rank {last.rank} at {_time(last.begin)}"
    return text + (f"; {ranks_in_words(absent)} left no file." if absent else ".")


def hang_rows(flights: dict[int, Flight]) -> list[tuple[str, ...]]:
    """The heading (rank, state, in, with, call, at, file of), and a row per rank, also for ranks without a file. If there are more than
    LISTED_RANKS ranks, those that do the same at the same line share a row."""
    flights = _as_of_now(flights)
    waits = _waits(flights)
    missing = {call.rank: wait.missing for wait in waits for call in wait.calls}
    for wait in waits:
        for rank in wait.missing:
            if rank in flights and _is_before(flights[rank], wait.call, flights):
                flights[rank] = replace(flights[rank], is_outdated=True, line="")
    n_ranks = max(flight.n_ranks for flight in flights.values())
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank in range(n_ranks):
        facts = _facts(flights.get(rank), missing.get(rank, []))
        alike.setdefault(facts if n_ranks > LISTED_RANKS else (*facts, rank), []).append(rank)
    rows: list[tuple[str, ...]] = [("rank", "state", "in", "with", "call", "at", "file of")]
    for (state, awaited, within, group, number, place, reason, *_), ranks in alike.items():
        files = [flights[rank] for rank in ranks if rank in flights]
        if state == "waits":
            state += f" {max(map(_waited, files)):.1f} s" + (f" for {ranks_text(awaited)}" if awaited else "")
        written = f"{_time(max(file.time for file in files))}, {reason}" if files else ""
        rows.append((ranks_text(ranks), state, within, ranks_text(group), number, place, written))
    return rows


def _facts(flight: Flight | None, missing: list[int]) -> tuple[Any, ...]:
    """The facts of a rank without times, equal for ranks that share a row: its state, the ranks that it waits for, its call, the group and number of the
    call, its place, and the reason of the file."""
    if flight is None:
        return "no file", (), "", (), "", "", ""
    call = flight.current()
    shown = call or flight.last
    if call is None:
        state = "older file" if flight.is_outdated else "runs"
    else:
        state = "failed" if call.waits_since is None else "waits"
    last = "last " if call is None else ""
    what = (last + shown.words(), shown.group, f"{shown.call or ''}") if shown else ("", (), "")
    return state, tuple(missing), *what, flight.place(call), flight.reason


def _waited(flight: Flight) -> float:
    call = flight.current()
    return flight.time - call.waits_since if call is not None and call.waits_since is not None else 0.0


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
