"""The profiles of all ranks, on one line of time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.debug.chrome_trace import write_trace
from shardwise.debug.profile_tables import all_tables, check_limit, check_number
from shardwise.debug.spans import CommunicationSpan, RankProfile


@dataclass(frozen=True)
class MergedProfile:
    """The profiles of all ranks for a `with profile()` block, by rank. Each communication has the rank that it waited for, and for how long.

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
        """Merges the profiles of all ranks, with times by the clock of rank 0, and finds the rank that each communication waited for."""
        together: dict[tuple[tuple[int, ...], int], dict[int, CommunicationSpan]] = {}
        for profile in ranks:
            for each in profile.communications:
                if each.call > 0:
                    together.setdefault((each.ranks, each.call), {})[profile.rank] = each
        last = {call: _last(spans) for call, spans in together.items()}

        def told(each: CommunicationSpan) -> CommunicationSpan:
            rank, begin_ns = last.get((each.ranks, each.call), (None, 0))
            waited_ns = _waited_until(each, begin_ns)
            return each if rank is None or waited_ns <= 0 else replace(each, last_rank=rank, late_ns=waited_ns)

        return cls(
            [replace(profile, communications=[told(each) for each in profile.communications]) for profile in ranks]
        )

    def tables(self, rank: int = 0, limit: int = 20) -> str:
        """Three tables of one rank: operators, communications, and communications that no line of the program asked for; most time first.

        Raises IndexError for a rank that does not exist, and TypeError if an argument is not a whole number.
        """
        check_number("rank", rank, "one of the ranks")
        check_limit(limit)
        if not 0 <= rank < len(self.ranks):
            raise IndexError(
                f"[profile] rank {rank} has no profile: there are profiles of {len(self.ranks)} ranks. Give a rank from 0 to "
                f"{len(self.ranks) - 1}."
            )
        return all_tables(self.ranks[rank], limit, f" of rank {rank}")

    def __str__(self) -> str:
        return self.tables()

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for https://ui.perfetto.dev or chrome://tracing: a track per rank, an arrow from the rank that came last to each
        that waited for it. A name that ends with .gz is compressed.

        Raises TypeError if `path` is not a path, and OSError if it cannot be written.
        """
        write_trace(self.ranks, path)


def _last(spans: dict[int, CommunicationSpan]) -> tuple[int | None, int]:
    """The last rank to reach a call, and when it did. None if fewer than two ranks took part."""
    parts = {rank: span for rank, span in spans.items() if span.bytes_sent or span.bytes_received} or spans
    if len(parts) < 2:
        return None, 0
    last = max(parts, key=lambda rank: parts[rank].begin_ns)
    return last, parts[last].begin_ns


def _waited_until(span: CommunicationSpan, moment_ns: int) -> int:
    """The part of the span's wait before this moment; 0 if the span was over by then. The wait is the last part of a span.

    A rank that only sends, or that computes before it waits, does not wait for a late rank.
    """
    if span.end_ns <= moment_ns:
        return 0
    return max(0, min(moment_ns - span.begin_ns, span.waited_ns, moment_ns - (span.end_ns - span.waited_ns)))
