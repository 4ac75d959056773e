"""step_report(): the time and memory of a step, layer by layer."""

import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from shardwise import _C
from shardwise._torch_groups import is_alone
from shardwise.debug.module_tracker import ModuleTracker
from shardwise.debug.places import local_tensors, peak_of_process
from shardwise.debug.profiling import profile
from shardwise.debug.text_tables import table_text

OPERATORS, COMMUNICATIONS, CLOCK = 0, 1, 2  # indices of the tracker's counters

R = TypeVar("R")


@dataclass(frozen=True)
class LayerReport:
    """The figures of one module on one rank, without the modules within it. Times are seconds of the host.

    >>> report = sw.step_report(torch.nn.Linear(8, 4), torch.ones(6, 8))
    >>> [layer.path for layer in report.ranks[0].layers]
    ['Global', 'Linear']
    """

    path: str  # "MLP.net1"; "Global" is what is in no module
    depth: int
    forward_seconds: float
    backward_seconds: float
    waited_seconds: float  # of these, for other ranks
    n_collectives: int
    bytes_received: int
    parameter_bytes: int  # this rank's part
    gradient_bytes: int
    buffer_bytes: int

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    @property
    def memory_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.buffer_bytes


@dataclass(frozen=True)
class RankReport:
    """The figures of one rank. `layers` are in the order in which they first ran. A module that holds parameters and did not run follows the
    module it is in.

    >>> sw.step_report(torch.nn.Linear(8, 4), torch.ones(6, 8)).ranks[0].rank == rank
    True
    """

    rank: int
    layers: list[LayerReport]
    peak_bytes: int  # of the GPU's allocator during the step, else of the process so far
    n_compiled: int = 0  # what torch.compile compiled during the step

    @property
    def seconds(self) -> float:
        return sum(layer.seconds for layer in self.layers)

    @property
    def waited_seconds(self) -> float:
        return sum(layer.waited_seconds for layer in self.layers)

    @property
    def memory_bytes(self) -> int:
        return sum(layer.memory_bytes for layer in self.layers)


@dataclass(frozen=True)
class StepReport:
    """The result of step_report(). On rank 0 `ranks` has the reports of all ranks, on other ranks only the rank's own. str() is a table of the
    layers of the first of them, and a line per rank.

    >>> len(sw.step_report(torch.nn.Linear(8, 4), torch.ones(6, 8)).ranks) == (4 if rank == 0 else 1)
    True
    """

    ranks: list[RankReport]

    def __str__(self) -> str:
        first = self.ranks[0]
        names = ["  " * layer.depth + layer.path.rpartition(".")[2] for layer in first.layers]
        layers = _table(f"layers of rank {first.rank}", "layer", names, LAYER_COLUMNS, first.layers)
        ranks = _table("ranks", "rank", [f"{each.rank}" for each in self.ranks], RANK_COLUMNS, self.ranks)
        n_compiled = max(each.n_compiled for each in self.ranks)
        told = f"torch.compile was at work during the step ({n_compiled} functions): a second report is without that\n"
        return layers + "\n" + ranks + ("\n" + told if n_compiled else "")


# The numbers in the tables. Seconds are shown as milliseconds.
LAYER_COLUMNS: dict[str, Callable[[LayerReport], float]] = {
    "forward ms": lambda layer: layer.forward_seconds,
    "backward ms": lambda layer: layer.backward_seconds,
    "waited ms": lambda layer: layer.waited_seconds,
    "computed ms": lambda layer: layer.seconds - layer.waited_seconds,
    "collectives": lambda layer: layer.n_collectives,
    "received": lambda layer: layer.bytes_received,
    "parameters": lambda layer: layer.parameter_bytes,
    "gradients": lambda layer: layer.gradient_bytes,
    "buffers": lambda layer: layer.buffer_bytes,
}
RANK_COLUMNS: dict[str, Callable[[RankReport], float]] = {
    "ms": lambda rank: rank.seconds,
    "waited ms": lambda rank: rank.waited_seconds,
    "computed ms": lambda rank: rank.seconds - rank.waited_seconds,
    "received": lambda rank: sum(layer.bytes_received for layer in rank.layers),
    "tensors' bytes": lambda rank: rank.memory_bytes,
    "peak bytes": lambda rank: rank.peak_bytes,
}


def _table(title: str, heading: str, names: list[str], columns: dict[str, Callable[[R], float]], rows: list[R]) -> str:
    def shown(column: str, value: float) -> str:
        return f"{value * 1e3:,.2f}" if column.endswith("ms") else f"{value:,}"

    numbers = ([shown(column, of(row)) for column, of in columns.items()] for row in rows)
    return table_text(title, [heading, *columns], ((name, *row) for name, row in zip(names, numbers, strict=True)), 1)


