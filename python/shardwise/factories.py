"""Tensors made where they live: each rank fills only its own part.

`size` is the global one: integers, or one sequence of them. Without `placements` every rank has all of it; without
`device_mesh` the mesh of the innermost `with mesh:` counts. Pieces are on the mesh's device, whatever torch.device(...) block the call
stands in; a tensor without memory is one of torch's, given to distribute_tensor. Nothing is sent.
"""

from collections.abc import Callable, Sequence

import torch

from shardwise import _C
from shardwise._C import Placement
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor

__all__ = ["empty", "full", "linspace", "logspace", "ones", "rand", "randn", "zeros"]

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
    _check_layout(layout)
    return _C.empty(_dims(size), _dtype(dtype), device_mesh, placements, requires_grad)


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
    """`fill_value` everywhere; its dtype, where none is given. Raises ValueError for Partial placements.

    >>> sw.full((10, 3), 7, device_mesh=mesh, placements=[sw.Shard(0)]).sum().item()
    210
    """
    _check_layout(layout)
    dtype = dtype or torch.tensor(fill_value).dtype
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
    _check_layout(layout)
    return _C.full(_dims(size), 0, _dtype(dtype), device_mesh, placements, requires_grad)


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
    _check_layout(layout)
    return _C.full(_dims(size), 1, _dtype(dtype), device_mesh, placements, requires_grad)


def rand(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Uniform in [0, 1): the same tensor whatever the mesh and the placements.

    torch.manual_seed governs it: seed, and draw, alike on every rank. Raises ValueError for Partial placements and
    TypeError for a dtype that is not floating point.

    >>> x = sw.rand(10, 3, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> x.shape, bool((x >= 0).all() & (x < 1).all())
    (torch.Size([10, 3]), True)
    """
    _check_layout(layout)
    return _C.rand(_dims(size), _dtype(dtype), device_mesh, placements, requires_grad)


def randn(
    *size: Size,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """Normal with mean 0 and deviation 1, in all else as `rand`.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> x = sw.randn(10, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> y = sw.randn(10, device_mesh=mesh, placements=[sw.Replicate()])
    >>> torch.equal(x, y)  # values do not depend on the layout
    True
    """
    _check_layout(layout)
    return _C.randn(_dims(size), _dtype(dtype), device_mesh, placements, requires_grad)


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
    """`steps` values at equal distances from `start` to `end`, both included: those of torch.linspace.

    `start` and `end` are numbers or tensors without dims. Each rank computes all values for a moment, and keeps its own. Raises ValueError
    for Partial placements.

    >>> sw.linspace(0, 9, 10, device_mesh=mesh, placements=[sw.Shard(0, sizes=[1, 4, 0, 5])]).full_tensor()
    tensor([0., 1., 2., 3., 4., 5., 6., 7., 8., 9.])
    """
    return _spaced(torch.linspace, start, end, steps, (), dtype, layout, requires_grad, device_mesh, placements)


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
    """`base` to the power of `steps` exponents at equal distances from `start` to `end`, in all else as `linspace`.

    >>> sw.logspace(0, 3, 4, base=2, device_mesh=mesh, placements=[sw.Shard(0)]).full_tensor()
    tensor([1., 2., 4., 8.])
    """
    return _spaced(torch.logspace, start, end, steps, (base,), dtype, layout, requires_grad, device_mesh, placements)


def _spaced(
    function: Callable[..., torch.Tensor],
    start: Number,
    end: Number,
    steps: int,
    base: tuple[float, ...],
    dtype: torch.dtype | None,
    layout: torch.layout,
    requires_grad: bool,
    device_mesh: DeviceMesh | None,
    placements: Placements,
) -> DTensor:
    _check_layout(layout)
    if not isinstance(steps, int):
        raise TypeError(
            f"[{function.__name__}] steps is {steps!r}, of type {type(steps).__name__}. Give a whole number."
        )
    start, end = (each.item() if isinstance(each, DTensor) else each for each in (start, end))
    dtype = function(start, end, min(steps, 0), *base, dtype=dtype, device="cpu").dtype  # refuses less than no steps
    result = _C.full([steps], 0, dtype, device_mesh, placements, False)
    whole = function(start, end, steps, *base, dtype=dtype, device=result.device)
    result.copy_(DTensor.from_local(whole, result.device_mesh))
    result.requires_grad_(requires_grad)
    return result


def _dims(size: tuple[Size, ...]) -> list[int]:
    """One list of what is given as integers or as one sequence."""
    first = size[0] if size else ()
    return list(first) if isinstance(first, Sequence) else [int(n) for n in size]  # type: ignore[arg-type]


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


def _check_layout(layout: torch.layout) -> None:
    if layout != torch.strided:
        raise ValueError(f"[factories] layout {layout} cannot be distributed. Use torch.strided.")
