"""explain(): a line per operator that ran."""

from collections.abc import Callable

from shardwise import _C
from shardwise._C import OpRecord
from shardwise.debug.printing import printable


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
