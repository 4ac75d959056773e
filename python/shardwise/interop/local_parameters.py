"""Modules whose DTensor parameters are local tensors outside of their forward, so that torch's data parallelism reduces their gradients.

places = dtensor_places(model, ignored=())
localize(places)                       # the parameters are this rank's local tensors now
...                                    # torch takes them
distribute_in_forward(model, places)   # they are DTensors while the model computes
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from shardwise.dtensor import DTensor
from shardwise.fsdp.unit import units_of
from shardwise.module_tensors import Place, by_tensor, places_of, put


def dtensor_places(module: nn.Module, ignored: Iterable[torch.Tensor] = ()) -> list[Place]:
    """The places of the DTensors among the parameters, except of those `ignored`."""
    left_out = {id(parameter) for parameter in ignored}
    return [
        place
        for place in places_of(module)
        if isinstance(place.original, DTensor)
        and isinstance(place.original, nn.Parameter)
        and id(place.original) not in left_out
    ]


def check_ranks(places: Iterable[Place], roots: Iterable[nn.Module], ranks: Iterable[int], caller: str) -> None:
    """Raises TypeError if another rank of `ranks`, over which gradients are averaged, has part of the same tensor, or fully_shard has taken it in
    `roots`: then it reduces the gradients."""
    averaged = set(ranks)
    units = units_of(each for root in roots for each in root.modules())
    fully_sharded = {id(parameter) for unit in units for parameter in unit.sharded}
    for place in places:
        given: Any = place.original
        if id(given) in fully_sharded:
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


def localize(places: list[Place]) -> None:
    """Puts the local tensors there, which share the memory of the DTensors. A parameter that modules share stays one. Sends nothing."""
    for group in by_tensor(places):
        put(group[0].original.detach().to_local(), group)  # type: ignore[attr-defined]


def put_back(places: Iterable[Place]) -> None:
    for place in places:
        place.tensor = place.original


def _distributed(place: Place, local: torch.Tensor) -> DTensor:
    """The DTensor of the local tensor, laid out as the place's original."""
    given: Any = place.original
    layout = (given.device_mesh, given.placements)
    return DTensor.from_local(local, *layout, run_check=False, shape=given.shape, stride=given.stride())


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
        # The call of a module around this one has made its DTensors already.
        local: list[tuple[Place, Any]] = [
            (place, place.tensor) for place in places if not isinstance(place.tensor, DTensor)
        ]
        made: dict[int, Any] = {}
        for place, each in local:
            if id(each) not in made:
                made[id(each)] = _distributed(place, each)
            place.tensor = made[id(each)]
        replaced.append(local)

    def after(*_: Any) -> None:
        for place, each in replaced.pop() if replaced else ():
            place.tensor = each

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, prepend=True, always_call=True)  # before torch takes its parameters back


def _keep_states_distributed(place: Place) -> None:
    def saved(_: nn.Module, state_dict: dict[str, Any], prefix: str, __: Any) -> None:
        local: Any = state_dict.get(prefix + place.name)
        if type(local) in (torch.Tensor, nn.Parameter):  # torch's data parallelism may have its own DTensor there
            state_dict[prefix + place.name] = _distributed(place, local)

    def loaded(_: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any) -> None:
        given, own = state_dict.get(prefix + place.name), place.original
        if isinstance(given, DTensor) and given.placements == own.placements:  # type: ignore[attr-defined]
            state_dict[prefix + place.name] = given.to_local()

    place.module.register_state_dict_post_hook(saved)
    place.module.register_load_state_dict_pre_hook(loaded)
