"""Whether all ranks of a dry run make the same collectives in the same order, and whether the messages between two ranks are received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

import torch

from shardwise._dry_run.figures import RankFigures
from shardwise.debug.spans import CommunicationSpan
from shardwise.device_mesh import DeviceMesh

Ranks = tuple[int, ...]
# The ends of the names of calls between two ranks.
PAIRED = SEND, RECEIVE, RECEIVE_ANY = ("send", "recv", "recv_any_source")


@dataclass(frozen=True, order=True)
class Grid:
    """A mesh: its shape, its ranks in row-major order, and the names of its dims if it has any."""

    shape: Ranks
    ranks: Ranks
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Grid:
        """The mesh that `mesh` is a slice of."""
        root = mesh._get_root_mesh()
        with torch._C.DisableTorchFunction():
            return cls(tuple(root.mesh.shape), tuple(root.mesh.flatten().tolist()), tuple(root.mesh_dim_names or ()))

    def coordinate(self, index: int) -> Ranks:
        """The coordinate of `ranks[index]`."""
        result = []
        for extent in reversed(self.shape):
            index, place = divmod(index, extent)
            result.append(place)
        return tuple(reversed(result))


@dataclass(frozen=True)
class Lines:
    """The groups of ranks that agree in all coordinates of a grid but `dims`. Each rank of the grid is in one of them."""

    grid: Grid
    dims: Ranks

    def groups(self) -> Iterator[Ranks]:
        groups: defaultdict[Ranks, list[int]] = defaultdict(list)
        for index, rank in enumerate(self.grid.ranks):
            place = self.grid.coordinate(index)
            groups[tuple(at for dim, at in enumerate(place) if dim not in self.dims)].append(rank)
        return (tuple(sorted(group)) for group in groups.values())


def lines_of(ranks: Ranks, grids: Sequence[Grid]) -> Lines:
    """The lines of the first of `grids` that this group is one of; a grid of its own if there are none."""
    for grid in grids:
        if not set(ranks) <= set(grid.ranks):
            continue
        places = [grid.coordinate(grid.ranks.index(rank)) for rank in ranks]
        dims = tuple(dim for dim in range(len(grid.shape)) if len({place[dim] for place in places}) > 1)
        if prod(grid.shape[dim] for dim in dims) == len(ranks):
            return Lines(grid, dims)
    return Lines(Grid((len(ranks),), tuple(sorted(ranks))), (0,))


def divergences(ranks: Sequence[RankFigures]) -> list[str]:
    """A sentence for each kind of group whose members make different collectives; none if every group agrees.

    Each of `ranks` stands for those in its `alike`. Compared are the kind, the operator and the dtype of each collective that all members of a
    group make, and the bytes of reductions.
    """
    grids = sorted({grid for each in ranks for grid in each.grids}, key=lambda grid: -len(grid.ranks))
    calls: defaultdict[Lines, dict[int, list[CommunicationSpan]]] = defaultdict(dict)
    known: dict[Ranks, Lines] = {}
    for number, each in enumerate(ranks):
        for communication in each.communications:
            span = communication.span
            if span.call == 0 and not is_plain_collective(span):
                continue
            if span.ranks not in known:
                known[span.ranks] = lines_of(span.ranks, grids)
            calls[known[span.ranks]].setdefault(number, []).append(span)
    owner = {rank: number for number, each in enumerate(ranks) for rank in each.alike}
    return [found for lines, by_owner in calls.items() if (found := _difference(ranks, lines, by_owner, owner))]


def is_plain_collective(span: CommunicationSpan) -> bool:
    """True if the program called the collective itself, and all ranks of the group must."""
    return span.op.startswith(("c10d::", "_c10d_functional")) and not span.collective.endswith(PAIRED)


def _difference(
    ranks: Sequence[RankFigures], lines: Lines, calls: dict[int, list[CommunicationSpan]], owner: dict[int, int]
) -> str:
    seen: set[tuple[int, int]] = set()
    for group in lines.groups():
        numbers = sorted({owner[rank] for rank in group if rank in owner})
        for other in numbers[1:]:
            pair = (numbers[0], other)
            if pair in seen:
                continue
            seen.add(pair)
            first, second = (calls.get(number, []) for number in pair)
            for place, (a, b) in enumerate(zip_longest(first, second), 1):
                if a is None or b is None or _facts(a) != _facts(b):
                    own = [next(rank for rank in group if owner.get(rank) == number) for number in pair]
                    return (
                        f"ranks {group[0]}, ..., {group[-1]} ({len(group)}) diverge in their call {place}: rank {own[0]} makes "
                        f"{text_of_call(a)}, rank {own[1]} makes {text_of_call(b)}"
                    )
    return ""


def _facts(span: CommunicationSpan) -> tuple[object, ...]:
    """The facts of a collective that are equal on all members of its group."""
    is_as_long = span.collective in ("all_reduce", "allreduce")
    return span.collective, span.op, span.dtype, span.bytes_sent + span.bytes_received if is_as_long else None


def text_of_call(span: CommunicationSpan | None) -> str:
    if span is None:
        return "none"
    moved = f"{span.dtype or 'no dtype'}, {span.bytes_sent + span.bytes_received:,} bytes"
    return f"{span.collective} for {span.op or 'the program'} ({moved}) at {span.source or 'an unknown line'}"


Channel = tuple[Ranks, int, int, int]  # group, sender, receiver, tag


@dataclass(frozen=True)
class Call:
    """A call that sends or receives one message, on one rank. `number`: among its rank's calls of the channel."""

    rank: int
    channel: Channel
    number: int
    span: CommunicationSpan
    is_blocking: bool

    @property
    def is_send(self) -> bool:
        return self.span.collective == SEND

    def __str__(self) -> str:
        return f"rank {self.rank} makes {text_of_call(self.span)}"


