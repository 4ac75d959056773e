"""Replacements of torch's Python functions that make plain tensors next to a DTensor: these become replicas on its mesh."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from shardwise import factories
from shardwise._C import Replicate
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor


def as_replicas(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls `original`. If an argument is a DTensor, tensors that `original` makes become replicas on the mesh of the first one."""
    ours = [value for value in (*args, *options.values()) if isinstance(value, DTensor)]
    with _MadeOn(ours[0].device_mesh) if ours else nullcontext():
        return original(*args, **options)


def with_samples(original: Callable[..., Any], input: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Fractional max pooling of a DTensor with random regions: all ranks draw the same."""
    is_given = len(args) > 4 or options.get("_random_samples") is not None
    if isinstance(input, DTensor) and not is_given:
        n_spatial = 3 if "3d" in original.__name__ else 2
        batch = input.shape[0] if input.dim() > n_spatial + 1 else 1
        channels = input.shape[-n_spatial - 1]
        options["_random_samples"] = factories.rand(
            batch, channels, n_spatial, dtype=input.dtype, device_mesh=input.device_mesh
        )
    return original(input, *args, **options)


def unchunked(original: Callable[..., Any], *args: Any, options: Any = None, **others: Any) -> Any:
    """linear_cross_entropy() in its unchunked form for DTensors: the chunked form writes gradients into plain buffers."""
    if any(isinstance(value, DTensor) for value in (*args, *others.values())):
        options = None
    return original(*args, options=options, **others)


_DRAWN = {torch.rand: factories.rand, torch.randn: factories.randn}  # by our generator, so that all ranks draw the same
_MADE = {torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros}


class _MadeOn(TorchFunctionMode):
    """A mode in which torch's factories make replicas on a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWN:
            return _DRAWN[func](*args, dtype=kwargs.get("dtype"), device_mesh=self._mesh)
        result = func(*args, **kwargs)
        if func in _MADE and not isinstance(result, DTensor):
            return DTensor.from_local(result, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)
        return result
