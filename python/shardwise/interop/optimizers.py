"""torch.optim on DTensors: the foreach forms, loading of plain state, steps on pieces, and optimizers whose operators would send many messages."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardwise import _C
from shardwise._C import Replicate, Shard, redistribute_many
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor, distribute_tensor
from shardwise.interop.state_dicts import placed_as
from shardwise.placement_types import Placement

Tensors = Sequence[torch.Tensor]


def supporting(kinds: list[type]) -> list[type]:
    kinds.append(DTensor)
    return kinds


def load_state_dict(original: Any, self: Any, state_dict: dict[str, Any]) -> None:
    """Lays out plain values, which must be equal on all ranks, as their parameters. Nothing is sent.

    Values of another shape, such as the factors of a matrix of moments, are replicated on the mesh of the parameter. A vector of all parameters
    together stays plain if these are on several meshes.
    """
    parameters = [parameter for group in self.param_groups for parameter in group["params"]]
    if not any(isinstance(parameter, DTensor) for parameter in parameters):
        return original(self, state_dict)
    indices = [index for group in state_dict["param_groups"] for index in group["params"]]
    meshes = {parameter.device_mesh if isinstance(parameter, DTensor) else None for parameter in parameters}
    n_elements = sum(parameter.numel() for parameter in parameters)
    state = dict(state_dict["state"])

    def placed(parameter: DTensor, value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, DTensor) or value.dim() == 0:
            return value
        if value.shape == parameter.shape:
            return placed_as(value, parameter)
        if value.shape == (n_elements,) and len(meshes) > 1:
            return value
        mesh = parameter.device_mesh
        return distribute_tensor(value, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)

    for index, parameter in zip(indices, parameters, strict=False):  # torch raises an error if the numbers differ
        if isinstance(parameter, DTensor) and index in state:
            state[index] = pytree.tree_map_only(torch.Tensor, partial(placed, parameter), state[index])
    return original(self, {**state_dict, "state": state})


def elementwise(original: Any, *lists: Any, **options: Any) -> None:
    """Steps on this rank's pieces if gradients and states are laid out as their parameters: the result of the operators, without their way there."""
    if torch.compiler.is_compiling() or not _C.step_on_pieces(original, lists, options):
        original(*lists, **options)


def muon(original: Any, params: Tensors, grads: Tensors, muon_momentum_bufs: Tensors, **options: Any) -> None:
    """Runs Muon's Newton-Schulz iteration, which needs whole matrices, on one rank per matrix, and sends the results back.

    All matrices of a mesh travel in the same two exchanges, as bfloat16, and the ranks share the work.
    """
    ours = [i for i, parameter in enumerate(params) if isinstance(parameter, DTensor)]
    if not ours:
        return original(params, grads, muon_momentum_bufs, **options)
    plain = [i for i in range(len(params)) if i not in ours]
    if plain:
        original(*([values[i] for i in plain] for values in (params, grads, muon_momentum_bufs)), **options)
    momentum, lr = options["momentum"], float(options["lr"])
    updates = []
    for i in ours:
        average = muon_momentum_bufs[i]
        average.lerp_(grads[i], 1 - momentum)
        updates.append(grads[i].lerp(average, momentum) if options["nesterov"] else average)

    def iterate(matrix: torch.Tensor) -> torch.Tensor:
        coefficients, n_steps, eps = options["ns_coefficients"], options["ns_steps"], options["eps"]
        return torch.optim._muon._zeropower_via_newtonschulz(matrix, coefficients, n_steps, eps)

    parameters = [params[i] for i in ours]
    for parameter, direction in zip(parameters, _of_whole(iterate, updates, parameters), strict=True):
        parameter.mul_(1 - lr * options["weight_decay"])
        rate = torch.optim._muon._adjust_lr(lr, options["adjust_lr_fn"], parameter.shape)
        parameter.add_(direction, alpha=-rate)


def _of_whole(function: Callable[[torch.Tensor], torch.Tensor], matrices: Tensors, like: Tensors) -> list[torch.Tensor]:
    """`function`, which returns bfloat16 of the same shape, of each whole matrix, laid out as `like`. Replicas are not moved."""
    results: dict[int, torch.Tensor] = {}
    by_mesh: dict[DeviceMesh, list[int]] = {}
    for i, matrix in enumerate(matrices):
        assert isinstance(matrix, DTensor)
        if all(placement.is_replicate() for placement in matrix.placements):
            results[i] = _of_piece(function, matrix.bfloat16(), matrix.placements)
        else:
            by_mesh.setdefault(matrix.device_mesh, []).append(i)
    for mesh, places in by_mesh.items():
        layouts = _whole_on_single_ranks([matrices[i].shape for i in places], mesh)
        there = redistribute_many([matrices[i].bfloat16() for i in places], layouts)
        made = [_of_piece(function, matrix, layout) for matrix, layout in zip(there, layouts, strict=True)]
        results.update(zip(places, redistribute_many(made, [like[i].placements for i in places]), strict=True))  # type: ignore[attr-defined]
    return [results[i] for i in range(len(matrices))]


