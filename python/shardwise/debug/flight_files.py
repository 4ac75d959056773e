"""Writes the last communications of the ranks of this process to files, and reads such files of all ranks."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from shardwise import _C

T = TypeVar("T")

VERSION = 1
MOST_RANKS = 1 << 20
# Ranks may send different numbers of bytes in these calls, and a rank may leave one before others come.
OWN_BYTES = ("exchange", "all_to_all", "broadcast")
CLOCKS_DIFFER = 10.0  # seconds by which the clocks of two machines may differ


def dump(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Writes the last 1,000 communications and the Python stack of each rank of this process to FOLDER/shardwise-rank<rank>-pid<pid>.json.
    For ranks that are threads the name contains `-thread`. Returns the paths. Sends nothing. `folder` is made if it is missing; default: the
    environment variable SHARDWISE_DUMP_FOLDER, or shardwise-dumps-<user id> in the folder of temporary files.

    Communications are always recorded. The files of all ranks show who waits for whom:

    >>> [path[:21] for path in sw.debug.dump("dumps")][:1]
    ['dumps/shardwise-rank0']

    `python -m shardwise hang dumps/*` reads them.

    They are also written when a wait takes longer than SHARDWISE_WAIT_WARNING (30 s), when a communication of a rank that is a process
    ends with an error, and, in a program that was started with SHARDWISE_DUMP_SIGNAL=1, on SIGUSR1: `kill -USR1 PID` while it hangs.

    Raises TypeError or ValueError if `folder` is not a path, and RuntimeError if it cannot be written to.
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"[dump] folder is {type(folder).__name__}: files are written to a path. Give a name such as 'dumps', or leave it out."
        )
    if folder is not None and "\0" in os.fsdecode(folder):
        raise ValueError(
            f"[dump] folder {os.fsdecode(folder)!r} has a null character: no path has one. Give another name."
        )
    return _C.dump_flights(None if folder is None else os.fspath(folder))


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
    waits_since: float | None = None
    end: float | None = None
    layouts: str = ""
    source: str = ""  # the program's line, if it was recorded
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
    n_ranks = _value(dump, "ranks", _whole(1, MOST_RANKS))
    rank = _value(dump, "rank", _whole(0, n_ranks - 1))
    entries = _value(dump, "groups", OBJECTS)
    every = [Ranks(_value(entry, "ranks", RANKS)) for entry in entries]
    groups = [known.setdefault(ranks, ranks) for ranks in every]
    n_calls = {group: _value(entry, "calls", FORMS[int]) for group, entry in zip(groups, entries, strict=True)}
    calls = [
        _made(Call, item, rank=rank, group=_group_of(item, groups)) for item in _value(dump, "communications", OBJECTS)
    ]
    return _made(Flight, dump, path=path, rank=rank, n_ranks=n_ranks, n_calls=n_calls, calls=calls, is_outdated=False)


def _group_of(item: dict[str, Any], groups: list[Ranks]) -> Ranks:
    return Ranks() if item.get("group", 0) is None else groups[_value(item, "group", _whole(0, len(groups) - 1))]


def _made(kind: type[T], entry: dict[str, Any], **given: Any) -> T:
    """An object with the given fields and the entry's; fields that the entry lacks have their defaults."""
    own = [each for each in fields(kind) if each.name not in given]  # type: ignore[arg-type]
    read = [each for each in own if each.name in entry or each.default is MISSING]
    return kind(**given, **{each.name: _value(entry, each.name, FORMS[each.type]) for each in read})


Form = tuple[Callable[[Any], bool], str]  # whether a value has the form, and words for one that has not


def _value(entry: dict[str, Any], name: str, form: Form) -> Any:
    if name not in entry:
        raise ValueError(f'"{name}" is missing')
    is_right, words = form
    if not is_right(entry[name]):
        text = json.dumps(entry[name])
        raise ValueError(f'"{name}" is {text if len(text) <= 40 else f"{text[:40]}..."}, {words}')
    return entry[name]


def _whole(least: int, most: int) -> Form:
    return lambda value: type(value) is int and least <= value <= most, f"not in [{least}, {most + 1})"


def _list_of(form: Form, words: str) -> Form:
    return lambda values: isinstance(values, list) and all(map(form[0], values)), f"no list of {words}"


def _is_moment(value: object) -> bool:
    try:
        return type(value) in (int, float) and datetime.fromtimestamp(value) is not None  # type: ignore[arg-type]
    except (ValueError, OverflowError, OSError):
        return False


TEXT: Form = (lambda value: isinstance(value, str), "no text")
OBJECTS = _list_of((lambda value: isinstance(value, dict), ""), "objects")
RANKS = _list_of(_whole(0, MOST_RANKS - 1), "ranks")
NO_TIME = "no time in seconds since 1970"
# The forms of fields by their types. A time that may be None may be null in the file. Fields with defaults may be left out.
FORMS: dict[Any, Form] = {
    str: TEXT,
    list[str]: _list_of(TEXT, "texts"),
    float: (_is_moment, NO_TIME),
    float | None: (lambda value: value is None or _is_moment(value), NO_TIME),
    **dict.fromkeys((int, int | None), _whole(0, 2**63 - 1)),
}
