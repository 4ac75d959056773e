"""Four ways to shard a model of transformers; each is to give the loss and the gradients of the model on one process."""

import copy
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from tiny import Architecture
from torch import nn
from transformers.distributed import DistributedConfig

import shardwise as sw
from shardwise import Shard, compat
from shardwise.fsdp import fully_shard
from shardwise.testing import run_ranks

SECONDS = 60  # that a rank waits for another one


class Reference:
    """The model on one process: its loss and gradients."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.model = architecture.make()
        dense = copy.deepcopy(self.model)
        self.loss = loss_of(dense, architecture)
        self.loss.backward()
        self.gradients = {name: parameter.grad for name, parameter in dense.named_parameters()}

    def compare(self, model: nn.Module) -> None:
        """Runs forward and backward of `model`. Raises AssertionError for the first value that is not equal."""
        loss = loss_of(model, self.architecture)
        expect_close("loss", whole(loss), self.loss.detach())
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert gradients.keys() == self.gradients.keys()
        for name, expected in self.gradients.items():
            got = gradients[name]
            assert (got is None) == (expected is None), f"{name}: gradient {got}, expected {expected}"
            if expected is not None:
                expect_close(name, whole(got), expected)


def loss_of(model: nn.Module, architecture: Architecture) -> torch.Tensor:
    torch.manual_seed(0)
    return model(**architecture.arguments).loss


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def expect_close(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    largest = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * largest + 1e-7, msg=lambda text: f"{name}: {text}")


def sharded(reference: Reference) -> None:
    """distribute_module on 3 ranks. The n-th parameter is sharded along its dim n modulo its number of dims: most shards are uneven, and
    heads are cut."""

    def on_rank(rank: int) -> None:
        mesh = sw.init_device_mesh("cpu", (3,))
        model = copy.deepcopy(reference.model)
        numbers = {parameter: number for number, parameter in enumerate(model.parameters())}

        def shard(name: str, module: nn.Module, mesh: sw.DeviceMesh) -> None:
            for own_name, parameter in list(module.named_parameters(recurse=False)):
                if parameter in numbers and parameter.dim():
                    placement = Shard(numbers.pop(parameter) % parameter.dim())
                    tensor = sw.distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
                    setattr(module, own_name, nn.Parameter(tensor, requires_grad=parameter.requires_grad))

        reference.compare(sw.distribute_module(model, mesh, shard))

    run_ranks(3, on_rank, timeout=SECONDS)


def fully_sharded(reference: Reference) -> None:
    """fully_shard of every layer and of the model, on 2 ranks with equal batches."""

    def on_rank(rank: int) -> None:
        mesh = sw.init_device_mesh("cpu", (2,))
        model = copy.deepcopy(reference.model)
        for layer in layers_of(model):
            fully_shard(layer, mesh=mesh)
        reference.compare(fully_shard(model, mesh=mesh))

    run_ranks(2, on_rank, timeout=SECONDS)


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost lists of layers."""
    for child in model.children():
        yield from children_of_lists(child) if isinstance(child, nn.ModuleList) else layers_of(child)


def children_of_lists(modules: nn.ModuleList) -> Iterator[nn.Module]:
    for child in modules:
        if isinstance(child, nn.ModuleList):
            yield from children_of_lists(child)
        else:
            yield child


def by_plan(architecture: Architecture, on_torch: bool = False, **sizes: int) -> None:
    """The model's own plan, on 2 ranks that are processes, under shardwise.compat or on torch's own DTensors."""
    with tempfile.TemporaryDirectory() as folder:
        architecture.make().save_pretrained(folder)
        on_processes(2, folder, lambda: load_by_plan(architecture, folder, on_torch, sizes))


def load_by_plan(architecture: Architecture, folder: str, on_torch: bool, sizes: dict[str, int]) -> None:
    if not on_torch:
        compat.install()
    model_class = getattr(transformers, architecture.class_name)
    reference = Reference(architecture)
    model = model_class.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2, **sizes))
    n_sharded = sum(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    assert n_sharded, "the plan shards no parameter"
    reference.compare(model.eval())


def on_processes(n_ranks: int, folder: str, function: Callable[[], None]) -> None:
    """Calls `function` in forked processes with a Gloo group. Raises RuntimeError with the text of the first rank that failed."""
    ranks = {}
    for rank in range(n_ranks):
        process = os.fork()
        if process == 0:
            run_rank(rank, n_ranks, folder, function)
        ranks[process] = rank
    errors = []
    while ranks:
        process, status = os.wait()
        text = Path(f"{folder}/rank_{ranks.pop(process)}")
        if status != 0:
            errors.append(text.read_text() if text.exists() else f"a rank ended with status {status}")
    if errors:
        raise RuntimeError(errors[0])


def run_rank(rank: int, n_ranks: int, folder: str, function: Callable[[], None]) -> None:
    """Runs `function` as one rank and ends the process. Writes an error to folder/rank_N."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
    status = 1
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n_ranks, timeout=timedelta(seconds=20)
        )
        function()
        status = 0
    except BaseException as error:
        Path(f"{folder}/rank_{rank}").write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    finally:
        os._exit(status)


IN_THREADS = {"sharded": sharded, "fully_shard": fully_sharded}
BY_PLAN = {
    "tp_plan": by_plan,
    "ep_plan": partial(by_plan, ep_size=2),
    "tp_plan on torch": partial(by_plan, on_torch=True),
    "ep_plan on torch": partial(by_plan, on_torch=True, ep_size=2),
}
NAMES = (*IN_THREADS, "tp_plan", "ep_plan")
