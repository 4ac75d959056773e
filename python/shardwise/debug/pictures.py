"""Seeing what a program does: who holds what, and what is sent."""

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from shardwise import _C
from shardwise._C import CommEvent, OpRecord
from shardwise.dtensor import DTensor

__all__ = ["CommDebugMode", "CommEvent", "OpRecord", "explain", "picture", "visualize_sharding"]


def picture(dtensor: DTensor, *, color: bool = False, max_width: int = 100, format: str = "text") -> str:
    """The layout of a 0-D to 2-D tensor: which rank holds what, at true coordinates, then a line per rank.

    Sends nothing, and is equal on every rank. `max_width`: columns of the terminal. `format`: "text".
    Raises ValueError for more than 2 dims and for an unknown format.
    """
    return _C.picture(dtensor, color, max_width, format)


def visualize_sharding(dtensor: DTensor, header: str = "", use_rich: bool = False) -> None:
    """Prints `picture(dtensor)` under `header`, on the ranks that call it; in colour with `use_rich`."""
    if header:
        print(header)
    print(picture(dtensor, color=use_rich))


def explain(fn: Callable[..., object], *args: object, **kwargs: object) -> list[OpRecord]:
    """Calls `fn(*args, **kwargs)` and prints a line per operator that reached a distributed tensor: its rule, the layouts it
    was given and the ones it ran under, the results' layouts, the bytes this rank received. Returns the lines as records.

    On each rank that calls it; like `fn`, to be called on all.
    """
    trace = _C.OpTrace()
    trace.open()
    try:
        fn(*args, **kwargs)
    finally:
        trace.close()
    print(trace, end="")
    return trace.records()


class CommDebugMode:
    """Counts the collectives that this rank takes part in, in a `with` block. Blocks may nest.

    Those of a backward pass on GPUs run in autograd's own threads and are not seen.

        with CommDebugMode() as comm:
            loss = model(x)
        comm.get_comm_counts()     # {"all_reduce": 2, "all_to_all": 1}
    """

    def __init__(self) -> None:
        self._trace = _C.CommTrace()

    def __enter__(self) -> "CommDebugMode":
        self._trace.open()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._trace.close()

    @property
    def events(self) -> list[CommEvent]:
        """Each collective with its operator, ranks and bytes, in order."""
        return self._trace.events()

    def get_total_counts(self) -> int:
        """Collectives in all."""
        return len(self.events)

    def get_comm_counts(self) -> dict[str, int]:
        """Collectives by kind: all_to_all, all_reduce, broadcast, all_gather."""
        return dict(Counter(event.collective for event in self.events))

    def get_op_counts(self) -> dict[str, dict[str, int]]:
        """Collectives by the operator that asked for them, then by kind."""
        counts: dict[str, Counter[str]] = {}
        for event in self.events:
            counts.setdefault(event.op, Counter())[event.collective] += 1
        return {op: dict(kinds) for op, kinds in counts.items()}

    def bytes_sent(self) -> int:
        """Bytes that this rank sent to others."""
        return sum(event.bytes_sent for event in self.events)

    def bytes_received(self) -> int:
        """Bytes that this rank received from others."""
        return sum(event.bytes_received for event in self.events)
