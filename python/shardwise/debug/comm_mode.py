"""CommDebugMode: counts collectives and bytes by kind, operator and module."""

import json
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from shardwise import _C
from shardwise._C import CommEvent, OpRecord
from shardwise.debug.module_tracker import ModuleTracker
from shardwise.placement_types import Placement

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


EVENTS, OPS = 0, 1  # indices of the tracker's counters


class CommDebugMode:
    """Counts this rank's collectives in a `with` block: those of DTensors and those that the program calls itself. Blocks may nest.

    Collectives of a backward pass on GPUs are not counted, because they run in autograd's own threads.

        with CommDebugMode() as comm:
            loss = model(x)
        comm.get_comm_counts()     # {"all_reduce": 2, "all_gather": 1}

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> with sw.CommDebugMode() as comm:
    ...     y = x.sum() * 2  # a term of the sum on each rank: nothing is sent
    ...     value = y.item()
    >>> comm.get_comm_counts(), comm.get_total_counts()
    ({'all_reduce': 1}, 1)
    """

    def __init__(self) -> None:
        if torch.distributed.is_available():  # its operators, torch.ops.c10d_functional, are keys of the counts
            import_module("torch.distributed._functional_collectives")
        self._events = _C.EventReader("CommDebugMode", operators=True, plain_collectives=True)
        self.advanced_module_tracker = ModuleTracker(
            self._events.n_collectives, lambda: self._events.n_operators(with_composites=False)
        )

    def __enter__(self) -> "CommDebugMode":
        self._events.open()
        self.advanced_module_tracker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._events.close()
        self.advanced_module_tracker.stop()

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"

    @property
    def events(self) -> list[CommEvent]:
        """Each collective with its operator, ranks and bytes, in order."""
        return self._events.collectives()

    def get_total_counts(self) -> int:
        """The number of collectives."""
        return self._events.n_collectives()

    def get_comm_counts(self) -> CommCounts:
        """The number of collectives by kind: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, permute. torch's operators, such as
        torch.ops.c10d_functional.all_reduce, also work as keys."""
        return CommCounts(self.events)

    @property
    def comm_counts(self) -> CommCounts:
        """The same as get_comm_counts()."""
        return self.get_comm_counts()

    @property
    def comm_module_counts(self) -> dict[str, dict[str, CommCounts]]:
        """Collectives by module, then "forward" and "backward", including modules within it. "Global" has all. The backward of operators after
        the outermost module, such as a loss, counts as forward."""
        events: dict[str, dict[str, list[CommEvent]]] = {"Global": {"forward": [], "backward": []}}
        tracker = self.advanced_module_tracker
        for number, event in enumerate(self.events):
            path, is_backward = tracker.mark_of(EVENTS, number)
            for around in tracker.with_parents(path):
                by_direction = events.setdefault(around, {"forward": [], "backward": []})
                by_direction["backward" if is_backward else "forward"].append(event)
        return {
            path: {direction: CommCounts(each) for direction, each in by_direction.items()}
            for path, by_direction in events.items()
        }

    def get_parameter_info(self) -> dict[str, dict[str, torch.Tensor]]:
        """The parameters of each module that ran, by its path."""
        return self.advanced_module_tracker.module_parameters_dict

    def get_sharding_info(self) -> dict[str, tuple[Placement, ...]]:
        """The placements of each parameter that is a DTensor, by its full name."""
        return self.advanced_module_tracker.sharding_dict

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

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """A table of the modules that ran, indented, with their collectives. From `noise_level` 1 on it also has their types, their parameters and
        the operators on DTensors; from 3 on also views and casts. Sends nothing."""
        return write_table(self._modules(), noise_level)

    def log_comm_debug_tracing_table_to_file(self, file_name: str = "comm_mode_log.txt", noise_level: int = 3) -> None:
        """Writes generate_comm_debug_tracing_table() to a file."""
        Path(file_name).write_text(self.generate_comm_debug_tracing_table(noise_level))

    def generate_json_dump(self, file_name: str = "comm_mode_log.json", noise_level: int = 3) -> None:
        """Writes the same as a tree of JSON objects, a module and its children each."""
        Path(file_name).write_text(write_json(self._modules(), noise_level))

    def _modules(self) -> dict[str, dict[str, Any]]:
        """The data of the tables by the path of each module, outer modules first."""
        tracker, counts = self.advanced_module_tracker, self.comm_module_counts
        ops: dict[tuple[str, bool], list[OpRecord]] = {}
        for number, record in enumerate(self._events.operators(with_composites=False)):
            ops.setdefault(tracker.mark_of(OPS, number), []).append(record)
        return {
            path: {
                **told,
                "children": tracker.parent_dict.get(path, []),
                "collectives": counts.get(path, {}),
                "operations": {"forward": ops.get((path, False), []), "backward": ops.get((path, True), [])},
            }
            for path, told in tracker.module_helper_dict.items()
        }


# Operators that change no values. Only the highest noise level shows them.
TRIVIAL = {"alias", "as_strided", "detach", "t", "to", "_to_copy", "transpose", "view"}

Modules = dict[str, dict[str, Any]]


def write_table(modules: Modules, noise_level: int) -> str:
    """A line per module, indented by its depth, and below it its parameters, collectives and operators."""
    lines: list[str] = []
    for path, told in modules.items():
        indent = "    " * told["depth"]
        lines.append(f"{indent}{path}")
        if noise_level > 0:
            lines += [f"{indent}*module type: {told['module_type']}"] if "module_type" in told else []
            lines += [f"{indent}*Parameter List"] if "parameters" in told else []
            lines += [f"{indent} *{name}: {placements}" for name, placements in told.get("parameters", {}).items()]
        for direction in ("forward", "backward"):
            collectives = told["collectives"].get(direction, {})
            operations = _operations(told["operations"][direction], noise_level)
            if not collectives and not operations:
                continue
            lines.append(f"{indent}  {direction.upper()} PASS")
            lines += [f"{indent}    *{kind}: {count}" for kind, count in collectives.items()]
            for record in operations:
                lines.append(f"{indent}    **{record.op}")
                lines.append(f"{indent}      given: {', '.join(record.given)}")
                lines.append(f"{indent}      results: {', '.join(record.results)}")
    return "\n".join(lines) + "\n"


def write_json(modules: Modules, noise_level: int) -> str:

    def tree(path: str) -> dict[str, Any]:
        told = modules[path]
        node: dict[str, Any] = {
            "fqn": path,
            "module_type": told.get("module_type", "") if noise_level > 0 else "",
            "parameters": list(told.get("parameters", {}).items()) if noise_level > 0 else [],
            "children": [tree(child) for child in told["children"]],
        }
        for direction in ("forward", "backward"):
            node[f"collectives_{direction}"] = list(told["collectives"].get(direction, {}).items())
            node[f"operations_{direction}"] = [
                {"name": record.op, "input_sharding": record.given, "output_sharding": record.results}
                for record in _operations(told["operations"][direction], noise_level)
            ]
        return node

    return json.dumps(tree("Global"), indent=4)


def _operations(records: list[OpRecord], noise_level: int) -> list[OpRecord]:
    if noise_level < 1:
        return []
    return [record for record in records if noise_level > 2 or record.op.split("::")[-1].split(".")[0] not in TRIVIAL]
