"""Reads the files of shardwise.debug.dump(), one per rank."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

VERSION = 1
MOST_RANKS = 1 << 20
# Ranks may send different numbers of bytes in these calls, and a rank may leave one before others come.
OWN_BYTES = ("exchange", "all_to_all", "broadcast")
CLOCKS_DIFFER = 10.0  # seconds by which the clocks of two machines may differ


class Ranks(tuple[int, ...]):
    """The ranks of a group. Thousands of ranks are looked up a million times, so the hash is computed once and equal groups are one object."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


@dataclass(frozen=True)
class Call:
    """One communication of one rank. Times are seconds since 1970 by the rank's clock; None: it has not happened."""

    rank: int
    group: tuple[int, ...]  # the ranks that take part
    call: int  # its number among the group's communications; 0: members may stay away
    name: str
    operator: str
    dtype: str
    state: str  # "under way", "done", "failed"
    begin: float
    waits_since: float | None
    end: float | None
    layouts: str
    source: str  # the program's line, if it was recorded
    bytes_sent: int | None = None

    @property
    def kind(self) -> tuple[str, str, str, int | None]:
        """The facts that must be equal on all ranks."""
        return self.name, self.operator, self.dtype, self.bytes_sent if self.needs_all else None

    @property
    def needs_all(self) -> bool:
        """True if the call ends on no rank before all have come to it. Then all ranks also send the same number of bytes."""
        return self.call > 0 and self.name not in OWN_BYTES

    @property
    def since(self) -> float:
        """When the rank began to wait in the call, or made it."""
        return self.waits_since or self.begin

    def words(self) -> str:
        """all_reduce for aten::mm (Float [4, 4] as [Partial(sum)] on (4))."""
        layouts = self.layouts or self.dtype
        return self.name + (f" for {self.operator}" if self.operator else "") + (f" ({layouts})" if layouts else "")


@dataclass(frozen=True)
class Flight:
    """The file of one rank: its last communications."""

    path: Path
    rank: int
    n_ranks: int
    pid: int
    host: str
    time: float
    reason: str
    line: str  # the program's line that the rank was at
    stack: list[str]
    n_calls: dict[tuple[int, ...], int]  # by group
    calls: list[Call] = field(repr=False)
    began: float = 0.0  # when the process started; 0 if unknown
    run: str = ""  # equal on all ranks of a run; "" if unknown
    is_outdated: bool = False  # other ranks' files show that this rank has gone on since

    def current(self) -> Call | None:
        """The call that the rank waits in, or else its last call if that failed."""
        if self.is_outdated:
            return None
        waits = [call for call in self.calls if call.waits_since is not None]
        if waits:
            return waits[-1]
        return self.last if self.last and self.last.state == "failed" else None

    @property
    def last(self) -> Call | None:
        return self.calls[-1] if self.calls else None

    def place(self, call: Call | None) -> str:
        """The program's line of the call if it was recorded, else the line that the rank was at."""
        return (call.source if call else "") or self.line


class Flights(dict[int, Flight]):
    """The files by rank."""

    n_of_other_runs = 0  # files of other runs, which were left out


def read_flights(paths: Iterable[Path]) -> Flights:
    """The newest file of each rank of the newest run. Raises ValueError for a file that dump() did not write; files that were not written to
    their ends are left out."""
    known: dict[Ranks, Ranks] = {}
    flights = [_read(path, known) for path in paths if path.suffix != ".partial"]
    if not flights:
        raise ValueError("[hang] got no files. Give those that shardwise.debug.dump() wrote: dumps/*.")
    newest = max(flights, key=lambda flight: flight.time)
    of_run = [flight for flight in flights if newest.run in ("", flight.run)]
    found: dict[int, Flight] = {}
    for flight in _of_newest_run(of_run, newest):
        if flight.rank not in found or found[flight.rank].time < flight.time:
            found[flight.rank] = flight
    result = Flights(sorted(found.items()))
    result.n_of_other_runs = len(flights) - len(of_run)
    return result


def _of_newest_run(flights: list[Flight], newest: Flight) -> list[Flight]:
    """Leaves out files that are older than the process that wrote the newest one, or of another number of ranks. A folder may hold files of
    earlier runs, and a rank that hangs may have no file of this run. A process whose threads are ranks may be a rank itself, too."""

    def is_of_now(flight: Flight) -> bool:
        return flight is newest or flight.time >= newest.began - (0.0 if flight.host == newest.host else CLOCKS_DIFFER)

    now = [flight for flight in flights if is_of_now(flight)]
    n_ranks = max(flight.n_ranks for flight in now if (flight.host, flight.pid) == (newest.host, newest.pid))
    return [flight for flight in now if flight.n_ranks == n_ranks]


