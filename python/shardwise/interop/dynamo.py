"""Tells torch.compile's front end about our C++ functions, which it cannot trace into."""

from types import ModuleType
from typing import Any

import torch

from shardwise import _C, forward_scope
from shardwise._tracing import static
from shardwise.dtensor import DTensor
from shardwise.fsdp import unit


def register(dynamo: ModuleType) -> None:
    """Lets graphs contain DTensor.from_local and the plain inputs of layers, and keeps torch.compile from tracing the hooks around forwards."""
    dynamo.allow_in_graph(_from_local_in_graph)
    dynamo.substitute_in_graph(DTensor.from_local, skip_signature_check=True)(_from_local)
    dynamo.allow_in_graph(_layer_input_in_graph)
    dynamo.substitute_in_graph(_C.layer_input, skip_signature_check=True)(_layer_input)
    forward_scope._open = dynamo.disable(forward_scope._open)
    for name in ("enter", "leave"):
        disabled = dynamo.disable(
            getattr(unit.Unit, name), reason="fully_shard gathers and frees parameters between graphs"
        )
        setattr(unit.Unit, name, disabled)
    for hook in (forward_scope._enter, forward_scope._leave, unit._before_forward, unit._after_forward):
        dynamo.eval_frame.skip_code(hook.__code__)


def _from_local(
    local_tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    run_check: bool = False,
    shape: Any = None,
    stride: Any = None,
    grad_placements: Any = None,
) -> torch.Tensor:
    # The mesh of a `with` block, and the comparison of ranks, exist only when the program runs.
    if device_mesh is None or run_check:
        torch._dynamo.graph_break()
    return _from_local_in_graph(local_tensor, device_mesh, placements, shape, stride, grad_placements)


def _from_local_in_graph(
    local_tensor: torch.Tensor, device_mesh: Any, placements: Any, shape: Any, stride: Any, grad_placements: Any
) -> torch.Tensor:
    return _C.from_local(
        static(local_tensor),
        device_mesh,
        placements,
        shape=_numbers(shape),
        stride=_numbers(stride),
        grad_placements=grad_placements,
    )


def _layer_input(local_tensor: torch.Tensor, device_mesh: Any, placements: Any, shape: Any = None) -> torch.Tensor:
    return _layer_input_in_graph(local_tensor, device_mesh, placements, shape)


def _layer_input_in_graph(local_tensor: torch.Tensor, device_mesh: Any, placements: Any, shape: Any) -> torch.Tensor:
    return _C.layer_input(static(local_tensor), device_mesh, placements, _numbers(shape))


def _numbers(sizes: Any) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]
