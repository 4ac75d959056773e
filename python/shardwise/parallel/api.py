"""parallelize_module: shards a model by a plan of module names."""

import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch

from torch import nn

from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.dtensor import DTensor
from shardwise.forward_scope import open_around_forward
from shardwise.module_tensors import Place, by_tensor, places_of
from shardwise.parallel.style import ParallelStyle

Plan = ParallelStyle | Mapping[str, ParallelStyle]


def parallelize_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: Plan | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Shards `module` in place by `parallelize_plan` and returns it.

        parallelize_module(model, mesh["tp"], {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()})

    The plan is one style, for `module` itself, or a dict of styles by the names of submodules. Each part of a name between dots may contain
    wildcards (`*`, `?`, `[ab]`); "" names `module`. `src_data_rank`: the coordinate of the rank whose parameters are sent to the others.
    None: each rank takes its part of its own parameters, and nothing is sent. A parameter that two modules share stays shared if both give it
    the same layout; otherwise a warning names it.

    Within a forward of the module, plain tensors count as replicas, as distribute_module() describes.

    Collective over the mesh; the styles of this module need a mesh of one dim. Raises ValueError for names that match no submodule, before
    anything is sharded, and TypeError for a plan of another type.

    >>> from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.ReLU(), torch.nn.Linear(30, 8))
    >>> model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    >>> model[0].weight.placements, model[2].weight.placements, model(torch.ones(2, 8)).shape
    ((Shard(0),), (Shard(1),), torch.Size([2, 8]))
    """
    mesh = mesh_or_current(device_mesh)
    if parallelize_plan is None:
        warnings.warn(
            "[parallelize_module] No parallelize_plan is provided: nothing is sharded. Pass a style, or styles by names.",
            stacklevel=2,
        )
        return module
    applied = list(_resolved(module, parallelize_plan))
    places = [place for place in places_of(module) if isinstance(place.original, nn.Parameter)]
    for submodule, style in applied:
        style.src_data_rank = src_data_rank
        style._apply(submodule, mesh)
    _tie([group for group in by_tensor(places) if len(group) > 1])
    open_around_forward(module)
    return module


def _resolved(module: nn.Module, plan: object) -> Iterator[tuple[nn.Module, ParallelStyle]]:
    """Each style with the module that it is for. Raises ValueError, TypeError."""
    if not isinstance(plan, Mapping):
        yield module, _style(plan)
        return
    for path, style in plan.items():
        found = _matches(module, path)
        if not found:
            known = [name for name, _ in module.named_modules() if name]
            raise ValueError(
                f"[parallelize_module] the plan names '{path}', and {type(module).__name__} has no such submodule. It has "
                f"{', '.join(known[:20]) or 'none'}{', ...' if len(known) > 20 else ''}."
            )
        for submodule in found:
            yield submodule, _style(style)


def _style(style: object) -> ParallelStyle:
    if callable(getattr(style, "_apply", None)) and not isinstance(style, nn.Module):
        return style  # type: ignore[return-value]
    raise TypeError(
        f"[parallelize_module] Expect a ParallelStyle, or a dict of them by module names, for parallelize_plan: "
        f"{type(style).__name__} found!"
    )


def _matches(module: nn.Module, path: str) -> list[nn.Module]:
    """The submodules whose names fit `path`, part by part."""
    found = [module]
    for part in path.split(".") if path else []:
        found = [child for parent in found for name, child in parent.named_children() if fnmatch(name, part)]
    return found


def _tie(shared: list[list[Place]]) -> None:
    """Ties the parameters again that were one before, if they are laid out alike. Warns of the others."""
    for places in shared:
        now = [place.tensor for place in places]
        layouts = [(each.device_mesh, each.placements) if isinstance(each, DTensor) else None for each in now]
        if all(layout == layouts[0] for layout in layouts):
            for place in places:
                place.tensor = now[0]
        else:
            names = " and ".join(place.path for place in places)
            warnings.warn(
                f"[parallelize_module] {names} were one parameter and are laid out differently now: each is "
                "trained on its own. Give them styles that lay them out alike to keep them one.",
                stacklevel=3,
            )
