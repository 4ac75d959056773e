"""The sides a benchmark compares: plain tensors, an empty subclass of torch.Tensor, torch.distributed.tensor, Shardwise.

A side converts plain data to its own tensors. `dims` has one entry per mesh dim: `0` is Shard(0), `None` is Replicate(). So
`distribute(x, 0)` shards rows over a 1-D mesh, and `distribute(x, 0, None)` shards them over the first dim of a 2-D mesh.
Meshes are on the device of the last use_device(), by default the CPU.
"""

import contextlib
import functools
import importlib
import importlib.util

import torch
import torch.distributed as dist
import torch.distributed.tensor

PLAIN, SUBCLASS, TORCH, SHARDWISE = "plain", "empty subclass", "torch.distributed.tensor", "shardwise"


class Plain:
    """Plain tensors: in a world of one rank, every shard is the whole tensor."""

    name = PLAIN

    def distribute(self, data, *dims):
        return data

    def from_local(self, *dims):
        return lambda local: local

    def to_local(self):
        return lambda tensor: tensor


class EmptySubclass(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Subclass(Plain):
    """Operands of a Python subclass of torch.Tensor that does nothing. Results are plain. The time that it adds is that of torch's argument parser,
    which every tensor class in Python pays."""

    name = SUBCLASS

    def distribute(self, data, *dims):
        return torch.Tensor._make_subclass(EmptySubclass, data)

    def from_local(self, *dims):
        return self.distribute


class Distributed:
    """A package with the names of torch.distributed.tensor, on meshes that hold every rank of the world."""

    def __init__(self, name):
        self.name = name
        self._package = importlib.import_module(name)

    def distribute(self, data, *dims):
        return self._package.distribute_tensor(data, self._mesh(len(dims)), self._placements(dims))

    def from_local(self, *dims):
        """A callable that makes a distributed tensor of a local one. It contains only the package's own function."""
        return functools.partial(
            self._package.DTensor.from_local,
            device_mesh=self._mesh(len(dims)),
            placements=self._placements(dims),
            run_check=False,
        )

    def to_local(self):
        return self._package.DTensor.to_local

    def redistribute(self, tensor, *dims):
        """The tensor itself if it is laid out so."""
        placements = self._placements(dims)
        return tensor if tensor.placements == placements else tensor.redistribute(placements=placements)

    def full_tensor(self):
        """The whole tensor on every rank."""
        return self._package.DTensor.full_tensor

    @functools.cache  # noqa: B019 (a side lives as long as the program)
    def _mesh(self, n_dims):
        """A mesh with all ranks along its first dim, and extent 1 along the others."""
        return self._package.init_device_mesh(device(), (dist.get_world_size(), *[1] * (n_dims - 1)))

    @functools.cache  # noqa: B019
    def _placements(self, dims):
        return tuple(self._package.Replicate() if dim is None else self._package.Shard(dim) for dim in dims)


def available_sides():
    """Every side that is installed, plain first."""
    installed = [name for name in (TORCH, SHARDWISE) if importlib.util.find_spec(name) is not None]
    return [Plain(), *map(Distributed, installed)]


def calls_of(sides, make):
    """`make(side)` by side, called once. None makes no call, and neither does torch.distributed.tensor where it refuses."""
    calls = {}
    for side in sides:
        try:
            call = make(side)
            if call is not None:
                call()
        except Exception:
            if side.name != TORCH:
                raise
        else:
            if call is not None:
                calls[side.name] = call
    return calls


@contextlib.contextmanager
def world_of_one():
    """A process group whose only rank is this process: Gloo's, or NCCL's on a GPU."""
    dist.init_process_group(backend(), store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


_device = "cpu"


def use_device(name):
    """Sets the device of the meshes. It does not set torch's default device: that is a mode, which slows all calls down."""
    global _device
    _device = name


def device():
    return _device


def backend():
    return "gloo" if device() == "cpu" else "cpu:gloo,cuda:nccl"


def machine_line():
    """The processor and GPU, versions, and number of threads, for the figures."""
    with open("/proc/cpuinfo") as lines:
        models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        model = next(models, "unknown processor")
    if device() == "cuda":
        model += f", {torch.cuda.get_device_name()}"
    return f"{model}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
