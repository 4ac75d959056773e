"""Whether all ranks of a dry run make the same collectives in the same order."""

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
PAIRED = ("send", "recv", "recv_any_source")  # ends of the names of calls between two ranks


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
