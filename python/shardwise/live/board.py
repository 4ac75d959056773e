"""The last snapshots of the ranks, and what they say of the time between two."""

from __future__ import annotations

import json
import time
from typing import Any

from shardwise.live.form import FORM, check

__all__ = ["Board", "slowest"]

Json = dict[str, Any]

FORGOTTEN_AFTER = 3600.0  # seconds without a word of a job


class Board:
    """The last snapshots of each rank of each job, and what they say of the time between two."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Json]] = {}

    def take(self, snapshot: Json) -> None:
        """Raises ValueError for what is no snapshot, which leaves no trace."""
        check(snapshot)
        job, rank, pid, now = snapshot["job"], snapshot["rank"], snapshot["pid"], snapshot["time"]
        groups = {tuple(group["ranks"]): group for group in snapshot["groups"]}
        before = self._jobs.get(job, {}).get(rank)
        if before is not None and before["pid"] != pid:
            before = None
        per_group = [
            rates(group, before["by_group"].get(key) if before else None, now - before["time"] if before else 0.0)
            for key, group in groups.items()
        ]
        taken = {**{key: snapshot[key] for key in FORM}, "rates": per_group, "heard": time.time()}
        json.dumps(taken, allow_nan=False, ensure_ascii=False).encode()  # as the page will be told of it
        self._jobs.setdefault(job, {})[rank] = {**taken, "by_group": groups}

    def state(self, job: str | None = None) -> Json:
        """What the page shows of a job, by default of the one that spoke last."""
        now = time.time()
        self._jobs = {
            name: ranks
            for name, ranks in self._jobs.items()
            if now - max(each["heard"] for each in ranks.values()) < FORGOTTEN_AFTER
        }
        last = {name: max(each["heard"] for each in ranks.values()) for name, ranks in self._jobs.items()}
        names = sorted(last, key=lambda name: -last[name])
        chosen = job if job in self._jobs else next(iter(names), None)
        ranks = sorted(self._jobs.get(chosen or "", {}).items())
        shown = [{key: value for key, value in each.items() if key != "by_group"} for _, each in ranks]
        return {"jobs": names, "job": chosen, "now": now, "ranks": shown, "slowest": slowest(shown)}


def rates(group: Json, before: Json | None, seconds: float) -> Json:
    """Per second, since the snapshot before."""
    per_second = 1 / seconds if before is not None and seconds > 0 else 0.0
    rate = {
        key: max(0.0, group[key] - (before or group)[key]) * per_second
        for key in ("calls", "sent", "received", "seconds")
    }
    return {"ranks": group["ranks"], **rate, "total_calls": group["calls"], "total_received": group["received"]}


def slowest(ranks: list[Json]) -> int | None:
    """The rank that the others wait for: its communications take least, by a tenth of the time less than those that take most."""
    taken = {each["rank"]: sum(rate["seconds"] for rate in each["rates"]) for each in ranks if each["rates"]}
    if len(taken) < 2:
        return None
    least = min(taken, key=lambda rank: (taken[rank], rank))
    return least if max(taken.values()) - taken[least] > 0.1 else None
