"""Factories of DTensors: each rank makes only its own part. Nothing is sent.

`size`: the shape of the whole tensor, as integers or one sequence of them. Without `placements` the tensor is replicated; without
`device_mesh` the mesh is that of the innermost `with mesh:`. Pieces are on the mesh's device, also within a torch.device(...) block. For a
DTensor on meta, give a tensor on meta to distribute_tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwise import _C
from shardwise._C import Placement
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor

Size = int | Sequence[int]
Placements = Sequence[Placement] | None
Number = int | float | complex | torch.Tensor


def empty(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Uninitialised values.

    >>> sw.empty(10, 3, device_mesh=mesh, placements=[sw.Shard(0)]).to_local().shape
    torch.Size([3, 3])
    """
    return _C.empty(_dims(size), _dtype(dtype, layout), device_mesh, placements, requires_grad)


def full(
    size: Size,
    fill_value: bool | int | float | complex,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """A tensor of `fill_value`, by default in the dtype of that value. Raises ValueError for Partial placements.

    >>> sw.full((10, 3), 7, device_mesh=mesh, placements=[sw.Shard(0)]).sum().item()
    210
    """
    dtype = _dtype(dtype or torch.tensor(fill_value).dtype, layout)
    return _C.full(_dims((size,)), fill_value, dtype, device_mesh, placements, requires_grad)


def zeros(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Zeros. Raises ValueError for Partial placements.

    >>> sw.zeros(10, 3, device_mesh=mesh, placements=[sw.Shard(0)]).to_local().shape
    torch.Size([3, 3])
    """
    return _C.full(_dims(size), 0, _dtype(dtype, layout), device_mesh, placements, requires_grad)


def ones(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Ones. Raises ValueError for Partial placements.

    >>> sw.ones(10, 3, device_mesh=mesh, placements=[sw.Shard(0)]).sum().item()
    30.0
    """
    return _C.full(_dims(size), 1, _dtype(dtype, layout), device_mesh, placements, requires_grad)


def rand(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Uniform random numbers in [0, 1). They are the same on any mesh and under any placements.

    torch.manual_seed sets the seed: set the same seed on every rank, and call random functions in the same order on every rank. Raises
    ValueError for Partial placements and TypeError for a dtype that is not floating point.

    >>> x = sw.rand(10, 3, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> x.shape, bool((x >= 0).all() & (x < 1).all())
    (torch.Size([10, 3]), True)
    """
    return _C.rand(_dims(size), _dtype(dtype, layout), device_mesh, placements, requires_grad)


def randn(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Normal random numbers with mean 0 and standard deviation 1. Otherwise the same as `rand`.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> x = sw.randn(10, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> y = sw.randn(10, device_mesh=mesh, placements=[sw.Replicate()])
    >>> torch.equal(x, y)  # values do not depend on the layout
    True
    """
    return _C.randn(_dims(size), _dtype(dtype, layout), device_mesh, placements, requires_grad)


def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """`steps` values at equal distances from `start` to `end`, both included, as torch.linspace gives them.

    `start` and `end` are numbers or tensors without dims. Cost: each rank computes all values, and keeps its own. Raises ValueError
    for Partial placements.

    >>> sw.linspace(0, 9, 10, device_mesh=mesh, placements=[sw.Shard(0, sizes=[1, 4, 0, 5])]).full_tensor()
    tensor([0., 1., 2., 3., 4., 5., 6., 7., 8., 9.])
    """
    return _spaced(torch.linspace, (start, end, steps), dtype, layout, requires_grad, device_mesh, placements)


def logspace(
    start: Number,
    end: Number,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """`base` to the power of `steps` exponents at equal distances from `start` to `end`. Otherwise the same as `linspace`.

    >>> sw.logspace(0, 3, 4, base=2, device_mesh=mesh, placements=[sw.Shard(0)]).full_tensor()
    tensor([1., 2., 4., 8.])
    """
    return _spaced(torch.logspace, (start, end, steps, base), dtype, layout, requires_grad, device_mesh, placements)


def _spaced(
    function: Callable[..., torch.Tensor],
    arguments: tuple[Any, ...],
    dtype: torch.dtype | None,
    layout: torch.layout,
    requires_grad: bool,
    device_mesh: DeviceMesh | None,
    placements: Placements,
) -> DTensor:
    """`arguments`: start, end, steps, and the base if the function has one."""
    start, end, steps, *base = (each.item() if isinstance(each, DTensor) else each for each in arguments)
    _check_layout(layout)
    if not isinstance(steps, int):
        raise TypeError(
            f"[{function.__name__}] steps is {steps!r}, of type {type(steps).__name__}. Give a whole number."
        )
    # This raises an error if `steps` is negative.
    dtype = function(start, end, min(steps, 0), *base, dtype=dtype, device="cpu").dtype
    result = _C.full([steps], 0, dtype, device_mesh, placements, False)
    whole = function(start, end, steps, *base, dtype=dtype, device=result.device)
    result.copy_(DTensor.from_local(whole, result.device_mesh))
    result.requires_grad_(requires_grad)
    return result


def _dims(size: tuple[Size, ...]) -> list[int]:
    """The sizes, given as integers or as one sequence, as a list."""
    first = size[0] if size else ()
    return list(first) if isinstance(first, Sequence) else [int(n) for n in size]  # type: ignore[arg-type]


def _dtype(dtype: torch.dtype | None, layout: torch.layout) -> torch.dtype:
    _check_layout(layout)
    return dtype or torch.get_default_dtype()


def _check_layout(layout: torch.layout) -> None:
    if layout != torch.strided:
        raise ValueError(f"[factories] layout {layout} cannot be distributed. Use torch.strided.")
