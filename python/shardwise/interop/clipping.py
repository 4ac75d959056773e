"""torch.nn.utils' clipping by the norm of all gradients, if some are ours: one message in total, also with several meshes."""

from collections.abc import Callable, Iterable, Sequence

import torch

from shardwise import _C
from shardwise.dtensor import DTensor

TotalNorm = Callable[..., torch.Tensor]
ClipGrads = Callable[..., None]
Tensors = torch.Tensor | Iterable[torch.Tensor]


def total_norm(
    original: TotalNorm,
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
    original: ClipGrads, parameters: Tensors, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None
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
