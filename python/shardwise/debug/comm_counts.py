"""Collectives by kind."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from shardwise._C import CommEvent

# The functional collectives that torch.distributed.tensor would have called, by our kinds of collectives.
FUNCTIONAL = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


class CommCounts(dict[str, int]):
    """How often each kind of collective ran: {"all_reduce": 2, "all_to_all": 1}. A kind that did not run counts 0.

    torch's operators are keys, too: counts[torch.ops.c10d_functional.all_reduce]. Communication of DTensors
    counts as the equivalent functional collective, and that of fully_shard as the collective of c10d, such as
    torch.ops.c10d._allgather_base_; a collective that the program called counts as itself.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.CommDebugMode() as comm:
    ...     y = x.full_tensor()
    >>> comm.get_comm_counts()["all_gather"], comm.get_comm_counts()["all_reduce"]
    (1, 0)
    """

    def __init__(self, events: Iterable[CommEvent] = ()) -> None:
        super().__init__()
        events = list(events)
        self._by_name = Counter(map(_torch_name, events))
        self.update(Counter(event.collective for event in events))

    def __missing__(self, key: Any) -> int:
        return self._by_name.get(_name_of(key), 0)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or _name_of(key) in self._by_name

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # dict.get does not know torch's operators

    def by_operator(self) -> dict[Any, int]:
        """The counts with torch's operators as keys."""
        return {_operator(name): count for name, count in self._by_name.items()}


# torch's fully_shard calls these.
_BY_FULLY_SHARD = {
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_reduce": "c10d::allreduce_",
}


def _torch_name(event: CommEvent) -> str:
    """ "c10d_functional::all_reduce"."""
    space, _, name = event.op.partition("::")
    if space in ("_c10d_functional", "_c10d_functional_autograd"):
        return f"c10d_functional::{name.rstrip('_')}"
    if space == "c10d":
        return event.op
    if space == "fully_shard" and event.collective in _BY_FULLY_SHARD:
        return _BY_FULLY_SHARD[event.collective]
    return f"c10d_functional::{FUNCTIONAL.get(event.collective, event.collective)}"


def _name_of(key: object) -> str:
    name = getattr(key, "_qualified_op_name", None) or getattr(getattr(key, "_schema", None), "name", "")
    return str(name).removeprefix("_") if str(name).startswith("_c10d_functional::") else str(name)


def _operator(name: str) -> Any:
    space, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, space), operator, name)
