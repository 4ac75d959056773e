"""The contents of a profile: operators and communications of one rank, with their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from shardwise import _C


class _Span:
    begin_ns: int
    end_ns: int

    @property
    def microseconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000


S = TypeVar("S", "OperatorSpan", "CommunicationSpan")


@dataclass(frozen=True)
class OperatorSpan(_Span):
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
    used: list[str]  # the layouts under which it ran
    results: list[str]
    begin_ns: int
    end_ns: int
    n_collectives: int
    bytes_received: int  # by this rank


@dataclass(frozen=True)
class CommunicationSpan(_Span):
    """One communication of one rank. Times are nanoseconds since 1970.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = (x * 2).redistribute(placements=[sw.Replicate()])
    >>> sent = recorded.communications[0]
    >>> sent.op, sent.is_asked_for, sent.bytes_received
    ('redistribute', True, 96)
    """

    collective: str  # the equivalent collective: "all_gather"
    op: str  # the operator that it is for, or ""
    layouts: str  # the layouts of what is moved, or ""
    source: str  # the program's line, or ""
    dtype: str
    is_asked_for: bool  # False: an operator moved its operands on its own
    ranks: tuple[int, ...]  # the group's
    call: int  # its number among the group's communications; 0 if members may stay away
    bytes_sent: int
    bytes_received: int
    begin_ns: int
    end_ns: int
    waited_ns: int  # how long the rank's thread waited for others
    has_failed: bool
    last_rank: int | None = None  # the rank that came last and was waited for, if the profiles of all ranks are known
    late_ns: int = 0  # how long this rank's thread waited for that rank to come
    peer: int = -1  # for a message between two ranks: the index of the other one in the group
    tag: int = 0  # of such a message


@dataclass(frozen=True)
class RankProfile:
    """The operators and communications of one rank.

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
    clock_ns: int = 0  # how much its clock was ahead of rank 0's before the times were shifted

    @classmethod
    def of(cls, rank: int, profile: _C.EventReader) -> RankProfile:
        """The operators and communications that `profile` recorded."""
        operators = [OperatorSpan(**_values(OperatorSpan, each)) for each in profile.operators()]
        return cls(rank, operators, communications_in(profile))

    def shifted(self, clock_ns: int) -> RankProfile:
        """The profile with times by the clock of rank 0."""

        def shifted(spans: Sequence[S]) -> list[S]:
            return [replace(each, begin_ns=each.begin_ns - clock_ns, end_ns=each.end_ns - clock_ns) for each in spans]

        return RankProfile(self.rank, shifted(self.operators), shifted(self.communications), clock_ns)


def communications_in(profile: _C.EventReader) -> list[CommunicationSpan]:
    """The communications that `profile` recorded."""
    found = profile.communications()
    return [CommunicationSpan(**_values(CommunicationSpan, each) | {"ranks": tuple(each.ranks)}) for each in found]


def _values(kind: type[OperatorSpan] | type[CommunicationSpan], recorded: object) -> dict[str, Any]:
    """The fields of a span that C++ recorded under the same names."""
    return {each.name: getattr(recorded, each.name) for each in fields(kind) if hasattr(recorded, each.name)}
