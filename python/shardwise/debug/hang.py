"""Who waits for whom: what the files of all ranks say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from shardwise.debug.flight_files import Call, Flight

FAILURE = "a communication failed"  # the reason of a file
LISTED_RANKS = 16  # that have a row each

__all__ = ["describe_hang", "hang_rows", "ranks_in_words"]


def describe_hang(flights: dict[int, Flight]) -> str:
    """One sentence, or two: which ranks part or wait, for whom, in what, since when, and where the others are."""
    waits = _waits(flights)
    parting = _first_parting(flights)
    if parting is not None:
        return _words_of_parting(parting, flights) + (f" {_words_of_wait(waits[0], flights)}" if waits else "")
    if not waits:
        return _words_of_rest(flights)
    circle = _circle(waits, flights)
    return _words_of_circle(circle, flights) if circle else _words_of_wait(waits[0], flights)


@dataclass(frozen=True)
class _Wait:
    """Ranks that wait in one call, or failed in it, and those that have not come to it."""

    calls: list[Call]  # of the ranks that wait
    missing: list[int]

    @property
    def call(self) -> Call:
        return self.calls[0]

    @property
    def has_failed(self) -> bool:
        return all(call.state == "failed" for call in self.calls)


def _missing(call: Call, flights: dict[int, Flight]) -> list[int]:
    """Ranks of the group that have not come to this call, or left no file."""
    result = []
    for rank in call.group:
        flight = flights.get(rank)
        if flight is None:
            result.append(rank)
        elif call.call > 0:
            if flight.n_calls.get(call.group, 0) < call.call:
                result.append(rank)
        elif not any(
            other.group == call.group and other.name == call.name and other.end is None for other in flight.calls
        ):
            result.append(rank)  # members may stay away from it: whether this one has to come is not known
    return [rank for rank in result if rank != call.rank]


def _waits(flights: dict[int, Flight]) -> list[_Wait]:
    """Those first whose missing ranks wait for nobody, then by their age."""
    together: dict[tuple[tuple[int, ...], int, str], list[Call]] = {}
    for flight in flights.values():
        call = flight.current()
        if call is not None:
            together.setdefault((call.group, call.call, call.name), []).append(call)
    waits = [
        _Wait(calls, sorted(set(_missing(calls[0], flights)) - {call.rank for call in calls}))
        for calls in together.values()
    ]

    def order(wait: _Wait) -> tuple[bool, bool, float]:
        is_at_the_root = any(not _is_waiting(rank, flights) for rank in wait.missing)
        return not is_at_the_root, wait.has_failed, min(call.waits_since or call.begin for call in wait.calls)

    return sorted(waits, key=order)


def _is_waiting(rank: int, flights: dict[int, Flight]) -> bool:
    call = flights[rank].current() if rank in flights else None
    return call is not None and call.waits_since is not None


def _first_parting(flights: dict[int, Flight]) -> list[Call] | None:
    """The earliest call that ranks made differently: one call of each rank."""
    calls: dict[tuple[tuple[int, ...], int], list[Call]] = {}
    for flight in flights.values():
        for call in flight.calls:
            if call.call > 0:
                calls.setdefault((call.group, call.call), []).append(call)
    differing = [same for same in calls.values() if len({call.kind for call in same}) > 1]
    return min(differing, key=lambda same: min(call.begin for call in same), default=None)


def _circle(waits: Sequence[_Wait], flights: dict[int, Flight]) -> list[Call]:
    """Calls of which each waits for the rank of the next, and the last for that of the first; none where somebody waits for nobody."""
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
    kinds: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        kinds.setdefault(call.kind, []).append(call)
    parts = [
        f"{ranks_in_words([call.rank for call in same])} made it {same[0].words()}{_at(_place(same[0], flights))}"
        for same in kinds.values()
    ]
    return f"The ranks parted at call {calls[0].call} of the {ranks_in_words(calls[0].group)}: {', '.join(parts)}."


def _place(call: Call, flights: dict[int, Flight]) -> str:
    """Where the rank made the call: as noted, or where it still is, or was when it wrote its file because of it."""
    flight = flights[call.rank]
    has_failed_in_it = call.state == "failed" and call is flight.calls[-1] and flight.reason == FAILURE
    return call.source or (flight.line if call.end is None or has_failed_in_it else "")


def _words_of_wait(wait: _Wait, flights: dict[int, Flight]) -> str:
    call = min(wait.calls, key=lambda each: each.waits_since or each.begin)
    number = f"call {call.call} of the {ranks_in_words(call.group)}" if call.call else ranks_in_words(call.group)
    who = ranks_in_words([each.rank for each in wait.calls]).capitalize()
    have = "have" if len(wait.calls) > 1 else "has"
    what = f"{call.words()}, {number}{_at(_place(call, flights))}"
    if wait.has_failed:
        text = f"{who} {have} failed in {what}"
    else:
        flight = flights[call.rank]
        since = call.waits_since or call.begin
        text = f"{who} {have} waited {flight.time - since:.1f} s, since {_time(since)}, "
        text += f"for {ranks_in_words(wait.missing)} in {what}" if wait.missing else f"in {what}"
    if not wait.missing:
        return f"{text}; all others have made this call: they compute before they wait for it, or messages are lost."
    return f"{text}; {'; '.join(_words_of_missing(rank, call, flights) for rank in wait.missing[:4])}" + (
        f"; and {len(wait.missing) - 4} more." if len(wait.missing) > 4 else "."
    )


def _words_of_missing(rank: int, call: Call, flights: dict[int, Flight]) -> str:
    flight = flights.get(rank)
    if flight is None:
        return f"rank {rank} left no file: it is gone, or nobody asked it (kill -USR1 PID)"
    own = flight.current()
    made = f"rank {rank} has made {flight.n_calls.get(call.group, 0)} of these calls"
    if own is not None and own.waits_since is not None:
        return f"{made} and waits in {own.words()} with the {ranks_in_words(own.group)}{_at(flight.place(own))}"
    if own is not None:
        return f"{made} and failed in {own.words()}"
    last = flight.calls[-1] if flight.calls else None
    ended = f", the last communication {last.words()} at {_time(last.end or last.begin)}" if last else ""
    return f"{made}{ended}" + (f", and is at {flight.line}" if flight.line else "")


def _words_of_circle(circle: list[Call], flights: dict[int, Flight]) -> str:
    parts = []
    for call, later in zip(circle, [*circle[1:], circle[0]], strict=True):
        where = f"{call.words()} of the {ranks_in_words(call.group)}{_at(_place(call, flights))}"
        parts.append(f"rank {call.rank} waits for rank {later.rank} in {where}")
    since = min(call.waits_since or call.begin for call in circle)
    return f"Ranks wait for each other since {_time(since)}: {', '.join(parts)}."


def _words_of_rest(flights: dict[int, Flight]) -> str:
    n_ranks = max(flight.n_ranks for flight in flights.values())
    absent = sorted(set(range(n_ranks)) - set(flights))
    text = f"No rank of {len(flights)} waits for another"
    last = max(
        (flight.calls[-1] for flight in flights.values() if flight.calls), key=lambda call: call.begin, default=None
    )
    if last is not None:
        text += f"; the last communication was {last.words()} of rank {last.rank} at {_time(last.begin)}"
    return text + (f"; {ranks_in_words(absent)} left no file." if absent else ".")


def hang_rows(flights: dict[int, Flight]) -> list[tuple[str, ...]]:
    """Under the heading (rank, state, in, with, call, at, file of): a row per rank, those without a file too. Of more than LISTED_RANKS
    ranks, those that do the same in the same line share a row."""
    missing = {call.rank: wait.missing for wait in _waits(flights) for call in wait.calls}
    n_ranks = max(flight.n_ranks for flight in flights.values())
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank in range(n_ranks):
        does = _does(flights.get(rank), missing.get(rank, []))
        alike.setdefault(does if n_ranks > LISTED_RANKS else (rank, *does), []).append(rank)
    rows: list[tuple[str, ...]] = [("rank", "state", "in", "with", "call", "at", "file of")]
    rows += [_row(ranks, flights, missing.get(ranks[0], [])) for ranks in alike.values()]
    return rows


def _does(flight: Flight | None, missing: list[int]) -> tuple[object, ...]:
    """What a rank does, but for the times."""
    if flight is None:
        return ()
    call = flight.current()
    shown = call or (flight.calls[-1] if flight.calls else None)
    what = (shown.words(), shown.group, shown.call) if shown else ()
    waits = call is not None and call.waits_since is not None
    return (call is None, waits, tuple(missing), *what, flight.place(call), flight.reason)


def _row(ranks: list[int], flights: dict[int, Flight], missing: list[int]) -> tuple[str, ...]:
    """Of ranks that do the same."""
    flight = flights.get(ranks[0])
    if flight is None:
        return (_short(ranks), "no file", "", "", "", "", "")
    call = flight.current()
    shown = call or (flight.calls[-1] if flight.calls else None)
    if call is None:
        state = "runs"
    elif call.waits_since is None:
        state = "failed"
    else:
        state = f"waits {max(_waited(flights[rank]) for rank in ranks):.1f} s"
        state += f" for {_short(missing)}" if missing else ""
    within = ("last " if call is None and shown else "") + (shown.words() if shown else "")
    group, number = (_short(shown.group), f"{shown.call or ''}") if shown else ("", "")
    written = f"{_time(max(flights[rank].time for rank in ranks))}, {flight.reason}"
    return (_short(ranks), state, within, group, number, flight.place(call), written)


def _waited(flight: Flight) -> float:
    call = flight.current()
    return flight.time - call.waits_since if call is not None and call.waits_since is not None else 0.0


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")


def _short(ranks: Iterable[int]) -> str:
    """0-3, 7."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """rank 2; ranks 0-3, 7."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_short(ranks)}"
