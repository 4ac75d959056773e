"""torch.nn.utils.parametrizations on DTensors."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from shardwise._C import Replicate
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.factories import randn


def beside_it(original: Any, self: Any, matrix: torch.Tensor) -> torch.Tensor:
    """The matrices that `orthogonal` puts next to its weight, the identity and random columns, are distributed as that is."""
    if not isinstance(matrix, DTensor):
        return original(self, matrix)
    with _MadeOn(matrix.device_mesh):
        return original(self, matrix)


class _MadeOn(TorchFunctionMode):
    """torch.eye and torch.randn give replicas on a mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.randn:
            return randn(*args, dtype=kwargs.get("dtype"), device_mesh=self._mesh)
        result = func(*args, **kwargs)
        if func is torch.eye:
            return DTensor.from_local(result, self._mesh, [Replicate()] * self._mesh.ndim)
        return result
