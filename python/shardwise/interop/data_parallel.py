"""torch's own data parallelism, which takes each rank's parameters for whole ones.

Its ranks would each do something else with a parameter that all of them hold together: fully_shard, and replicate, which is made of it,
have each copy another part of it, ZeroRedundancyOptimizer has one step it, and that one would wait for the others. These refuse our
parameters, on all ranks alike, and so does DistributedDataParallel, which leaves out those of layers that reduce their gradients
themselves. shardwise.fully_shard takes them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from shardwise.dtensor import DTensor


def teach(module: ModuleType) -> None:
    """Has the checks of `module`, which run before anything is sent, know our tensors."""
    if "_verify_managed_param" in vars(module):
        vars(module)["_verify_managed_param"] = _verifying(vars(module)["_verify_managed_param"])
    wrapper = getattr(module, "DistributedDataParallel", None)
    if wrapper is not None:
        wrapper.__init__ = _leaving_out(wrapper.__init__)
    optimizer = getattr(module, "ZeroRedundancyOptimizer", None)
    if optimizer is not None:
        optimizer.add_param_group = _adding(optimizer.add_param_group)


def _verifying(original: Any) -> Any:
    @functools.wraps(original)
    def verify_managed_param(name: str, parameter: torch.Tensor) -> None:
        if isinstance(parameter, DTensor):
            raise TypeError(
                f"[fully_shard] {name} is a DTensor of shape {list(parameter.shape)} placed as {list(parameter.placements)} by "
                "Shardwise: torch's fully_shard does not shard it further. Use shardwise.fully_shard, which does, or leave it out "
                "with ignored_params={...}."
            )
        original(name, parameter)

    return verify_managed_param


def _leaving_out(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, module: torch.nn.Module, *arguments: Any, **options: Any) -> None:
        own = {
            f"{path}.{name}" if path else name
            for path, part in module.named_modules()
            if getattr(part, "reduces_gradients", False)
            for name, _ in part.named_parameters()
        }
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        for name, parameter in module.named_parameters():
            if isinstance(parameter, DTensor) and name not in own | ignored:
                raise TypeError(
                    f"[DistributedDataParallel] {name} is a DTensor of shape {list(parameter.shape)} placed as "
                    f"{list(parameter.placements)} by Shardwise, which it does not reduce. Use shardwise.fully_shard(model, "
                    "mesh=...), which does over any mesh dim that the parameter is not on."
                )
        if own:
            module._ddp_params_and_buffers_to_ignore = ignored | own  # type: ignore[assignment]
        original(self, module, *arguments, **options)

    return __init__


def _adding(original: Any) -> Any:
    """add_param_group, which the constructor calls, too."""

    @functools.wraps(original)
    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        given = param_group["params"]
        if isinstance(given, Iterator):
            given = param_group["params"] = list(given)
        for entry in [given] if isinstance(given, torch.Tensor) else given:
            parameter = entry[1] if isinstance(entry, tuple) else entry  # or (name, parameter)
            if isinstance(parameter, DTensor):
                raise TypeError(
                    f"[ZeroRedundancyOptimizer] got a DTensor of shape {list(parameter.shape)} placed as "
                    f"{list(parameter.placements)}: each rank has the optimizer state of its own part already. Give it to "
                    "an ordinary optimizer of torch.optim."
                )
        original(self, param_group)

    return add_param_group
