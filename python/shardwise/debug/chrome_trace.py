"""Profiles as files for Perfetto, in the Trace Event Format of Chrome."""

import errno
import gzip
import json
import os
from collections.abc import Sequence
from typing import Any

from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile

OPERATORS = 0  # the thread of a rank's operators. Communications have threads from 1 on, one for each that runs at the same time

Event = dict[str, Any]


def write_trace(ranks: Sequence[RankProfile], path: str | os.PathLike[str]) -> None:
    """Raises TypeError if `path` is not a path, and OSError if it cannot be written."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise no_path(type(path).__name__)
    name = os.fsdecode(path)
    text = json.dumps({"traceEvents": trace_events(ranks), "displayTimeUnit": "ms"}, separators=(",", ":"))
    try:
        with gzip.open(name, "wt") if name.endswith(".gz") else open(name, "w") as file:
            file.write(text)
    except OSError as error:
        raise unwritable(repr(name), error.errno or errno.EIO) from None
    except ValueError:  # a name with a null character
        raise unwritable(repr(name), errno.EINVAL) from None


def no_path(kind: str) -> TypeError:
    """The error if rank 0 gives something else than a path."""
    return TypeError(f"[profile] path is {kind}: a trace is written to a file. Give a name such as 'step.json'.")


def unwritable(name: str, number: int) -> OSError:
    """The error of a file by its errno. It has that errno, and is equal on all ranks that know the number."""
    error = type(OSError(number, ""))(
        f"[profile] the trace {name} cannot be written: {os.strerror(number)}. Give a path in an existing folder that is writable."
    )
    error.errno = number
    return error


def trace_events(ranks: Sequence[RankProfile]) -> list[Event]:
    """A process per rank. Times are microseconds since the first event."""
    spans = (each for profile in ranks for each in (*profile.operators, *profile.communications))
    zero = min((each.begin_ns for each in spans), default=0)
    events: list[Event] = []
    slices: dict[tuple[tuple[int, ...], int], dict[int, tuple[CommunicationSpan, Event]]] = {}
    for profile in ranks:
        order = {"ph": "M", "name": "process_sort_index", "pid": profile.rank, "args": {"sort_index": profile.rank}}
        events += [_name("process_name", profile.rank, f"rank {profile.rank}"), order]
        events.append(_name("thread_name", profile.rank, "operators", OPERATORS))
        events += [_operator(profile.rank, each, zero) for each in profile.operators]
        lanes: list[int] = []  # the end of the last communication in each
        for each in sorted(profile.communications, key=lambda each: each.begin_ns):
            lane = next((i for i, end in enumerate(lanes) if end <= each.begin_ns), len(lanes))
            if lane == len(lanes):
                lanes.append(0)
                events.append(_name("thread_name", profile.rank, "communication", lane + 1))
            lanes[lane] = each.end_ns
            event = _communication(profile.rank, each, zero, lane + 1)
            events.append(event)
            if each.call > 0:
                slices.setdefault((each.ranks, each.call), {})[profile.rank] = each, event
    for number, together in enumerate(slices.values()):
        events += _arrows(number, together)
    return events


def _name(kind: str, rank: int, name: str, thread: int = 0) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def _slice(rank: int, thread: int, name: str, span: OperatorSpan | CommunicationSpan, zero: int, args: Event) -> Event:
    begin, duration = (span.begin_ns - zero) / 1000, (span.end_ns - span.begin_ns) / 1000
    return {"ph": "X", "name": name, "pid": rank, "tid": thread, "ts": begin, "dur": duration, "args": args}


def _operator(rank: int, each: OperatorSpan, zero: int) -> Event:
    args = {
        "rule": each.rule,
        "operands": ", ".join(each.given),
        "run as": ", ".join(each.used),
        "results": ", ".join(each.results),
        "collectives": each.n_collectives,
        "bytes received": each.bytes_received,
    }
    return _slice(rank, OPERATORS, each.op, each, zero, args)


def _communication(rank: int, each: CommunicationSpan, zero: int, thread: int) -> Event:
    args = {
        "operator": each.op,
        "asked for": each.is_asked_for,
        "line": each.source,
        "layouts": each.layouts,
        "dtype": each.dtype,
        "ranks": ", ".join(map(str, each.ranks)),
        "call": each.call,
        "bytes sent": each.bytes_sent,
        "bytes received": each.bytes_received,
        "waited us": each.waited_ns / 1000,
    }
    if each.last_rank is not None:
        args |= {"waited for": f"rank {each.last_rank}", "until it came, us": each.late_ns / 1000}
    if each.has_failed:
        args["failed"] = True
    return _slice(rank, thread, each.collective, each, zero, args)


def _arrows(number: int, together: dict[int, tuple[CommunicationSpan, Event]]) -> list[Event]:
    """Arrows from the rank that came last to each rank that waited for it."""
    events: list[Event] = []
    for rank, (each, event) in together.items():
        if each.last_rank not in together:
            continue
        _, start = together[each.last_rank]
        flow = {"name": "waits for", "cat": "waits", "id": f"{number}.{rank}"}
        events.append({"ph": "s", **flow, "pid": each.last_rank, "tid": start["tid"], "ts": start["ts"]})
        end = max(start["ts"], event["ts"] + event["dur"])
        events.append({"ph": "f", "bp": "e", **flow, "pid": rank, "tid": event["tid"], "ts": end})
    return events
