"""Checks snapshots, keeps the last ones of all ranks, and computes rates from them."""

import json
import math
import time
from collections.abc import Callable
from typing import Any

__all__ = ["FORM", "check"]

MOST_RANKS = 1 << 16
LARGEST = 1e300  # the largest number that the page adds up

# `float` means any number, a list has values of one form, and a tuple (None, form) a value that may be None.
MESH = {"shape": [int], "names": [str], "ranks": [int]}
LAYOUT = {"shape": [int], "dtype": str, "placements": [str], "mesh": [int]}
FORM: dict[str, Any] = {
    "job": str,
    "rank": int,
    "n_ranks": int,
    "host": str,
    "pid": int,
    "time": float,
    "began": float,
    "memory": float,
    "groups": [{"ranks": [int], "calls": float, "sent": float, "received": float, "seconds": float}],
    "waits": [{"name": str, "op": str, "seconds": float, "ranks": (None, [int])}],
    "error": (None, {"text": str, "line": str, "time": float}),
    "meshes": [MESH],
    "tensors": [{"name": str, **LAYOUT, "bytes": float, "local_bytes": float}],
    "n_tensors": int,
    "local_bytes": float,
}
KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a text"),
    int: (lambda value: type(value) is int and value >= 0, "a whole number from 0 on"),
    float: (lambda value: type(value) in (int, float) and abs(value) < LARGEST, "a finite number"),
}


def check(snapshot: Any) -> None:
    """Raises ValueError, which names the part that is wrong, for a snapshot that the page cannot show."""
    _check(snapshot, FORM, "the snapshot")
    if snapshot["rank"] >= MOST_RANKS:
        raise ValueError(f"rank {snapshot['rank']} is more than {MOST_RANKS - 1}")
    for i, mesh in enumerate(snapshot["meshes"]):
        if min(mesh["shape"], default=1) < 1 or math.prod(mesh["shape"]) != len(mesh["ranks"]):
            raise ValueError(f"meshes[{i}] of shape {mesh['shape'][:9]} has {len(mesh['ranks'])} ranks")


def _check(value: Any, form: Any, path: str) -> None:
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{path} is no object")
        for key, inner in form.items():
            inside = key if form is FORM else f"{path}.{key}"
            if key not in value:
                raise ValueError(f"{inside} is missing")
            _check(value[key], inner, inside)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError(f"{path} is no list")
        for i, each in enumerate(value):
            if form[0] is not int or type(each) is not int or each < 0:  # lists of ranks are long
                _check(each, form[0], f"{path}[{i}]")
    elif isinstance(form, tuple):
        if value is not None:
            _check(value, form[1], path)
    elif not KINDS[form][0](value):
        raise ValueError(f"{path} is not {KINDS[form][1]}")


Json = dict[str, Any]

FORGOTTEN_AFTER = 3600.0  # seconds without a snapshot of a job
# A rank counts as gone after this many seconds or this many intervals of its snapshots, whichever is longer.
SILENT_AFTER, INTERVALS = 5.0, 3