def unpaired(ranks: Sequence[RankFigures]) -> str:
    """A sentence for the first message that is not received as it was sent, or for two ranks that wait for each other; "" if all messages arrive.

    Messages of a group between two ranks with one tag are paired in their order. Those to a rank outside of `ranks`, or to one that receives from any
    rank, are left out. A rank waits in dist.send until the other one has come to its receive.
    """
    grids = sorted({grid for each in ranks for grid in each.grids}, key=lambda grid: -len(grid.ranks))
    calls = {rank: found for each in ranks for rank, found in _calls(each, grids)}
    takes_any = {
        rank
        for each in ranks
        if any(communication.span.collective == RECEIVE_ANY for communication in each.communications)
        for rank in each.alike
    }
    channels: defaultdict[Channel, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for call in (call for found in calls.values() for call in found):
        _, sender, receiver, _ = call.channel
        if {sender, receiver} <= calls.keys() and receiver not in takes_any:
            channels[call.channel][not call.is_send].append(call)
    for (_, sender, receiver, _), (sends, receives) in channels.items():
        for number, (send, receive) in enumerate(zip_longest(sends, receives), 1):
            if send is None or receive is None or _message(send) != _message(receive):
                sides = (send or f"rank {sender} sends nothing", receive or f"rank {receiver} receives nothing")
                return f"message {number} from rank {sender} to rank {receiver}: {sides[0]}, {sides[1]}"
    return _waiting({rank: [call for call in found if call.channel in channels] for rank, found in calls.items()})


def _calls(figures: RankFigures, grids: Sequence[Grid]) -> Iterator[tuple[int, list[Call]]]:
    """The calls of each rank for which `figures` stand. A rank's partner has the same index in the group as the partner of the rank that ran."""
    spans = [
        (number, each.span)
        for number, each in enumerate(figures.communications)
        if each.span.collective in (SEND, RECEIVE) and each.span.peer >= 0
    ]
    groups = {
        ranks: {rank: group for group in lines_of(ranks, grids).groups() for rank in group}
        for ranks in {span.ranks for _, span in spans}
    }
    for rank in figures.alike:
        numbers: defaultdict[tuple[Channel, bool], int] = defaultdict(int)
        found = []
        for number, span in spans:
            group = span.ranks if rank == figures.rank else groups[span.ranks].get(rank, span.ranks)
            pair = (rank, group[span.peer]) if span.collective == SEND else (group[span.peer], rank)
            channel = (group, *pair, span.tag)
            key = channel, span.collective == SEND
            found.append(Call(rank, channel, numbers[key], span, number in figures.blocking))
            numbers[key] += 1
        yield rank, found


def _message(call: Call) -> tuple[str, int]:
    return call.span.dtype, call.span.bytes_sent + call.span.bytes_received


def _waiting(calls: dict[int, list[Call]]) -> str:
    """A sentence for a rank that waits for ever, or ""."""
    posted: set[tuple[Channel, bool, int]] = set()  # calls that their ranks have come to
    at = dict.fromkeys(calls, 0)  # the call that each rank has come to
    running = list(calls)
    sleeping: dict[tuple[Channel, bool, int], int] = {}  # by the call that the rank waits for
    while running:
        rank = running.pop()
        for call in calls[rank][at[rank] :]:
            own, other = (call.channel, call.is_send, call.number), (call.channel, not call.is_send, call.number)
            posted.add(own)
            if own in sleeping:
                running.append(sleeping.pop(own))
            if call.is_blocking and other not in posted:
                sleeping[other] = rank
                break
            at[rank] += 1
    for rank in sleeping.values():
        call = calls[rank][at[rank]]
        partner = call.channel[2] if call.is_send else call.channel[1]
        return f"{call} and waits for rank {partner}: {calls[partner][at[partner]]} first, and waits, too"
    return ""
