"""torch's own data parallelism beside our parameters: it takes each rank's parameters for whole ones.

DistributedDataParallel and replicate get the local tensors, if the ranks that they average over have no other part of the same parameter.
DistributedDataParallel leaves out the parameters of layers that reduce their gradients themselves. With torch's fully_shard each rank would copy
another part of a parameter that all ranks hold together, and with ZeroRedundancyOptimizer one rank would step it, and wait for the others: these
refuse our parameters, on all ranks. shardwise.fully_shard takes them.

    places = dtensor_places(model, ignored=())
    localize(places)                       # the parameters are this rank's local tensors now
    ...                                    # torch takes them
    distribute_in_forward(model, places)   # they are DTensors while the model computes
"""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise.dtensor import DTensor
from shardwise.fsdp.unit import unit_of, units_of
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


def verify_managed_param(original: Any, name: str, parameter: torch.Tensor) -> None:
    if isinstance(parameter, DTensor):
        raise TypeError(
            f"[fully_shard] {name} is a DTensor of shape {list(parameter.shape)} placed as {list(parameter.placements)} by "
            "Shardwise: torch's fully_shard does not shard it further. Use shardwise.fully_shard, which does, or leave it out "
            "with ignored_params={...}."
        )
    original(name, parameter)


def module_state(original: Any, module: torch.nn.Module) -> Any:
    """Makes torch's fully_shard and replicate leave out modules that Shardwise's fully_shard took, as they do with torch's."""
    return unit_of(module) or original(module)


def init_with_local_parameters(
    original: Any, self: Any, module: torch.nn.Module, *arguments: Any, **options: Any
) -> None:
    """Gives DistributedDataParallel the local tensors of DTensors, except those of layers that reduce their gradients themselves."""
    own = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        if getattr(part, "reduces_gradients", False)
        for name, _ in part.named_parameters()
    }
    names = own | set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    if own:
        module._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]
    ignored = [place.original for place in places_of(module) if place.path in names]
    places = dtensor_places(module, ignored)
    given = inspect.signature(original).bind(self, module, *arguments, **options).arguments
    check_ranks(places, [module], _ranks(given) if places else (), "DistributedDataParallel")
    with _localized(places):
        original(self, module, *arguments, **options)
    distribute_in_forward(module, places)


def record_init_args(
    original: Any, self: Any, module: torch.nn.Module, ignored_modules: Any, *arguments: Any, **options: Any
) -> None:
    """Gives replicate() local tensors. It calls this last, so hooks that are registered here come after its own."""
    places = dtensor_places(module, (parameter for part in ignored_modules for parameter in part.parameters()))
    check_ranks(places, [module], _ranks(options) if places else (), "replicate")
    localize(places)
    original(self, module, ignored_modules, *arguments, **options)
    distribute_in_forward(module, places)


def get_modules_and_states(
    original: Any, module: Any, device: torch.device, ignored_params: Any = None, *arguments: Any, **options: Any
) -> Any:
    """Gives the replicate() that is based on fully_shard local tensors."""
    roots = [module] if isinstance(module, torch.nn.Module) else list(module)
    places = [place for root in roots for place in dtensor_places(root, ignored_params or ())]
    with _localized(places):
        result = original(module, device, ignored_params, *arguments, **options)
    for root in result[1] if places else ():
        within = set(root.modules())
        root.__dict__[_LOCALIZED] = [place for place in places if place.module in within]
    return result


def init_param_group(
    original: Any, state: Any, params: Any, modules: Any, mesh_info: Any, *arguments: Any, **options: Any
) -> None:
    """Has the modules whose local tensors replicate() has taken compute with DTensors."""
    by_root = [(root, root.__dict__.pop(_LOCALIZED, [])) for root in modules]
    every = [place for _, places in by_root for place in places]
    try:
        check_ranks(every, modules, mesh_info.mesh.mesh.flatten().tolist() if every else (), "replicate")
    except TypeError:
        put_back(every)
        raise
    for root, places in by_root:
        distribute_in_forward(root, places)
    original(state, params, modules, mesh_info, *arguments, **options)


_LOCALIZED = "_shardwise_localized"


def _ranks(options: Mapping[str, Any]) -> list[int]:
    """The ranks over which DistributedDataParallel averages."""
    mesh = options.get("device_mesh")
    if mesh is not None and options.get("process_group") is None:
        return mesh.mesh.flatten().tolist()
    return dist.get_process_group_ranks(options.get("process_group"))


@contextlib.contextmanager
def _localized(places: list[Place]) -> Iterator[None]:
    """Puts the DTensors back if the block fails."""
    localize(places)
    try:
        yield
    except BaseException:
        put_back(places)
        raise


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
