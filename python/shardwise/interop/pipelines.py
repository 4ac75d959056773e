"""torch's pipelines: activations and gradients that are our DTensors travel as this rank's pieces, like those of torch.distributed.tensor.

A stage first runs once on uninitialised tensors to learn shapes. These are zeroed here, because distributed modules compare their inputs between
ranks. It learns the layouts of gradients from torch.autograd.grad(), where a sum may still be Partial, but sends the `.grad` of backward(), which
is laid out like the activation. So it gets the layout of the activation here. It needs no get_mesh if the mesh of another stage has the names and
shape of the mesh of its own parameters.
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
    """The class DTensor for torch.distributed.pipelining: torch's, or ours on our meshes."""

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
    # Nothing is sent for a stage on meta: the other stages' votes count as its own.
    if any(parameter.is_meta for parameter in stage.submod.parameters()):
        modes = type(stage._inference_mode)
        is_dynamic = modes.needs_dynamic(stage._user_meta, kwargs.get("has_backward", False))
        stage._inference_mode = modes.DYNAMIC if is_dynamic else modes.STATIC
    if ours and hasattr(stage, "_mesh_cache"):  # torch 2.11 sends no DTensors
        stage._mesh_cache.update_from_tensors(ours)
    return original(stage, *args, **kwargs)


def _as_accumulated(grad: Any, activation: Any) -> Any:
    if not isinstance(grad, DTensor) or not isinstance(activation, DTensor):
        return grad
    held = [Replicate() if placement.is_partial() else placement for placement in activation.placements]
    return grad.redistribute(placements=held)
