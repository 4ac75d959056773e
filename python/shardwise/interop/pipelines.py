"""torch's pipelines: activations and gradients that are our DTensors travel as this rank's pieces, as those of torch.distributed.tensor do.

A stage first runs once to learn shapes, on tensors that nobody has written. Distributed modules compare what the ranks give them: there
it is zeros. It learns the layouts of gradients from torch.autograd.grad(), where a sum may still be Partial, and sends what backward() leaves in
`.grad`, which is laid out as the activation: it is told those layouts. Where another stage's mesh is its own parameters' by name and shape, it
needs no get_mesh.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Replicate


class _Kinds(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (DTensor, TorchDTensor))


class _EitherDTensor(metaclass=_Kinds):
    """What torch.distributed.pipelining knows as DTensor: torch's kind, or ours on our meshes."""

    @staticmethod
    def from_local(local_tensor: torch.Tensor, device_mesh: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        kind = DTensor if isinstance(device_mesh, DeviceMesh) else TorchDTensor
        return kind.from_local(local_tensor, device_mesh, *args, **kwargs)


def either(torchs: type) -> type:
    return _EitherDTensor if torchs is TorchDTensor else torchs


def to_tensor(original: Any, stage: Any, arg: Any) -> torch.Tensor:
    made: torch.Tensor = original(stage, arg)
    if not isinstance(arg, torch.Tensor) and any(isinstance(each, DTensor) for each in stage.submod.parameters()):
        with torch.no_grad():
            made.zero_()
    return made


def compute_input_grads(original: Any, stage: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    grads = original(stage, outputs, inputs, *args, **kwargs)
    if not any(isinstance(grad, DTensor) for grad in grads):
        return grads
    return type(grads)(_as_accumulated(grad, of) for grad, of in zip(grads, inputs, strict=True))


def prepare_forward_infra(original: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
    ours = tuple(parameter for parameter in stage.submod.parameters() if isinstance(parameter, DTensor))
    if ours and hasattr(stage, "_mesh_cache"):  # torch 2.11 sends no DTensors
        stage._mesh_cache.update_from_tensors(ours)
    return original(stage, *args, **kwargs)


def _as_accumulated(grad: Any, activation: Any) -> Any:
    if not isinstance(grad, DTensor) or not isinstance(activation, DTensor):
        return grad
    held = [Replicate() if placement.is_partial() else placement for placement in activation.placements]
    return grad.redistribute(placements=held)
