"""torch's pipelines: activations and gradients that are our DTensors travel as this rank's pieces, as those of torch.distributed.tensor do.

A stage first runs once to learn shapes, on tensors that nobody has written. Distributed modules compare what the ranks give them: there
it is zeros. It learns the layouts of gradients from torch.autograd.grad(), where a sum may still be Partial, and sends what backward() leaves in
`.grad`, which is laid out as the activation: it is told those layouts. Where another stage's mesh is its own parameters' by name and shape, it
needs no get_mesh.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop.pipeline_batches import merge, split
from shardwise.interop.pipeline_stages import checked, compared
from shardwise.interop.replacements import replace_functions, replace_methods
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


def teach(module: ModuleType) -> None:
    if vars(module).get("DTensor") is TorchDTensor:
        vars(module)["DTensor"] = _EitherDTensor
    replace_functions(module, {"_make_tensor_from_meta": _zeros, "_split_tensor": split, "merge_chunks": merge})
    replace_methods(
        module, {"_compute_input_grads": _laid_out_as_accumulated, "_prepare_forward_infra": _knowing_own_meshes}
    )
    replace_methods(module, {"_initialize_stage": compared, "_initialize_stages": compared})
    stage = vars(module).get("_PipelineStageBase")
    if stage is not None and stage.__module__ == module.__name__:
        stage.__init__ = checked(stage.__init__)


def _zeros(original: Any, meta: Any, device: Any) -> torch.Tensor:
    return original(meta, device).zero_()


def _laid_out_as_accumulated(original: Any) -> Any:
    @functools.wraps(original)
    def compute(stage: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        grads = original(stage, outputs, inputs, *args, **kwargs)
        return type(grads)(_as_accumulated(grad, of) for grad, of in zip(grads, inputs, strict=True))

    return compute


def _knowing_own_meshes(original: Any) -> Any:
    @functools.wraps(original)
    def prepare(stage: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(stage, "_mesh_cache"):  # torch 2.11 sends no DTensors
            stage._mesh_cache.update_from_tensors(tuple(p for p in stage.submod.parameters() if isinstance(p, DTensor)))
        return original(stage, *args, **kwargs)

    return prepare


def _as_accumulated(grad: Any, activation: Any) -> Any:
    if not isinstance(grad, DTensor) or not isinstance(activation, DTensor):
        return grad
    held = [Replicate() if placement.is_partial() else placement for placement in activation.placements]
    return grad.redistribute(placements=held)
