"""Whether the messages between two ranks that the programs of a dry run send are received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from shardwise._dry_run.agreement import Grid, Ranks, lines_of, text_of_call
from shardwise._dry_run.figures import RankFigures
from shardwise.debug.spans import CommunicationSpan

SEND, RECEIVE, RECEIVE_ANY = "send", "recv", "recv_any_source"
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
            if send is None or receive is None or _facts(send) != _facts(receive):
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


def _facts(call: Call) -> tuple[str, int]:
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
