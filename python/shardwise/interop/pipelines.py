"""torch's pipelines: activations and gradients that are our DTensors travel as this rank's pieces, as those of torch.distributed.tensor do.

A stage first runs once to learn shapes, on tensors that nobody has written. Distributed modules compare what the ranks give them: there
it is zeros.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop.replacements import replace_functions


class _Kinds(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (DTensor, TorchDTensor))


class _EitherDTensor(metaclass=_Kinds):
    """What torch.distributed.pipelining knows as DTensor: torch's kind, or ours on our meshes."""

    @staticmethod
    def from_local(local_tensor: torch.Tensor, device_mesh: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        kind = DTensor if isinstance(device_mesh, DeviceMesh) else TorchDTensor
        return kind.from_local(local_tensor, device_mesh, *args, **kwargs)


def teach(module: ModuleType) -> None:
    if vars(module).get("DTensor") is TorchDTensor:
        vars(module)["DTensor"] = _EitherDTensor
    replace_functions(module, {"_make_tensor_from_meta": _zeros})


def _zeros(original: Any, meta: Any, device: Any) -> torch.Tensor:
    return original(meta, device).zero_()