def _read(path: Path, known: dict[Ranks, Ranks]) -> Flight:
    try:
        dump = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise type(error)(
            f"[hang] {path} cannot be read: {error.strerror}. Give files of shardwise.debug.dump(), or their folder."
        ) from None
    except (ValueError, RecursionError):
        raise ValueError(f"[hang] {path} holds no JSON. Give files of shardwise.debug.dump().") from None
    if not isinstance(dump, dict) or dump.get("version") != VERSION or "communications" not in dump:
        raise ValueError(
            f"[hang] {path} is no file of shardwise.debug.dump(), or one of another version. Use this one's."
        )
    try:
        return _flight(path, dump, known)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"[hang] {path} is damaged: {error}. Leave it out, or let its rank write it anew.") from None


def _flight(path: Path, dump: dict[str, Any], known: dict[Ranks, Ranks]) -> Flight:
    """Raises ValueError if an entry is not as dump() writes it."""
    n_ranks = _whole(dump, "ranks", 1, MOST_RANKS)
    rank = _whole(dump, "rank", 0, n_ranks - 1)
    entries = _entries(dump, "groups")
    groups = [known.setdefault(ranks, ranks) for ranks in map(_ranks, entries)]
    return Flight(
        path=path,
        rank=rank,
        n_ranks=n_ranks,
        pid=_whole(dump, "pid"),
        host=_text(dump, "host"),
        time=_moment(dump, "time"),
        reason=_text(dump, "reason"),
        line=_text(dump, "line"),
        stack=_list(dump, "stack", str, "texts"),
        n_calls={group: _whole(entry, "calls") for group, entry in zip(groups, entries, strict=True)},
        calls=[_call(rank, groups, item) for item in _entries(dump, "communications")],
        began=_moment(dump, "began") if "began" in dump else 0.0,
        run=_text(dump, "run") if "run" in dump else "",
    )


def _call(rank: int, groups: list[Ranks], item: dict[str, Any]) -> Call:
    return Call(
        rank=rank,
        group=Ranks() if item.get("group", 0) is None else groups[_whole(item, "group", 0, len(groups) - 1)],
        call=_whole(item, "call"),
        name=_text(item, "name"),
        operator=_text(item, "operator"),
        dtype=_text(item, "dtype"),
        state=_text(item, "state"),
        begin=_moment(item, "begin"),
        waits_since=_moment_if_any(item, "waits_since"),
        end=_moment_if_any(item, "end"),
        layouts=_text(item, "layouts") if "layouts" in item else "",
        source=_text(item, "source") if "source" in item else "",
        bytes_sent=_whole(item, "bytes_sent") if "bytes_sent" in item else None,
    )


def _item(entry: dict[str, Any], name: str) -> Any:
    if name not in entry:
        raise _damage(name, "missing")
    return entry[name]


def _damage(name: str, what: str) -> ValueError:
    return ValueError(f'"{name}" is {what}')


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _text(entry: dict[str, Any], name: str) -> str:
    value = _item(entry, name)
    if not isinstance(value, str):
        raise _damage(name, f"{_shown(value)}, no text")
    return value


def _list(entry: dict[str, Any], name: str, kind: type, words: str) -> list[Any]:
    values = _item(entry, name)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise _damage(name, f"{_shown(values)}, no list of {words}")
    return values


def _entries(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return _list(entry, name, dict, "objects")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(entry: dict[str, Any], name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    value = _item(entry, name)
    if not _is_whole(value, least, most):
        raise _damage(name, f"{_shown(value)}, not in [{least}, {most + 1})")
    return int(value)


def _ranks(group: dict[str, Any]) -> Ranks:
    values = _item(group, "ranks")
    if not isinstance(values, list) or not all(_is_whole(value, 0, MOST_RANKS - 1) for value in values):
        raise _damage("ranks", f"{_shown(values)} of a group, no list of ranks")
    return Ranks(values)


def _moment(entry: dict[str, Any], name: str) -> float:
    """Seconds since 1970. Raises ValueError if the number is no time."""
    value = _item(entry, name)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        datetime.fromtimestamp(value)
    except (ValueError, OverflowError, OSError):
        raise _damage(name, f"{_shown(value)}, no time in seconds since 1970") from None
    return float(value)


def _moment_if_any(entry: dict[str, Any], name: str) -> float | None:
    return None if entry.get(name) is None else _moment(entry, name)