def _of_piece(
    function: Callable[[torch.Tensor], torch.Tensor], matrix: Any, placements: Sequence[Placement]
) -> DTensor:
    """`function` of the matrix, called on the ranks that hold it."""
    piece = matrix.to_local()
    result = function(piece).contiguous() if piece.numel() else piece
    stride = (matrix.shape[1], 1)
    return DTensor.from_local(result, matrix.device_mesh, placements, shape=matrix.shape, stride=stride)


def _whole_on_single_ranks(shapes: Sequence[torch.Size], mesh: DeviceMesh) -> list[list[Placement]]:
    """Layouts that put each matrix on one rank. The most expensive matrix comes first, and each goes to the rank with the least work."""
    work = [0] * mesh.size()
    layouts: dict[int, list[Placement]] = {}

    def duration(i: int) -> int:
        return shapes[i].numel() * min(shapes[i])

    for i in sorted(range(len(shapes)), key=duration, reverse=True):
        rank = work.index(min(work))
        work[rank] += duration(i)
        layouts[i] = _rows_on(rank, shapes[i][0], mesh)
    return [layouts[i] for i in range(len(shapes))]


def _rows_on(rank: int, n_rows: int, mesh: DeviceMesh) -> list[Placement]:
    """Placements that put all rows on the `rank`-th rank of the mesh: each mesh dim gives all rows to one of its parts."""
    placements: list[Placement] = []
    for m in range(mesh.ndim):
        own, n_parts = rank // prod(mesh.shape[m + 1 :]), prod(mesh.shape[: m + 1])
        placements.append(Shard(0, [n_rows if part == own else 0 for part in range(n_parts)]))
    return placements


def adafactor(original: Any, params: Tensors, *lists: Any, **options: Any) -> None:
    """Lets ranks outside a parameter's mesh only count the step: Adafactor reads norms as Python numbers, which they do not have."""
    if not any(isinstance(parameter, DTensor) for parameter in params):
        return original(params, *lists, **options)
    grads, row_vars, col_vars, variances, state_steps, *rest = lists
    is_here = [not isinstance(each, DTensor) or each.device_mesh.get_coordinate() is not None for each in params]
    here = [i for i in range(len(params)) if is_here[i]]
    for i in set(range(len(params))).difference(here):
        state_steps[i] += 1
    per_parameter = (params, grads, row_vars, col_vars, variances, state_steps)
    return original(*([values[i] for i in here] for values in per_parameter), *rest, **options)


# LBFGS works on one vector of all gradients. If parameters are on several meshes, or some are plain, the vector is on a mesh with the ranks of all.


def gather_flat_grad(original: Any, self: Any) -> torch.Tensor:
    mesh = _common_mesh(self._params)
    if mesh is None:
        return original(self)
    parts: list[torch.Tensor] = []
    for parameter in self._params:
        grad: Any = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        grad = _as_real(grad.to_dense() if grad.is_sparse else grad).reshape(-1)
        everywhere = [Replicate()] * mesh.ndim
        is_ours = isinstance(grad, DTensor)
        parts.append(grad.redistribute(mesh, everywhere) if is_ours else DTensor.from_local(grad, mesh, everywhere))
    flat: Any = torch.cat(parts)
    if self.param_groups[0].get("maximize", False):  # torch 2.14 and later
        flat = -flat
    return flat.redistribute(placements=[Shard(0)] * mesh.ndim)


def add_grad(original: Any, self: Any, step_size: Any, update: Any) -> None:
    if _common_mesh(self._params) is None:
        return original(self, step_size, update)
    begin = 0
    for parameter in map(_as_real, self._params):
        part = update[begin : begin + parameter.numel()].view(parameter.shape)
        begin += parameter.numel()
        is_ours = isinstance(parameter, DTensor)
        own = part.redistribute(parameter.device_mesh, parameter.placements) if is_ours else part.full_tensor()
        parameter.add_(own, alpha=float(step_size))


def _as_real(tensor: torch.Tensor) -> Any:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _common_mesh(parameters: Tensors) -> DeviceMesh | None:
    """A mesh with the ranks of all parameters; a plain parameter is on all ranks. None if all parameters are on one mesh, or all are plain."""
    meshes = list(dict.fromkeys(p.device_mesh for p in parameters if isinstance(p, DTensor)))
    any_plain = not all(isinstance(p, DTensor) for p in parameters)
    if not meshes or (len(meshes) == 1 and not any_plain):
        return None
    ranks = [set(mesh.mesh.flatten().tolist()) for mesh in meshes]
    for mesh, own in zip(meshes, ranks, strict=True):
        if not any_plain and all(own.issuperset(other) for other in ranks):
            return mesh
    return _C.mesh_or_world(None, meshes[0].device_type)
