"""The figures of one rank of a dry run: memory, communication, work, reads of values."""

from __future__ import annotations

import gc
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from shardwise.debug.spans import CommunicationSpan

# The labels of memory. Memory without a label is named after the phase that allocated it.
LABELS = ("", "message buffers", "parameters", "gradients", "optimizer state", "buffers")
MESSAGE_BUFFERS, PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS = range(1, len(LABELS))  # C++ sets the first
LINKS = ((20.0, 10.0),)  # unless others are given, in us and GB/s
PHASES = FORWARD, BACKWARD, OPTIMIZER, OUTSIDE = ("forward", "backward", "optimizer step", "outside of modules")


class Place(NamedTuple):
    """Where in the program something happened."""

    layer: str  # "MLP.net1", or "Global" outside of modules
    phase: str  # one of PHASES

    @property
    def layers(self) -> str:
        """The layer, without the numbers by which equal layers differ: "Transformer.layers.*.attention"."""
        return re.sub(r"\.\d+(?=\.|$)", ".*", self.layer)


class Allocation(NamedTuple):
    """The memory of a tensor and its views, in bytes. Times count allocations and releases."""

    n_bytes: int
    begin: int
    end: int
    label: int
    op: str
    place: Place

    @property
    def kind(self) -> str:
        return LABELS[self.label] or self.place.phase


@dataclass(frozen=True)
class Communication:
    span: CommunicationSpan
    place: Place


class Work(NamedTuple):
    """Equal calls of an operator on plain tensors: their floating-point operations, and the bytes that they read and write."""

    op: str
    flops: int
    n_bytes: int
    is_on_pieces: bool  # False: of plain tensors of the program
    n_calls: int
    place: Place


@dataclass(frozen=True)
class FileAccess:
    """A checkpoint that the program saved or loaded."""

    line: str
    verb: str  # "save" or "load"
    path: str
    n_items: int  # pieces of tensors, and other values, of this rank
    n_bytes: int  # that this rank writes or reads
    is_there: bool  # False for a load without a checkpoint, which counts as one of the same layout


