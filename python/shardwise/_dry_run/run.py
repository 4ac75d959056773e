"""dry_run(): the context in which a program runs as one rank of a job, without memory and without messages."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import product
from sys import intern
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import optimizer as optimizer_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardwise import _C
from shardwise._dry_run.agreement import Grid
from shardwise._dry_run.figures import (
    BACKWARD,
    BUFFERS,
    FORWARD,
    GRADIENTS,
    LINKS,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OUTSIDE,
    PARAMETERS,
    Allocation,
    Communication,
    Machine,
    Place,
    RankFigures,
    Work,
    without_collections,
)
from shardwise._dry_run.ids import UNIFORM, IdModel
from shardwise._dry_run.meta_mode import MetaMode, Value, kept_ranks, on_meta
from shardwise._dry_run.rank_number import Fact, noted_ranks
from shardwise._dry_run.report import Report
from shardwise._dry_run.world import Letters, MemoryTold, changes_of_data_parallel, fake_world
from shardwise.debug.module_tracker import EVERYTHING, ModuleTracker
from shardwise.debug.pictures import picture
from shardwise.debug.spans import communications_in
from shardwise.device_mesh import DeviceMesh

Counters = tuple[int, int, int]

MESSAGES, ALLOCATIONS, WORKS = 0, 1, 2  # indices of the tracker's counters


class dry_run:
    """A `with` block that runs as one rank of a job of any size, without memory and without messages.

        with sw.dry_run(ranks=512, rank=3) as run:
            train()
        print(run)                                     # tables
        run.figures.peak_bytes, run.figures.bytes_received

    In the block every tensor is on meta, whichever device the program names, and every mesh is on meta, too. Communications are planned and counted
    as in a run with memory, and not sent. A read of a value (`loss.item()`) gives `value`; without `value` it is an error that names the line.
    With `value={"": 1, "train.py:12": 0}` the reads of line 12 give 0, and others 1.

    `device_type`: the kind of device that the job is planned for; it decides over kernels and messages. `ids`: the shares of a table's rows in ids,
    and of experts in tokens: "uniform", "zipf:1.05", or a file with a histogram. `ranks_per_host`: for LOCAL_RANK and for links. For estimates of time: `flops` in TFLOP/s, `memory_bandwidth` in GB/s, and `links` within a host and between hosts, in us and GB/s.
    Raises ValueError in a process that has ranks already, for a rank outside the job, and for a device or a model of ids that is unknown.

    >>> run = sw.dry_run(ranks=512, rank=3)  # then, in a process without ranks: with run: train()
    >>> run.figures.rank, run.figures.n_ranks
    (3, 512)
    """

    def __init__(
        self,
        ranks: int,
        rank: int = 0,
        *,
        device_type: str = "cuda",
        value: Value = None,
        ids: str | IdModel = UNIFORM,
        ranks_per_host: int = 8,
        flops: float = 0,
        memory_bandwidth: float = 0,
        links: Sequence[tuple[float, float]] = LINKS,
        _others: Sequence[int] | None = None,
        _letters: Letters | None = None,
    ) -> None:
        if ranks < 1:
            raise ValueError(f"[dry_run] ranks is {ranks}: a job has at least one rank. Give 1 or more.")
        if not 0 <= rank < ranks:
            raise ValueError(f"[dry_run] rank {rank} is not in a job of {ranks} ranks. Give 0 to {ranks - 1}.")
        if ranks_per_host < 1:
            raise ValueError(f"[dry_run] ranks_per_host is {ranks_per_host}: a host has at least one. Give 1 or more.")
        self.figures = RankFigures(rank, ranks)
        self.machine = Machine.of(flops, memory_bandwidth, links, ranks_per_host)
        if not is_device_type(device_type):
            raise ValueError(
                f"[dry_run] device_type is {device_type!r}, which torch does not know. Give a kind of device, such as cuda or cpu."
            )
        self._ids = ids if isinstance(ids, IdModel) else IdModel.of(ids)
        self._device_type = device_type
        self._mode = MetaMode(device_type, value)
        self._others = _others  # the ranks to compare with
        self._letters = _letters or Letters()
        self._facts: list[Fact] = []
        self._scopes = ExitStack()

    def __enter__(self) -> "dry_run":
        from shardwise._dry_run.checkpoints import changes_of_checkpoints  # imports torch.distributed.tensor

        with ExitStack() as scopes:
            n_ranks, per_host = self.figures.n_ranks, self.machine.ranks_per_host
            told = MemoryTold(lambda: self._memory.allocations())
            scopes.enter_context(
                fake_world(n_ranks, self.figures.rank, per_host, self._device_type, self._letters, told)
            )
            _C.plan_for(self._device_type, self._ids.numbers)
            scopes.callback(_C.plan_for, None)
            scopes.enter_context(kept_ranks())
            if self._others is not None:
                self._facts = scopes.enter_context(noted_ranks(per_host))
            for change in (
                *changes_of_torch(self._device_type),
                *changes_of_data_parallel(),
                *changes_of_checkpoints(self.figures.files),
            ):
                scopes.enter_context(change)
            self._meshes: list[DeviceMesh] = []
            register = DeviceMesh._register

            def keep(mesh: DeviceMesh) -> None:
                register(mesh)
                self._meshes.append(mesh)

            scopes.enter_context(mock.patch.object(DeviceMesh, "_register", keep))
            self._made, self._memory, self._work = meters = _C.MadeSpecs(), _C.MetaMemory(), _C.WorkMeter()
            for meter in (*meters, _C.ListsInPlace()):
                scopes.callback(meter.stop)
            self._events = _C.EventReader("dry_run", operators=True, details=True, plain_collectives=True)
            self._events.open()
            scopes.callback(self._events.close)
            for name, module in product(("send", "recv"), (distributed_c10d, dist)):
                scopes.enter_context(mock.patch.object(module, name, self._noted_wait(getattr(module, name))))
            self._tracker = ModuleTracker(self._events.n_communications, self._memory.n_allocations, self._work.n_works)
            self._tracker.start()
            scopes.callback(self._tracker.stop)
            self._models: dict[nn.Module, None] = {}  # the outermost modules that ran
            self._begun: list[Counters] = []  # the optimizer steps that run
            self._steps: list[tuple[Counters, Counters]] = []  # the begin and the end of each outermost one
            for hook in (
                register_module_parameter_registration_hook(lambda module, name, tensor: on_meta(tensor)),
                register_module_buffer_registration_hook(lambda module, name, tensor: on_meta(tensor)),
                register_module_forward_pre_hook(self._label_module),
                register_optimizer_step_pre_hook(self._begin_step),
                register_optimizer_step_post_hook(self._end_step),
            ):
                scopes.callback(hook.remove)
            scopes.enter_context(self._mode)
            self._scopes = scopes.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._scopes:
            self.figures.failure = failure_text(error[1], self._advice(error[1]))
            self.figures.alike += self._alike()
            self.figures.ids = self._ids.text if _C.plans_ids() else ""
            self.figures.grids = sorted({Grid.of(mesh) for mesh in self._meshes})
        with without_collections():
            self._take_figures()

    def _advice(self, error: BaseException | None) -> str:
        """Sentences that follow the program's error: how a dry run may have caused it, and the way out."""
        if isinstance(error, OSError) and self.figures.files:
            return f". A dry run writes no checkpoint, and so not {self.figures.files[-1].path}"
        files = [each.filename for each in traceback.extract_tb(error.__traceback__)] if error else []
        if any("/torch/distributed/fsdp/" in each or "/torch/distributed/tensor/" in each for each in files):
            return ". Dry runs are of Shardwise's DTensors. `dry-run ... -m shardwise.compat PROGRAM` puts them in the place of torch's"
        return self._mode.advice()

    def _alike(self) -> list[int]:
        """The other ranks for which this run stands."""
        if self._others is None:
            return []

        def is_alike(rank: int) -> bool:
            try:
                return rank != self.figures.rank and all(fact(rank) for fact in self._facts)
            except Exception:  # the program's arithmetic with another rank, which would raise there
                return False

        return list(filter(is_alike, _C.alike_ranks(self._made, list(self._others))))

    def _take_figures(self) -> None:
        figures, (n_messages, n_allocations, n_works) = self.figures, self._counters()
        spans = communications_in(self._events)
        figures.communications = list(map(Communication, spans, self._places(MESSAGES, n_messages)))
        memory = zip(self._memory.allocations(), self._places(ALLOCATIONS, n_allocations))
        figures.allocations = [
            Allocation(n_bytes, begin, end, label, intern(op), place)
            for (n_bytes, begin, end, label, op), place in memory
            if n_bytes > 0
        ]
        figures.works = [
            Work(*each, place) for each, place in zip(self._work.works(), self._places(WORKS, n_works), strict=True)
        ]
        figures.reads, figures.unread = dict(self._mode.reads), self._mode.unread()
        if not figures.failure:
            figures.pictures = [picture(module).draw("svg") for module in self._models]

    def __str__(self) -> str:
        return str(Report([self.figures], self.machine))

    def _counters(self) -> tuple[int, int, int]:
        return self._events.n_communications(), self._memory.n_allocations(), self._work.n_works()

    def _places(self, counter: int, n: int) -> list[Place]:
        """Where the first `n` events of this counter happened."""
        found: list[Place] = []
        for layer, is_backward, first, last in self._tracker.intervals(counter, 0, n):
            phase = BACKWARD if is_backward else OUTSIDE if layer == EVERYTHING else FORWARD
            found += [Place(layer, phase)] * (last - first)
        for begun, ended in self._steps:
            for number in range(begun[counter], ended[counter]):
                found[number] = found[number]._replace(phase=OPTIMIZER)
        return found

    def _noted_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """torch's send or recv, which returns when the message has been sent."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.figures.blocking.add(self._events.n_communications() - 1)
            return result

        return call

    def _label_module(self, module: nn.Module, inputs: Any) -> None:
        if self._tracker.depth == 1:
            self._models[module] = None
        for label, tensors in ((PARAMETERS, module._parameters), (BUFFERS, module._buffers)):
            for tensor in tensors.values():
                if tensor is not None:
                    self._memory.label(tensor, label)

    def _begin_step(self, optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        self._begun.append(self._counters())
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            self._memory.label(parameter, PARAMETERS)
            if parameter.grad is not None:
                self._memory.label(parameter.grad, GRADIENTS)

    def _end_step(self, optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        begun = self._begun.pop() if self._begun else self._counters()
        if not self._begun:
            self._steps.append((begun, self._counters()))
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._memory.label(value, OPTIMIZER_STATE)


def changes_of_torch(device_type: str) -> Iterator[AbstractContextManager[Any]]:
    """Compiled functions run eagerly. Autocast, and the kernels that optimizers take for lists, are those of `device_type`."""
    yield torch.compiler.set_stance("force_eager")
    enable = torch.set_autocast_enabled

    def enable_on_meta(*args: Any) -> None:
        enable(*args)
        _C.plan_autocast(device_type if torch.is_autocast_enabled(device_type) else None)

    yield mock.patch.object(torch, "set_autocast_enabled", enable_on_meta)
    if device_type == "cuda":
        for kinds in ("foreach", "fused"):
            name = f"_get_{kinds}_kernels_supported_devices"
            known = getattr(optimizer_module, name)
            yield mock.patch.object(optimizer_module, name, lambda known=known: [*known(), "meta"])


def is_device_type(name: str) -> bool:
    try:
        return torch.device(name).index is None
    except RuntimeError:
        return False


def failure_text(error: BaseException | None, advice: str) -> str:
    """The error that ended the program, with the innermost line of the program; "" for none and for sys.exit(0). `advice` goes with errors of others."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return ""
    lines = [each for each in traceback.extract_tb(error.__traceback__) if not _C.is_of_a_library(each.filename)]
    place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else ""
    words = " ".join(str(error).split())  # errors of torch have several lines
    where = "" if place in words else f" at {place}"
    return f"{type(error).__name__}: {words}{where}{'' if '[dry_run]' in words else advice}"
