"""profile() and explain(): operators and communications, with their times, as records of one rank or of all ranks."""

from __future__ import annotations

import errno
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwise import _C
from shardwise._C import OpRecord
from shardwise._torch_groups import is_alone
from shardwise.debug.chrome_trace import no_path, unwritable, write_trace
from shardwise.debug.picture import printable
from shardwise.debug.profile_tables import all_tables, check_limit, check_number, unasked_table
from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile


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


NO_PATH = -1  # rank 0 sends it instead of an errno


class profile:
    """Records the operators on DTensors and the communications of this rank in a `with` block: rules, layouts, bytes, times, and the
    lines of the program. Blocks may nest. Recording sends nothing.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.profile() as recorded:
    ...     total = x.sum(0) + 1
    >>> [each.op for each in recorded.operators]
    ['aten::sum.dim_IntList', 'aten::add.Tensor']
    >>> tables = str(recorded)  # print them
    >>> recorded.save_trace("step.json")  # collective; rank 0 writes a file for https://ui.perfetto.dev

    For an operator that is composed of others, the parts are recorded. Times on GPUs are those of the host, which only launches kernels.
    Not recorded: collectives that the program calls itself (torch.profiler shows them), and other threads, such as autograd's for GPUs.

    If torch.profiler runs, it shows communications as spans with names such as "shardwise::all_reduce for aten::mm".

    Cost: about 0.6 us per operator and some us per communication; in benchmarks/profiling.py, 0.3 % of the instructions of a step.
    """

    def __init__(self) -> None:
        self._profile = _C.EventReader("profile", operators=True, details=True)
        self._rank: int | None = None  # set at the end of the block: other threads may ask for it then

    def __enter__(self) -> profile:
        self._profile.open()
        self._rank = None
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.close()
        self._rank = _C.world_rank()

    @property
    def operators(self) -> list[OperatorSpan]:
        """Each call of an operator on DTensors, in the order in which the calls ended."""
        return self._own().operators

    @property
    def communications(self) -> list[CommunicationSpan]:
        """Each communication, in the order in which they ended."""
        return self._own().communications

    def tables(self, limit: int = 20) -> str:
        """Three tables: operators by layouts, communications by lines, and communications that no line asked for; most time first, at most
        `limit` lines each.
        """
        check_limit(limit)
        return all_tables(self._own(), limit)

    def __str__(self) -> str:
        return self.tables()

    def unasked(self, limit: int = 20) -> str:
        """The communication you did not ask for, by source line: the lines where an operator moved operands on its own."""
        check_limit(limit)
        return unasked_table(self._own().communications, limit)

    def merge(self) -> MergedProfile | None:
        """On rank 0, the profiles of all ranks, with their clocks aligned; on the other ranks, None. A program of one process is rank 0.

        Collective over all ranks: some small gathers and one message from each rank.
        """
        if is_alone():
            return MergedProfile.of([self._own()])
        offsets = _C.clock_offsets()
        packed = _C.gathered_texts(zlib.compress(pickle.dumps(self._own()), 1))
        if not packed:
            return None
        profiles: list[RankProfile] = [pickle.loads(zlib.decompress(each)) for each in packed]
        return MergedProfile.of([own.shifted(offsets[own.rank]) for own in profiles])

    def save_trace(self, path: str | os.PathLike[str] | None) -> None:
        """Rank 0 writes merge() to a file for Perfetto or chrome://tracing. Collective over all ranks, of which only rank 0 needs a path.

        A name that ends with .gz is compressed. Raises, on all ranks, TypeError if rank 0 gives no path and OSError if it cannot be written.
        """
        merged = self.merge()
        failed: Exception | None = None
        try:
            if merged is not None:
                merged.save_trace(path)  # type: ignore[arg-type]  # which raises the error for other types
        except Exception as error:  # any error: the other ranks wait for its number
            failed = error
        number = NO_PATH if isinstance(failed, TypeError) else getattr(failed, "errno", errno.EIO if failed else 0)
        number = number if is_alone() else _C.told_by_rank_0(number)
        if failed is not None:
            raise failed
        if number == NO_PATH:
            raise no_path("none, on rank 0")
        if number != 0:
            raise unwritable(
                repr(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else "of rank 0", number
            )

    def _own(self) -> RankProfile:
        return RankProfile.of(_C.world_rank() if self._rank is None else self._rank, self._profile)


def explain(fn: Callable[..., object], *args: object, **kwargs: object) -> list[OpRecord]:
    """Calls `fn(*args, **kwargs)` and prints a line per operator on distributed tensors: its rule, the layouts of the operands as given and as it
    ran, the layouts of the results, and the bytes that this rank received. Returns the lines as records.

    Each rank that calls it prints. Call it on all ranks that must call `fn`.

    >>> a = sw.ones(2, 8, device_mesh=mesh, placements=[sw.Shard(1)])
    >>> b = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> records = sw.explain(lambda: a @ b)
    operator           rule                               operands                run as    results         bytes received
    shardwise::matmul  …mk,…kn->…mn {k: sum} multilinear  [Shard(1)], [Shard(0)]  as given  [Partial(sum)]               0
    >>> records[0].op
    'shardwise::matmul'
    """
    events = _C.EventReader("explain", operators=True)
    events.open()
    try:
        fn(*args, **kwargs)
    finally:
        events.close()
    records = events.operators(with_composites=False)
    print(printable(_C.operator_table(records)), end="")
    return records