@dataclass(frozen=True)
class Machine:
    """A model of one rank's hardware, for estimates of time. A rate of 0 is unknown."""

    flops: float  # per second
    memory_bandwidth: float  # bytes per second
    links: tuple[tuple[float, float], tuple[float, float]]  # us and GB/s: within a host, and between hosts
    ranks_per_host: int

    @classmethod
    def of(
        cls, flops: float, memory_bandwidth: float, links: Sequence[tuple[float, float]], ranks_per_host: int
    ) -> Machine:
        """From TFLOP/s, GB/s, and one link or two. Raises ValueError for rates that no hardware has, and for another number of links."""
        if not 0 < len(links) < 3:
            raise ValueError(
                f"[dry_run] there are {len(links)} links. Give the link within a host, and if it differs the one between hosts."
            )
        for latency_us, gb_per_second in links:
            if not (latency_us >= 0 and gb_per_second > 0):
                raise ValueError(
                    f"[dry_run] a link of {latency_us} us and {gb_per_second} GB/s is none. Give a latency of 0 or more and a bandwidth above 0."
                )
        if not (flops >= 0 and memory_bandwidth >= 0):
            raise ValueError(
                f"[dry_run] {flops} TFLOP/s and {memory_bandwidth} GB/s are no rates. Give numbers above 0, or 0 for unknown."
            )
        return cls(flops * 1e12, memory_bandwidth * 1e9, (links[0], links[-1]), ranks_per_host)

    def seconds_of(self, work: Work) -> float:
        """The larger of the times for arithmetic and for memory."""
        arithmetic = work.flops / self.flops if self.flops else 0
        return max(arithmetic, work.n_bytes / self.memory_bandwidth if self.memory_bandwidth else 0)

    def seconds_of_message(self, span: CommunicationSpan) -> float:
        """A latency, and the larger direction over the bandwidth of the slowest link of the group. Nothing without bytes: a group is made once."""
        if span.bytes_sent + span.bytes_received == 0:
            return 0.0
        latency_us, gb_per_second = self.links[self.is_between_hosts(span)]
        return latency_us / 1e6 + max(span.bytes_sent, span.bytes_received) / (gb_per_second * 1e9)

    def is_between_hosts(self, span: CommunicationSpan) -> bool:
        return len({rank // self.ranks_per_host for rank in span.ranks}) > 1


@dataclass
class RankFigures:
    """The figures of one rank of a dry run.

    `failure`: the error that ended the program, or "".
    """

    rank: int
    n_ranks: int
    allocations: list[Allocation] = field(default_factory=list)
    communications: list[Communication] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    blocking: set[int] = field(default_factory=set)  # the communications in which the program waits for another rank
    reads: dict[tuple[str, str], int] = field(default_factory=dict)  # by line and function
    unread: set[str] = field(default_factory=set)  # lines that have a value given and read none
    ids: str = ""  # their model, if the run planned for any
    failure: str = ""
    files: list[FileAccess] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)  # SVG: the layouts of each model
    grids: list[Any] = field(default_factory=list)  # agreement.Grid: the meshes
    alike: list[int] = field(default_factory=list)  # the ranks that it stands for, itself too

    def __post_init__(self) -> None:
        self.alike = self.alike or [self.rank]

    def __getstate__(self) -> dict[str, Any]:
        """The figures for another process, with allocations by column: there are hundreds of thousands in a step of a large model."""
        *numbers, ops, places = zip(*self.allocations) if self.allocations else [()] * len(Allocation._fields)
        columns = [array("q", each) for each in numbers], ops, places
        return {**self.__dict__, "peak_by_kind": self.peak_by_kind, "allocations": columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        numbers, ops, places = state["allocations"]
        self.allocations = list(map(Allocation._make, zip(*numbers, ops, places)))

    @cached_property
    def bytes_over_time(self) -> array[int]:
        """The bytes in use after each allocation and release."""
        return bytes_over_time(self.allocations)

    @cached_property
    def first_step(self) -> int:
        """The time at which the first module runs. What happens before is set-up: the program may make a whole model there, on the host."""
        return min((each.begin for each in self.allocations if each.place.phase != OUTSIDE), default=0)

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes in use at one time from the first step on."""
        return max(self.bytes_over_time[self.first_step :], default=0)

    @property
    def setup_peak_bytes(self) -> int:
        """The most bytes in use at one time before the first step."""
        return max(self.bytes_over_time[: self.first_step], default=0)

    def at_peak(self) -> Iterator[Allocation]:
        """The allocations that are in use when most bytes are, from the first step on."""
        over_time = self.bytes_over_time
        peak = max(range(self.first_step, len(over_time)), key=lambda time: over_time[time], default=-1)
        return (each for each in self.allocations if each.begin <= peak and not 0 <= each.end <= peak)

    @cached_property
    def peak_by_kind(self) -> dict[str, int]:
        """The bytes of the peak by label or phase, most first."""
        kinds: defaultdict[str, int] = defaultdict(int)
        for each in self.at_peak():
            kinds[each.kind] += each.n_bytes
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))

    @property
    def bytes_sent(self) -> int:
        return sum(each.span.bytes_sent for each in self.communications)

    @property
    def bytes_received(self) -> int:
        return sum(each.span.bytes_received for each in self.communications)

    @property
    def flops(self) -> int:
        return sum(each.flops for each in self.works)

    def as_json(self, machine: Machine) -> dict[str, Any]:
        """The figures for other programs. Memory is the bytes in use after each allocation and release."""
        return {
            "rank": self.rank,
            "ranks": self.n_ranks,
            "peak_bytes": self.peak_bytes,
            "setup_peak_bytes": self.setup_peak_bytes,
            "peak_by_kind": self.peak_by_kind,
            "memory": self.bytes_over_time.tolist(),
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "communications": [
                {
                    **each.place._asdict(),
                    "is_between_hosts": machine.is_between_hosts(each.span),
                    **{name: getattr(each.span, name) for name in COMMUNICATION_FIELDS},
                }
                for each in self.communications
            ],
            "flops": self.flops,
            "works": [{**each._asdict(), "place": each.place._asdict()} for each in self.works],
            "files": [asdict(each) for each in self.files],
            "reads": [{"line": line, "call": call, "times": n} for (line, call), n in self.reads.items()],
            "ids": self.ids,
            "failure": self.failure,
            "alike": self.alike,
        }


def bytes_over_time(lifetimes: Iterable[tuple[Any, ...]]) -> array[int]:
    """The bytes in use after each allocation and release. A lifetime begins with the bytes, the time of the allocation, and that of the release or -1."""
    changes: list[int] = []
    for n_bytes, begin, end, *_ in lifetimes:
        if max(begin, end) >= len(changes):
            changes += [0] * (max(begin, end) + 1)
        changes[begin] += n_bytes
        if end >= 0:
            changes[end] -= n_bytes
    while changes and changes[-1] == 0:
        changes.pop()
    return array("q", accumulate(changes))


@contextmanager
def without_collections() -> Iterator[None]:
    """A `with` block in which Python looks for no cycles of objects. It makes many objects that have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


COMMUNICATION_FIELDS = ("collective", "op", "ranks", "dtype", "bytes_sent", "bytes_received", "is_asked_for", "source")
