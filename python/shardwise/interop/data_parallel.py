"""Makes torch's own data parallelism refuse our parameters, on all ranks, because it assumes that each rank has whole parameters.

With torch's fully_shard, and replicate, which uses it, each rank would copy another part of a parameter that all ranks hold together. With
ZeroRedundancyOptimizer one rank would step it, and wait for the others. DistributedDataParallel leaves out the parameters of layers that reduce their
gradients themselves, and refuses others. shardwise.fully_shard takes our parameters.
"""

from collections.abc import Iterator
from typing import Any

import torch

from shardwise.dtensor import DTensor


def verify_managed_param(original: Any, name: str, parameter: torch.Tensor) -> None:
    if isinstance(parameter, DTensor):
        raise TypeError(
            f"[fully_shard] {name} is a DTensor of shape {list(parameter.shape)} placed as {list(parameter.placements)} by "
            "Shardwise: torch's fully_shard does not shard it further. Use shardwise.fully_shard, which does, or leave it out "
            "with ignored_params={...}."
        )
    original(name, parameter)


def init_leaving_out(original: Any, self: Any, module: torch.nn.Module, *arguments: Any, **options: Any) -> None:
    """Makes DistributedDataParallel leave out the parameters of layers that reduce their gradients themselves."""
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


def add_param_group(original: Any, self: Any, param_group: dict[str, Any]) -> None:
    """Refuses our parameters. The constructor of ZeroRedundancyOptimizer calls it, too."""
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
