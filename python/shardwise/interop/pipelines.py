"""torch's pipelines: activations and gradients that are our DTensors travel as this rank's pieces, like those of torch.distributed.tensor.

A stage first runs once on uninitialised tensors to learn shapes. These are zeroed here, because distributed modules compare their inputs between
ranks. It learns the layouts of gradients from torch.autograd.grad(), where a sum may still be Partial, but sends the `.grad` of backward(), which
is laid out like the activation. So it gets the layout of the activation here. It needs no get_mesh if the mesh of another stage has the names and
shape of the mesh of its own parameters.

A batch that is a DTensor is split into parts that have the rows that they have of a plain batch. torch would split each rank's rows, so that a part
had other rows than the same part of a plain target. Here, sharded rows move, so that each part is laid out like the whole batch, and outputs are
merged in the order of the batch.

Stages that do not fit the mesh or their rank are errors, raised before the first message of a pipeline would wait forever. Each rank checks its own
stages and sends nothing: other ranks' stages may have no tensors of ours, and then check nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor as TorchDTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Replicate, Shard


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


def init(original: Any, stage: Any, *arguments: Any, **options: Any) -> None:
    original(stage, *arguments, **options)
    own = _ours(stage.submod)
    if own:
        _check_mesh(_ranks_of(stage), own)


def initialize(original: Any, schedule: Any, *arguments: Any, **options: Any) -> Any:
    """Checks the stages of a schedule once. The schedule calls it before each step."""
    if "_shardwise_checked" not in schedule.__dict__:
        schedule._shardwise_checked = True
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        if any(_ours(stage.submod) for stage in stages):
            _check_places(stages)
    return original(schedule, *arguments, **options)


def _ours(module: Any) -> list[tuple[str, DTensor]]:
    if not isinstance(module, nn.Module):
        return []
    return [(name, parameter) for name, parameter in module.named_parameters() if isinstance(parameter, DTensor)]


def _ranks_of(stage: Any) -> list[int]:
    return dist.get_process_group_ranks(stage.group or dist.group.WORLD)


def _check_mesh(ranks: list[int], own: Sequence[tuple[str, DTensor]]) -> None:
    """Raises ValueError if ranks of a parameter's mesh run other stages."""
    for name, parameter in own:
        shared = sorted(set(parameter.device_mesh.mesh.flatten().tolist()) & set(ranks))
        if len(shared) > 1:
            raise ValueError(
                f"[PipelineStage] {name} lives on {parameter.device_mesh}, and so on the ranks {shared} of the pipeline {ranks}, which run "
                'other stages at other times. Give each stage only the other mesh dims: parallelize_module(stage, mesh["tp"], ...).'
            )


def _check_places(stages: Sequence[Any]) -> None:
    """Raises ValueError if this rank has other stages than those of its place in the pipeline."""
    first, ranks = stages[0], _ranks_of(stages[0])
    mine = sorted(stage.stage_index for stage in stages)
    wanted = sorted(stage for stage, home in first.stage_index_to_group_rank.items() if home == first.group_rank)
    if len(ranks) > 1 and mine != wanted:
        raise ValueError(
            f"[PipelineStage] rank {ranks[first.group_rank]} of the pipeline {ranks} has {_words(mine)} of {first.num_stages}, but at its "
            f'place it must have {_words(wanted)}. Give each rank the stage of its place, mesh.get_local_rank("pp"), of mesh.size("pp") '
            "stages; if a schedule takes several stages per rank, give it all stages of the place."
        )


def _words(stages: Sequence[int]) -> str:
    return f"{'stage' if len(stages) == 1 else 'stages'} {', '.join(map(str, stages))}"


def split(original: Any, tensor: Any, spec: Any, n_parts: int) -> Any:
    """Replaces _split_tensor()."""
    if not _is_split(tensor, spec.split_dim) or tensor.shape[spec.split_dim] < n_parts:
        return original(tensor, spec, n_parts)
    dim = spec.split_dim % tensor.ndim
    parts, begin = [], 0
    quotient, remainder = divmod(tensor.shape[dim], n_parts)
    for number in range(n_parts):
        size = quotient + (number < remainder)
        part = tensor.narrow(dim, begin, size).redistribute(placements=_along(tensor.placements, dim))
        if tensor.requires_grad and tensor.is_leaf:
            part.retain_grad()  # torch reads the gradients of parts
        parts.append(part)
        begin += size
    return parts


def merge(original: Any, chunks: Sequence[Any], chunk_spec: Any) -> Any:
    """Replaces merge_chunks()."""
    if not chunks:
        return original(chunks, chunk_spec)
    first, structure = tree_flatten(chunks[0])
    specs = [None] * len(first) if chunk_spec is None else tree_leaves(chunk_spec)
    dims = [0 if chunk_spec is None else getattr(each, "split_dim", None) for each in specs]
    moved = [
        _along(value.placements, dim % value.ndim) if _is_split(value, dim) else None
        for value, dim in zip(first, dims, strict=True)
    ]
    if not any(moved):
        return original(chunks, chunk_spec)
    whole = [
        tree_unflatten(
            [
                value if placements is None else value.redistribute(placements=_whole(placements, dim % value.ndim))
                for value, placements, dim in zip(tree_leaves(chunk), moved, dims, strict=True)
            ],
            structure,
        )
        for chunk in chunks
    ]
    merged = iter(moved)

    def laid_out(value: Any) -> Any:
        placements = next(merged)
        return value if placements is None else value.redistribute(placements=placements)

    return tree_map(laid_out, original(whole, chunk_spec))


def _is_split(tensor: Any, dim: int | None) -> bool:
    """True if the ranks have different indices of `dim`. False if there is no such dim: torch raises the error."""
    if dim is None or not isinstance(tensor, DTensor) or not -tensor.ndim <= dim < tensor.ndim:
        return False
    return any(_splits(placement, dim % tensor.ndim) for placement in tensor.placements)


def _splits(placement: Placement, dim: int) -> bool:
    if isinstance(placement, Shard):
        return placement.dim == dim
    return not placement.is_replicate() and not placement.is_partial()


def _along(placements: Sequence[Placement], dim: int) -> list[Placement]:
    """The placements for a tensor with any length of `dim`."""
    return [Shard(dim) if _splits(placement, dim) else placement for placement in placements]


def _whole(placements: Sequence[Placement], dim: int) -> list[Placement]:
    return [Replicate() if _splits(placement, dim) else placement for placement in placements]
