"""What ran, and why, operator by operator."""

from collections.abc import Callable

from shardwise import _C
from shardwise._C import OpRecord

__all__ = ["explain"]


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