def step_report(model: nn.Module, step: Any) -> StepReport:
    """Runs one step of `model` and reports, layer by layer, the time, how much of it the rank waited for other ranks, and the memory.

    `step`: a function without arguments that runs forward and backward of the model, as a training loop does; or a batch (a tensor, or a
    tuple, list or dict of arguments), for which the model's outputs are summed and differentiated. Collective over all ranks.

    >>> model = sw.distribute_module(torch.nn.Linear(8, 4), mesh)
    >>> report = sw.step_report(model, sw.ones(6, 8, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> report.ranks[0].layers[-1].parameter_bytes
    144

    The figures of a layer exclude the layers within it; "Global" is the time outside all modules. A layer's backward begins when the gradient
    of its output is known. Times are those of the host: for a GPU, which works asynchronously, use torch.profiler. Run one step before: the
    first step plans its moves and decides each operator's layouts, and torch.compile compiles in it. A compiled module is one layer.

    Raises TypeError if `model` is not a module, and for a batch for which the model has no output that requires a gradient.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"[step_report] model is {type(model).__name__}: time and memory are reported by the layers of a module. Give the "
            "torch.nn.Module."
        )
    run = step if callable(step) else lambda: _differentiate(model, step)
    recorded = profile()
    ops = recorded._profile
    tracker = ModuleTracker(ops.n_operators, ops.n_communications, time.time_ns)
    is_on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    if is_on_gpu:
        torch.cuda.reset_peak_memory_stats()
    n_compiled = _n_compiled()
    with recorded:
        tracker.start(model)
        begin = time.time_ns()
        try:
            run()
        finally:
            end = time.time_ns()
            tracker.stop()
    own = RankReport(
        _C.world_rank(),
        _layers(model, tracker, recorded, begin, end),
        torch.cuda.max_memory_allocated() if is_on_gpu else peak_of_process(),
        _n_compiled() - n_compiled,
    )
    packed = [] if is_alone() else _C.gathered_texts(pickle.dumps(own))
    return StepReport([pickle.loads(each) for each in packed] or [own])


def _n_compiled() -> int:
    """The number of functions that torch.compile has compiled so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not there until something is compiled
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])


def _differentiate(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        outputs = model(**batch)
    elif isinstance(batch, (tuple, list)):
        outputs = model(*batch)
    else:
        outputs = model(batch)
    leaves = [
        leaf
        for leaf in torch.utils._pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not leaves:
        raise TypeError(
            "[step_report] no output of the model requires a gradient. Give a function that runs the step instead of a batch."
        )
    torch.stack([leaf.sum() for leaf in leaves]).sum().backward() if len(leaves) > 1 else leaves[0].sum().backward()


def _layers(model: nn.Module, tracker: ModuleTracker, recorded: profile, begin: int, end: int) -> list[LayerReport]:
    seconds: dict[tuple[str, bool], float] = defaultdict(float)
    for path, is_backward, first, last in tracker.intervals(CLOCK, begin, end):
        seconds[path, is_backward] += (last - first) * 1e-9
    sent: dict[str, list[Any]] = defaultdict(list)
    for number, each in enumerate(recorded.communications):
        sent[tracker.mark_of(COMMUNICATIONS, number)[0]].append(each)
    memory = _memory(model)
    layers = []
    for path, depth in _with_those_that_did_not_run(tracker, memory).items():
        parameter_bytes, gradient_bytes, buffer_bytes = memory.get(path, (0, 0, 0))
        layer = LayerReport(
            path=path,
            depth=depth,
            forward_seconds=seconds[path, False],
            backward_seconds=seconds[path, True],
            waited_seconds=sum(each.waited_ns for each in sent[path]) * 1e-9,
            n_collectives=len(sent[path]),
            bytes_received=sum(each.bytes_received for each in sent[path]),
            parameter_bytes=parameter_bytes,
            gradient_bytes=gradient_bytes,
            buffer_bytes=buffer_bytes,
        )
        layers.append(layer)
    return layers


def _with_those_that_did_not_run(tracker: ModuleTracker, memory: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The depth of each path. A module may use another's parameters without calling its forward, as nn.MultiheadAttention does."""
    depths = {path: told["depth"] for path, told in tracker.module_helper_dict.items()}
    paths = list(depths)
    for path, sizes in memory.items():
        if path in depths or not any(sizes):
            continue
        depths[path] = path.count(".") + 1
        around = f"{path.rpartition('.')[0]}."
        before = max((i for i, each in enumerate(paths) if f"{each}.".startswith(around)), default=len(paths) - 1)
        paths.insert(before + 1, path)
    return {path: depths[path] for path in paths}


def _memory(model: nn.Module) -> dict[str, tuple[int, int, int]]:
    """This rank's bytes of each module's own parameters, gradients and buffers, by the tracker's paths. Shared tensors count once."""
    name = type(model).__name__
    seen: set[int] = set()

    def size(tensors: Iterable[torch.Tensor | None]) -> int:
        new = {id(tensor): tensor for tensor in tensors if tensor is not None and id(tensor) not in seen}
        seen.update(new)
        return sum(part.nbytes for tensor in new.values() for part in local_tensors(tensor))

    result = {}
    for path, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        result[f"{name}.{path}" if path else name] = (
            size(parameters),
            size([parameter.grad for parameter in parameters]),
            size(module.buffers(recurse=False)),
        )
    return result
