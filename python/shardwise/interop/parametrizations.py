"""torch.nn.utils.parametrizations on DTensors."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from shardwise._C import Replicate
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.factories import randn


def teach(module: ModuleType) -> None:
    """Makes the matrices that `orthogonal` puts next to its weight, the identity and random columns, distributed as that is."""
    for name in ("forward", "right_inverse"):
        setattr(module._Orthogonal, name, _beside_its_operand(getattr(module._Orthogonal, name)))


def _beside_its_operand(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, matrix: torch.Tensor) -> torch.Tensor:
        if not isinstance(matrix, DTensor):
            return original(self, matrix)
        with _MadeOn(matrix.device_mesh):
            return original(self, matrix)

    return call


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
