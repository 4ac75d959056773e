"""What a profile holds: operators and communications of one rank, with their times."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, replace

from shardwise import _C


@dataclass(frozen=True)
class OperatorSpan:
    """One call of an operator on distributed tensors. Times are nanoseconds since 1970.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = (x * 2).redistribute(placements=[sw.Replicate()])
    >>> recorded.operators[0].op
    'aten::mul.Tensor'
    """

    op: str  # "aten::mm"
    rule: str
    given: list[str]  # the operands' layouts
    used: list[str]  # ... under which it ran
    results: list[str]
    begin_ns: int
    end_ns: int
    n_collectives: int
    bytes_received: int  # by this rank

    @property
    def microseconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000


@dataclass(frozen=True)
class CommunicationSpan:
    """One communication of one rank. Times are nanoseconds since 1970.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = (x * 2).redistribute(placements=[sw.Replicate()])
    >>> sent = recorded.communications[0]
    >>> sent.op, sent.is_asked_for, sent.bytes_received
    ('redistribute', True, 96)
    """

    collective: str  # what it amounts to: "all_gather"
    op: str  # the operator that it is for, or ""
    layouts: str  # what is moved, or ""
    source: str  # the program's line, or ""
    dtype: str
    is_asked_for: bool  # False: an operator moved its operands on its own
    ranks: tuple[int, ...]  # the group's
    call: int  # its number among the group's; 0 where members may stay away
    bytes_sent: int
    bytes_received: int
    begin_ns: int
    end_ns: int
    waited_ns: int  # for so long the rank's thread waited for others
    has_failed: bool
    last_rank: int | None = None  # the one that came last and was waited for, where profiles of all ranks are known
    late_ns: int = 0  # for so long this rank's thread waited for that one to come

    @property
    def microseconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000


@dataclass(frozen=True)
class RankProfile:
    """What one rank did.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = (x * 2).redistribute(placements=[sw.Replicate()])
    >>> merged = recorded.merge()
    >>> merged.ranks[3].rank if rank == 0 else 3
    3
    """

    rank: int
    operators: list[OperatorSpan]
    communications: list[CommunicationSpan]
    clock_ns: int = 0  # its clock was ahead of rank 0's by so much before the times were shifted

    @classmethod
    def of(cls, rank: int, profile: _C.Profile) -> RankProfile:
        """What `profile` holds."""
        operators = [
            OperatorSpan(
                each.op,
                each.rule,
                each.given,
                each.used,
                each.results,
                each.begin_ns,
                each.end_ns,
                each.n_collectives,
                each.bytes_received,
            )
            for each in profile.operators()
        ]
        communications = [
            CommunicationSpan(
                each.collective,
                each.op,
                each.layouts,
                each.source,
                each.dtype,
                each.is_asked_for,
                tuple(each.ranks),
                each.call,
                each.bytes_sent,
                each.bytes_received,
                each.begin_ns,
                each.end_ns,
                each.waited_ns,
                each.has_failed,
            )
            for each in profile.communications()
        ]
        return cls(rank, operators, communications)

    def packed(self) -> bytes:
        """As bytes, for a message."""
        return zlib.compress(json.dumps(asdict(self), separators=(",", ":")).encode(), 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> RankProfile:
        """The reverse of packed()."""
        values = json.loads(zlib.decompress(packed))
        communications = [
            CommunicationSpan(**{**each, "ranks": tuple(each["ranks"])}) for each in values["communications"]
        ]
        return cls(values["rank"], [OperatorSpan(**each) for each in values["operators"]], communications)

    def shifted(self, clock_ns: int) -> RankProfile:
        """By the clock of rank 0."""
        return replace(
            self,
            operators=[
                replace(each, begin_ns=each.begin_ns - clock_ns, end_ns=each.end_ns - clock_ns)
                for each in self.operators
            ],
            communications=[
                replace(each, begin_ns=each.begin_ns - clock_ns, end_ns=each.end_ns - clock_ns)
                for each in self.communications
            ],
            clock_ns=clock_ns,
        )
