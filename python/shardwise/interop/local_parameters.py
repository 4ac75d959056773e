"""Modules whose DTensor parameters are local tensors outside of their forward, so that torch's data parallelism reduces their gradients.

places = dtensor_places(model, ignored=())
localize(places)                       # the parameters are this rank's local tensors now
...                                    # torch takes them
distribute_in_forward(model, places)   # they are DTensors while the model computes
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardwise.dtensor import DTensor
from shardwise.fsdp.unit import units_of


@dataclass(frozen=True)
class Place:
    """A place where `module` keeps the DTensor `parameter`, which gives the layout."""

    module: nn.Module
    name: str
    parameter: Any
    is_fully_sharded: bool  # by shardwise.fully_shard, which reduces its gradients

    def distributed(self, local: torch.Tensor) -> DTensor:
        given: DTensor = self.parameter
        return DTensor.from_local(
            local, given.device_mesh, given.placements, run_check=False, shape=given.shape, stride=given.stride()
        )


def dtensor_places(module: nn.Module, ignored: Iterable[torch.Tensor]) -> list[Place]:
    """The places of the DTensors among the parameters, except of those `ignored`."""
    left_out = {id(parameter) for parameter in ignored}
    sharded = {id(parameter) for unit in units_of(module.modules()) for parameter in unit.sharded}
    return [
        Place(owner, name, parameter, id(parameter) in sharded)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if isinstance(parameter, DTensor) and id(parameter) not in left_out
    ]


def check_ranks(places: Iterable[Place], ranks: Iterable[int], caller: str) -> None:
    """Raises TypeError if another rank of `ranks`, over which gradients are averaged, has part of the same tensor, or fully_shard has taken it."""
    averaged = set(ranks)
    for place in places:
        given = place.parameter
        if place.is_fully_sharded:
            raise TypeError(
                f"[{caller}] {place.name} of {type(place.module).__name__} is fully sharded on {given.device_mesh}, where its gradients are "
                "reduced. Give fully_shard a mesh of two dims, which replicates over the first, instead."
            )
        shared = sorted(averaged.intersection(given.device_mesh.mesh.flatten().tolist()))
        if len(shared) > 1:
            raise TypeError(
                f"[{caller}] {place.name} of {type(place.module).__name__} is a DTensor of shape {list(given.shape)} placed as "
                f"{list(given.placements)} on {given.device_mesh}, which has the ranks {shared} of those whose gradients are averaged. Average "
                'over another mesh dim, process_group=mesh.get_group("dp"), or use shardwise.fully_shard(model, mesh=...).'
            )


def localize(places: Iterable[Place]) -> None:
    """Puts the local tensors there, which share the memory of the DTensors. A parameter that modules share stays one. Sends nothing."""
    local: dict[int, nn.Parameter] = {}
    for place in places:
        given = place.parameter
        if id(given) not in local:
            local[id(given)] = nn.Parameter(given.detach().to_local(), requires_grad=given.requires_grad)
        place.module._parameters[place.name] = local[id(given)]


def put_back(places: Iterable[Place]) -> None:
    for place in places:
        place.module._parameters[place.name] = place.parameter


def distribute_in_forward(module: nn.Module, places: list[Place]) -> None:
    """Has `module` compute with DTensors made of its local parameters, and modules within it, which a backward may call again (activation
    checkpointing). State dicts have DTensors, too."""
    if not places:
        return
    for part in module.modules():
        within = set(part.modules())
        if own := [place for place in places if place.module in within]:
            _distribute_in_calls(part, own)
    for place in places:
        _keep_states_distributed(place)


def _distribute_in_calls(module: nn.Module, places: list[Place]) -> None:
    replaced: list[list[tuple[Place, Any]]] = []  # by running call, inner ones last

    def before(*_: Any) -> None:
        given = [(place, place.module._parameters[place.name]) for place in places]
        # The call of a module around this one has made its DTensors already.
        local = [(place, each) for place, each in given if not isinstance(each, DTensor)]
        made: dict[int, Any] = {}
        for place, each in local:
            if id(each) not in made:
                made[id(each)] = place.distributed(each)  # type: ignore[arg-type]
            place.module._parameters[place.name] = made[id(each)]
        replaced.append(local)

    def after(*_: Any) -> None:
        for place, each in replaced.pop() if replaced else ():
            place.module._parameters[place.name] = each

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, prepend=True, always_call=True)  # before torch takes its parameters back


def _keep_states_distributed(place: Place) -> None:
    def saved(_: nn.Module, state_dict: dict[str, Any], prefix: str, __: Any) -> None:
        local: Any = state_dict.get(prefix + place.name)
        if type(local) in (torch.Tensor, nn.Parameter):  # torch's data parallelism may have its own DTensor there
            state_dict[prefix + place.name] = place.distributed(local)

    def loaded(_: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any) -> None:
        given = state_dict.get(prefix + place.name)
        if isinstance(given, DTensor) and given.placements == place.parameter.placements:
            state_dict[prefix + place.name] = given.to_local()

    place.module.register_state_dict_post_hook(saved)
    place.module.register_load_state_dict_pre_hook(loaded)
