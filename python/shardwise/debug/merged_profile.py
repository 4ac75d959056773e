"""The profiles of all ranks, on one line of time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.debug.chrome_trace import write_trace
from shardwise.debug.profile_tables import communication_table, operator_table, unasked_table
from shardwise.debug.spans import CommunicationSpan, RankProfile

__all__ = ["MergedProfile"]


@dataclass(frozen=True)
class MergedProfile:
    """What all ranks did in a `with profile()` block, by rank. Each communication has the rank that came last, and how late it came.

    str() is tables(). Values: `ranks[0].operators`, `ranks[0].communications`.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = (x * 2).redistribute(placements=[sw.Replicate()])
    >>> merged = recorded.merge()
    >>> len(merged.ranks) if rank == 0 else merged
    4
    """

    ranks: list[RankProfile]

    @classmethod
    def of(cls, ranks: Sequence[RankProfile]) -> MergedProfile:
        """Merges the profiles of all ranks, with times by the clock of rank 0, and finds the last rank of each communication."""
        came: dict[tuple[tuple[int, ...], int], dict[int, int]] = {}
        for profile in ranks:
            for each in profile.communications:
                if each.call > 0:
                    came.setdefault((each.ranks, each.call), {})[profile.rank] = each.begin_ns

        def told(each: CommunicationSpan) -> CommunicationSpan:
            begins = came.get((each.ranks, each.call), {})
            if len(begins) < 2:
                return each
            last = max(begins, key=lambda rank: begins[rank])
            return replace(each, last_rank=last, late_ns=begins[last] - each.begin_ns)

        return cls(
            [replace(profile, communications=[told(each) for each in profile.communications]) for profile in ranks]
        )

    def tables(self, rank: int = 0, limit: int = 20) -> str:
        """Three tables of one rank: operators, communications, and communications that no line of the program asked for; most time first.

        Raises IndexError for a rank that does not exist.
        """
        if not 0 <= rank < len(self.ranks):
            raise IndexError(
                f"[profile] rank {rank} has no profile: there are those of {len(self.ranks)} ranks. Give one from 0 to {len(self.ranks) - 1}."
            )
        profile = self.ranks[rank]
        return "\n".join(
            [
                operator_table(profile.operators, f"operators of rank {rank}", limit),
                communication_table(profile.communications, f"communications of rank {rank}", limit),
                unasked_table(profile.communications, limit),
            ]
        )

    def __str__(self) -> str:
        return self.tables()

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for https://ui.perfetto.dev or chrome://tracing: a track per rank, an arrow from the rank that came last to each
        that waited for it. A name that ends with .gz is compressed."""
        write_trace(self.ranks, path)
