"""Pictures of layouts, meshes, modules and moves."""

from __future__ import annotations  # builds of the core alone have no _C.Figures

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import Layout, Placement, Plan, plan_redistribution
from shardwise.debug.picture import File, Picture, made, shown_picture
from shardwise.debug.places import Place, listed_tensors, own_rank, pieces_of, place_of, place_on
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import is_local_shards, is_torch_dtensor


class Drawing(TypedDict, total=False):
    """How a picture is drawn, as picture() describes."""

    format: str | None
    file: File | None
    color: bool
    max_width: int


def picture(
    shown: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
    **drawing: Unpack[Drawing],
) -> Picture:
    """A Picture of which rank holds what: print it, let a notebook show it, or save it.

    `shown` is one of these:

    - a DTensor (Shardwise's or torch's) or a Layout: the boxes at true coordinates, in slices if there are more than 2 dims, and a line per rank
    - a LocalShardsWrapper: the shards of this rank
    - a DeviceMesh: its ranks
    - a module: its parameters and buffers, the state of `optimizer` if given, and the bytes of each rank
    - a Plan: its steps

    >>> drawn = sw.debug.picture(sw.Layout((10, 7), (2, 2), [sw.Shard(0), sw.Shard(1)]))
    >>> str(drawn).splitlines()[0]
    '[10, 7] as [Shard(0), Shard(1)] on 2x2 ranks (0-3), 280 bytes'
    >>> drawn.draw("svg")[:5]
    '<svg '

    `dtype`: the dtype of a Layout; default: float32. `file`: the picture is written to it at once. `format`: a format of Picture; default: by
    the suffix of `file`, else "text". `color`, `max_width` (columns): options of text.

    Sends nothing. The picture is equal on every rank, except that of a LocalShardsWrapper. Raises TypeError for other values of `shown`, and
    ValueError for an unknown format or a file whose suffix contradicts `format`.
    """
    return made(_figures_of(shown, optimizer, dtype), **drawing)


def diff(
    source: Any,
    destination: Any,
    *,
    dtype: torch.dtype | None = None,
    objective: str = "bytes",
    links: Sequence[tuple[float, float]] | None = None,
    **drawing: Unpack[Drawing],
) -> Picture:
    """A Picture of the move that gives `source` the layout of `destination`: both layouts, bytes between ranks and per mesh dim, and boxes.

    `source`: a DTensor (Shardwise's or torch's) or a Layout. `destination`: the same, or placements on the mesh of `source`. The other
    arguments are those of plan_redistribution() and picture(). Nothing is sent.

    >>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> drawn = sw.debug.diff(x, [sw.Replicate()])
    >>> "[8, 4] as [Replicate()]" in str(drawn)
    True

    Raises ValueError where the shapes differ, TypeError for one placement that is not in a list, and as picture() does.
    """
    return made(_difference(source, destination, dtype, objective, links), **drawing)


def visualize_mesh(
    mesh: DeviceMesh | TorchDeviceMesh, *, header: str = "", format: str | None = None, file: File | None = None
) -> Picture:
    """Prints a picture of the ranks of `mesh`, or writes it to `file`, and returns it; see visualize_sharding().

    >>> drawn = sw.debug.visualize_mesh(sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    mesh...
    """
    return visualize_sharding(mesh, header, format=format, file=file)


def visualize_sharding(
    dtensor: Any,
    header: Any = "",
    use_rich: bool = False,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
    format: str | None = None,
    file: File | None = None,
) -> Picture:
    """Prints the picture() of `dtensor` under `header`, on the ranks that call it, and returns it.

    `dtensor`: anything that picture() takes. With a second tensor, layout or list of placements instead of `header`, it shows what moves between
    the two, as diff() does. Text is in colour with `use_rich`, and on terminals that have colours. With `file` the picture is written there
    instead of printed.

        visualize_sharding(x)                                   # text
        visualize_sharding(x, file="x.html")                    # a page
        visualize_sharding(model, optimizer=optimizer)          # bytes of every parameter, and per rank
        visualize_sharding(x, x.redistribute(mesh, [Replicate()]))

    >>> drawn = sw.visualize_sharding(sw.ones(4, 6, device_mesh=mesh, placements=[sw.Shard(0)]))
    [4, 6] as [Shard(0)] on 4 ranks (0-3), 96 bytes
    ...
      imbalance 1.00: every rank holds 24 bytes
    """
    if isinstance(header, str):
        figures, title = _figures_of(dtensor, optimizer, dtype), header
    elif optimizer is not None:
        raise TypeError(
            f"[picture] optimizer= is given with two layouts, the first of a {type(dtensor).__name__}: its state is shown beside the "
            "parameters of a module. Leave it out, or give the module alone."
        )
    else:
        figures, title = _difference(dtensor, header, dtype), ""
    return shown_picture(figures, title, use_rich, format, file)


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"[picture] dtype is {type(dtype).__name__}: bytes are counted by a torch.dtype. Give one such as torch.float32."
        )


def _figures_of(shown: Any, optimizer: torch.optim.Optimizer | None, dtype: torch.dtype | None) -> _C.Figures:
    _check_dtype(dtype)
    if optimizer is not None and not isinstance(shown, nn.Module):
        raise TypeError(
            f"[picture] optimizer= is given with a {type(shown).__name__}: its state is shown beside the parameters of a module. Give "
            "the module."
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"[picture] optimizer= is {type(optimizer).__name__}: the picture shows the state of a torch.optim.Optimizer. Give the "
            "optimizer."
        )
    if isinstance(shown, nn.Module):
        return _C.picture_of_tensors(listed_tensors(shown, optimizer), own_rank())
    if isinstance(shown, Plan):
        return _C.picture_of_plan(shown)
    if isinstance(shown, DTensor):
        return _C.picture_of_tensor(shown)
    if hasattr(shown, "mesh_dim_names") and hasattr(shown, "mesh"):
        names = list(shown.mesh_dim_names or ())
        return _C.picture_of_mesh(list(shown.mesh.shape), shown.mesh.flatten().tolist(), names)
    if is_local_shards(shown):
        return _C.picture_of_shards(own_rank(), pieces_of(shown), shown.dtype.itemsize)
    place = place_of(shown, dtype)
    return _C.picture_of_tensor(place.layout, place.dtype.itemsize, place.dim_names)


def _difference(
    source: Any,
    destination: Any,
    dtype: torch.dtype | None,
    objective: str = "bytes",
    links: Sequence[tuple[float, float]] | None = None,
) -> _C.Figures:
    """The picture of a move. torch's tensors are replaced by their layouts and the names of their mesh dims."""
    _check_dtype(dtype)
    here = place_of(source, dtype)
    there = Place(destination, here.dtype)
    if _is_placement(destination):
        raise TypeError(
            f"[picture] {destination} is one placement: a destination has one per mesh dim. Give a list: [{destination}]."
        )
    if isinstance(destination, Sequence) and all(map(_is_placement, destination)):
        if isinstance(here.layout, Layout) and is_torch_dtensor(source):
            there = place_on(source.device_mesh, source.shape, destination, source.dtype)
    elif not isinstance(destination, DTensor | Layout):
        there = place_of(destination, None)
    known = dtype if isinstance(source, DTensor) else here.dtype
    plan = plan_redistribution(here.layout, there.layout, dtype=known, objective=objective, links=links)
    return _C.difference_of_plan(plan, here.dim_names, there.dim_names)


def _is_placement(value: object) -> bool:
    return isinstance(value, Placement) or hasattr(value, "is_shard")
