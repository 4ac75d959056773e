"""profile(): records the operators and communications of each rank, with their times."""

from __future__ import annotations

import errno
import os
import pickle
import zlib

from shardwise import _C
from shardwise._torch_groups import is_alone
from shardwise.debug.chrome_trace import no_path, unwritable
from shardwise.debug.merged_profile import MergedProfile
from shardwise.debug.profile_tables import all_tables, check_limit, unasked_table
from shardwise.debug.spans import CommunicationSpan, OperatorSpan, RankProfile

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
