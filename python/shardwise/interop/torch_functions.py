"""Replacements of single functions of torch: those that make plain tensors next to a DTensor, clipping, local_map, and modules' hooks and tensors."""

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from shardwise import _C, factories
from shardwise._C import Replicate
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.experimental import local_map
from shardwise.forward_scope import enters_last
from shardwise.interop.torch_tensors import is_torch_dtensor

Function = Callable[..., Any]
Tensors = torch.Tensor | Iterable[torch.Tensor]


def as_replicas(original: Function, *args: Any, **options: Any) -> Any:
    """Calls `original`. If an argument is a DTensor, tensors that `original` makes become replicas on the mesh of the first one."""
    ours = [value for value in (*args, *options.values()) if isinstance(value, DTensor)]
    with _MadeOn(ours[0].device_mesh) if ours else nullcontext():
        return original(*args, **options)


def with_samples(original: Function, input: torch.Tensor, *args: Any, **options: Any) -> Any:
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


def unchunked(original: Function, *args: Any, options: Any = None, **others: Any) -> Any:
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


def total_norm(
    original: Function,
    tensors: Tensors,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """torch.nn.utils.get_total_norm(). Plain gradients next to ours count as equal on all ranks. Order 0 sends a message per tensor."""
    tensors = _listed(tensors)
    if norm_type == 0 or not any(isinstance(tensor, DTensor) for tensor in tensors):
        return original(tensors, norm_type, error_if_nonfinite, foreach)
    norm = _C.total_norm(tensors, float(norm_type))
    local = norm.to_local() if isinstance(norm, DTensor) else norm
    if error_if_nonfinite and not local.isfinite().all():
        raise RuntimeError(
            f"[clip_grad_norm_] the total norm of order {norm_type} of the gradients is {local.item()}: it cannot be "
            "clipped. Look for the gradients that are not finite, or scale by it with error_if_nonfinite=False."
        )
    return norm


def clip_grads(
    original: Function, parameters: Tensors, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None
) -> None:
    """torch.nn.utils.clip_grads_with_norm_(). Gradients on any mesh are scaled by this rank's value of `total_norm`. Raises ValueError on ranks
    that have plain gradients and are outside the norm's mesh."""
    parameters = _listed(parameters)
    if not any(isinstance(each, DTensor) for each in (total_norm, *parameters)):
        return original(parameters, max_norm, total_norm, foreach)
    known = total_norm.to_local() if isinstance(total_norm, DTensor) else total_norm
    is_known = known.numel() == 1
    with_grad = [parameter for parameter in parameters if parameter.grad is not None]
    ours = [parameter for parameter in with_grad if isinstance(parameter.grad, DTensor)]
    plain = [parameter for parameter in with_grad if not isinstance(parameter.grad, DTensor)]
    if plain and not is_known:
        raise ValueError(
            "[clip_grad_norm_] plain gradients are clipped together with DTensors on a mesh that this rank is outside of, so it does not "
            "know their norm. Clip plain parameters separately, or leave these DTensors out on this rank."
        )
    for group in (ours, plain):
        original(group, max_norm, known if is_known else total_norm, foreach)


def _listed(tensors: Tensors) -> Sequence[torch.Tensor]:
    """The tensors as a sequence; a list or tuple itself, so that the original gets what the program gave."""
    if isinstance(tensors, (list, tuple)):
        return tensors
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def mapped(original: Any, *given: Any, **kwargs: Any) -> Any:
    """Calls shardwise.experimental.local_map() if an argument is one of our tensors."""
    names = _names(original)
    options, args = dict(zip(names, given, strict=False)), given[len(names) :]
    values = pytree.tree_leaves((args, kwargs))
    if not any(isinstance(value, DTensor) for value in values):
        return original(*given, **kwargs)
    if any(map(is_torch_dtensor, values)):
        raise TypeError(
            "[local_map] got DTensors of Shardwise and of torch.distributed.tensor together. Convert the latter with "
            "shardwise.from_torch."
        )
    options.pop("enable_spmd_types", None)  # torch 2.14: it only makes torch compare annotations of the results
    return local_map(**options)(*args, **kwargs)


@functools.cache
def _names(original: Any) -> list[str]:
    return [each.name for each in signature(original).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]


def _must_be_exchanged(original: Any, tensor: Any) -> bool:
    return not isinstance(tensor, DTensor) and original(tensor)


def register_forward_pre_hook(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    handle = original(self, *arguments, **options)
    enters_last(self)
    return handle