class Board:
    """The last snapshot of each rank of each job, with the rates since the one before."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Json]] = {}

    def take(self, snapshot: Json) -> None:
        """Takes a snapshot, unless it is of an earlier run or of a process that is no rank. Raises ValueError if it is invalid."""
        check(snapshot)
        job, rank, now = snapshot["job"], snapshot["rank"], snapshot["time"]
        groups = {tuple(group["ranks"]): group for group in snapshot["groups"]}
        held = self._jobs.get(job, {})
        before = held.get(rank)
        others = [each for each in held.values() if each["pid"] != snapshot["pid"]]
        if any(_is_replaced(snapshot, each) for each in others):
            return  # late
        if before is not None and before["pid"] != snapshot["pid"]:
            if before["groups"] and not snapshot["groups"] and not _is_silent(before, time.time()):
                return  # a process that the living rank started with its environment: it communicates with nobody
            before = None
        interval = now - before["time"] if before else 0.0
        earlier = before["by_group"] if before else {}
        risen = [key for key, group in groups.items() if key not in earlier or group["calls"] > earlier[key]["calls"]]
        recent = risen or (before["recent"] if before else [])
        per_group = [
            rates(group, earlier.get(key), interval, _running(snapshot["waits"], key, key in recent))
            for key, group in groups.items()
        ]
        taken = {
            **{key: snapshot[key] for key in FORM},
            "rates": per_group,
            "heard": time.time(),
            "silent_after": max(SILENT_AFTER, INTERVALS * interval),
        }
        json.dumps(taken, allow_nan=False, ensure_ascii=False).encode()  # the page must be able to get it
        kept = {other: each for other, each in held.items() if not _is_replaced(each, snapshot)}
        self._jobs[job] = {**kept, rank: {**taken, "by_group": groups, "recent": recent}}

    def state(self, job: str | None = None) -> Json:
        """The data that the page shows of a job. Default: the running job that began last."""
        now = time.time()
        self._jobs = {
            name: ranks
            for name, ranks in self._jobs.items()
            if now - max(each["heard"] for each in ranks.values()) < FORGOTTEN_AFTER
        }

        def order(name: str) -> tuple[bool, float]:
            ranks = self._jobs[name].values()
            return all(_is_silent(each, now) for each in ranks), -max(each["began"] for each in ranks)

        names = sorted(self._jobs, key=order)
        chosen = job if job in self._jobs else next(iter(names), None)
        ranks = sorted(self._jobs.get(chosen or "", {}).items())
        shown = [
            {key: value for key, value in each.items() if key not in INTERNAL} | {"silent": _is_silent(each, now)}
            for _, each in ranks
        ]
        return {"jobs": names, "job": chosen, "now": now, "ranks": shown, "slowest": slowest(shown)}


INTERNAL = ("by_group", "recent", "silent_after")


def _is_silent(rank: Json, now: float) -> bool:
    return bool(now - rank["heard"] > rank["silent_after"])


def _is_replaced(snapshot: Json, by: Json) -> bool:
    """True if `snapshot` is of an earlier run of the same job, with another number of ranks."""
    is_earlier = snapshot["pid"] == by["pid"] or snapshot["began"] < by["began"]
    return is_earlier and snapshot["n_ranks"] != by["n_ranks"]


def _running(waits: list[Json], group: tuple[int, ...], is_recent: bool) -> float:
    """The seconds for which a thread has waited in a communication of `group` that has not ended. A wait without a group belongs to the groups
    of the last communications (`is_recent`)."""
    return max(
        (wait["seconds"] for wait in waits if (is_recent if wait["ranks"] is None else tuple(wait["ranks"]) == group)),
        default=0.0,
    )


def rates(group: Json, before: Json | None, seconds: float, running: float = 0.0) -> Json:
    """The counts per second since the snapshot before. "busy" is the share of the time in which communications were under way, including the
    `running` seconds of one that has not ended."""
    per_second = 1 / seconds if before is not None and seconds > 0 else 0.0
    rate = {
        key: max(0.0, group[key] - (before or group)[key]) * per_second
        for key in ("calls", "sent", "received", "seconds")
    }
    return {
        "ranks": group["ranks"],
        **rate,
        "busy": min(1.0, rate["seconds"] + min(running, seconds) * per_second),
        "new_calls": group["calls"] - (before or group)["calls"],
        "total_calls": group["calls"],
        "total_received": group["received"],
    }


NOTHING = {"busy": 0.0, "new_calls": 0.0, "total_calls": 0.0}


def slowest(ranks: list[Json]) -> int | None:
    """The rank that the others wait for, or None. In each group, it is the rank whose communications take the least time, if that is less than the
    most by a tenth of the whole time. Among these ranks, it is the one that waits least itself. Ranks that failed or are silent do not count."""
    lives = {each["rank"]: each["rates"] for each in ranks if not each["silent"] and each["error"] is None}
    groups: dict[tuple[int, ...], dict[int, Json]] = {}
    for rank, per_group in lives.items():
        for rate in per_group:
            groups.setdefault(tuple(rate["ranks"]), {})[rank] = rate
    members = ({rank: known.get(rank, NOTHING) for rank in group if rank in lives} for group, known in groups.items())
    late = {rank for rank in map(_late, members) if rank is not None}
    return min(late, key=lambda rank: (sum(rate["busy"] for rate in lives[rank]), rank), default=None)


def _late(members: dict[int, Json]) -> int | None:
    """The rank that the other members of a group wait for, or None."""
    most = max(rate["busy"] for rate in members.values())
    n_new = max(rate["new_calls"] for rate in members.values())
    # If calls end without a rank, nobody waits for it.
    idle = [
        rank for rank, rate in members.items() if rate["busy"] < most - 0.1 and (rate["new_calls"] > 0 or n_new < 2)
    ]
    least = min((members[rank]["busy"] for rank in idle), default=0.0)
    # If several ranks take about as little, the one that has made the fewest calls has not come to the present one.
    alike = [rank for rank in idle if members[rank]["busy"] < least + 0.05]
    return min(alike, key=lambda rank: (members[rank]["total_calls"], rank), default=None)
