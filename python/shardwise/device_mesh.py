"""Meshes: ranks in an n-D grid, with a process group along each dim."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from math import prod
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import device_mesh as torch_device_mesh
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import mesh_or_current, mesh_or_world
from shardwise._torch_groups import (
    BackendOverride,
    given_groups_of,
    is_rank,
    over_groups,
    overridden_groups,
    overrides_by_dim,
)
from shardwise._torch_versions import layout_of_dims, mesh_layout

__all__ = ["DeviceMesh", "init_device_mesh", "mesh_or_current", "mesh_or_world"]

P = ParamSpec("P")
T = TypeVar("T")


def _reading_ranks(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run outside of FakeTensorMode and of a dry run, because the ranks of a mesh are always real numbers."""

    @wraps(function)
    def with_values(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return with_values


class _MeshType(type(_C.DeviceMesh), type(TorchDeviceMesh)):  # type: ignore[misc]
    """The metaclass of a class derived from both pybind11's and torch's mesh."""


class DeviceMesh(_C.DeviceMesh, TorchDeviceMesh, metaclass=_MeshType):
    """The ranks of the program, or some of them, in an n-D grid with a process group along each dim.

    It is also a torch.distributed.device_mesh.DeviceMesh: torch's functional collectives and other libraries accept it.

    `mesh`: global ranks in any order (nested lists or an integer tensor); shards are given to ranks in that order. A rank outside the mesh
    may also hold the object; it has no part of tensors on the mesh. Equal meshes are equal objects, and communicate over the same groups.
    `backend_override`: per mesh dim a backend, its options, or both, or None. The mesh then has separate groups along these dims, and an operator
    cannot mix its tensors with those of another mesh of the same ranks. It changes nothing for a dim of one rank. With `_init_backend=False` the
    mesh has no groups, and making it is not collective: it knows ranks, coordinates and the layouts of tensors, and raises an error when it has
    to communicate.

    Collective over the world if a group is new: every rank must make the mesh, with the same arguments. Raises ValueError for
    duplicate or unknown ranks and names that do not fit.

    >>> grid = sw.DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    >>> grid.shape, grid.size("tp"), grid.get_coordinate()
    ((2, 2), 2, (0, 0))
    >>> grid["tp"].mesh  # the row that this rank is in
    tensor([0, 1], ...)
    """

    @_reading_ranks
    def __init__(
        self,
        device_type: str,
        mesh: torch.Tensor | Sequence[object],
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[BackendOverride | None] | None = None,
        _init_backend: bool = True,
        _is_by_all: bool = True,
    ) -> None:
        _init_backend = _init_backend and not _C.are_groups_absent()
        groups = None
        if backend_override and _init_backend:
            n_dims = torch.as_tensor(mesh, device="cpu").dim()
            if len(backend_override) != n_dims:
                raise ValueError(
                    f"[device_mesh] backend_override has {len(backend_override)} entries for a mesh of {n_dims} dims. Give one per dim, and "
                    "None for a dim with the world's backend."
                )
            # All ranks first make the ordinary groups. In the block below, only members would make those that are not overridden.
            _C.DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names)
            groups = overridden_groups(mesh, backend_override)
        with over_groups(groups) if _init_backend else _C.without_groups():
            super().__init__(device_type, mesh, mesh_dim_names=mesh_dim_names, _is_by_all=_is_by_all)
        self._register()

    @classmethod
    @_reading_ranks
    def _of(cls, handle: _C.MeshHandle) -> "DeviceMesh":
        """Makes the Python object of a mesh that has none. C++ calls it to give out a mesh."""
        self = cls.__new__(cls)
        _C.DeviceMesh.__init__(self, handle)
        self._register()
        return self

    def _register(self) -> None:
        self._slices: dict[tuple[str, ...], DeviceMesh] = {}  # keeps them: C++ gives out these objects
        self._pg_registry: dict[str, ProcessGroup] = {}  # groups that compiled functions return
        super()._register()

    @property
    @_reading_ranks
    def mesh(self) -> torch.Tensor:
        """The ranks as an int32 tensor of the mesh's shape."""
        return super().mesh

    # The attributes that torch's own functions read of a mesh.
    _device_type: Any = _C.DeviceMesh.device_type
    _mesh_dim_names: Any = _C.DeviceMesh.mesh_dim_names
    _root_mesh: Any = _C.DeviceMesh._root_mesh
    _flatten_mapping: Any = property(lambda self: {name: self[name] for name in self._flattened()})
    _rank: Any = property(_C.DeviceMesh.get_rank)
    _coordinate_on_dim: Any = property(_C.DeviceMesh.get_coordinate)
    _flatten_rank_map: Any = property(lambda self: tuple(self._rank_map.tolist()))
    _thread_id = _hash = None
    _preserve_rank_order = False  # torch 2.15

    @property
    @_reading_ranks
    def _rank_map(self) -> torch.Tensor:  # type: ignore[override]
        return self._get_root_mesh().mesh.flatten()

    @property
    def _layout(self) -> Any:  # type: ignore[override]
        root = self._root_mesh
        if root is None:
            return mesh_layout(self.shape)
        names = root.mesh_dim_names
        return layout_of_dims(root._layout, [[names.index(dim) for dim in dims] for dims in self._dims_of_root()])

    @property
    def _dim_group_names(self) -> list[str]:  # type: ignore[override]
        """The names of this rank's groups along each dim; empty outside the mesh."""
        if self.get_coordinate() is None:
            return []
        return [group.group_name for group in self.get_all_groups() if group is not None]

    get_group: Any = _C.DeviceMesh.get_group
    get_local_rank: Any = _C.DeviceMesh.get_local_rank
    _concatenate: Any = staticmethod(_reading_ranks(_C.DeviceMesh._concatenate))

    def get_all_groups(self) -> list[ProcessGroup | None]:  # type: ignore[override]
        """torch.distributed's process groups along each dim through this rank."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    @_reading_ranks
    def __getitem__(self, mesh_dim_names: str | Sequence[str]) -> "DeviceMesh":
        """The mesh of the named dims, or flattened ones, that contains this rank. Collective as making a mesh is.

        Raises KeyError for a name that no dim has, and RuntimeError if dims have no names.
        """
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self.mesh_dim_names:
            return self
        part: DeviceMesh = super().__getitem__(names)
        if part._root_mesh is not None:  # a root would hold its slice, and the slice its root
            self._slices[names] = part
        return part

    @_reading_ranks
    def _every_slice(self) -> torch.Tensor:
        """The ranks of all slices of the root like this one, one after another. All ranks know them."""
        root = self._root_mesh
        return self.mesh[None] if root is None else _C.mesh_slices(root.mesh, root.mesh_dim_names, self._dims_of_root())

    @_reading_ranks
    def _flatten(
        self, mesh_dim_name: str | None = None, backend_override: BackendOverride | None = None
    ) -> "DeviceMesh":
        """The mesh of the same ranks in one dim. The root mesh knows it by its name.

        Raises ValueError if that name is taken, and RuntimeError if dims have no names.
        """
        root: Any = self._get_root_mesh()
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ())
        is_new = name not in (*(root.mesh_dim_names or (name,)), *root._flattened())
        groups = None
        if is_new and backend_override is not None and self._has_groups:
            groups = overridden_groups(self._every_slice().flatten(1), [None, backend_override])
        with over_groups(groups):
            return super()._flatten(name)

    @_reading_ranks
    def _unflatten(  # type: ignore[override]
        self,
        dim: int | str,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str],
        backend_override: Mapping[int | str, BackendOverride] | None = None,
    ) -> "DeviceMesh":
        """The mesh of the same ranks with dims of these sizes and names in place of `dim`. Collective over the world, as making a mesh is.

        Slices of several such meshes are slices of one mesh if their ranks and names are. Raises ValueError if `dim` does not exist or has not the
        product of these sizes, and RuntimeError if not every dim has a name.
        """
        names = self.mesh_dim_names or ()
        if isinstance(dim, str) and dim not in names:
            raise ValueError(
                f"[device_mesh] there is no dim {dim!r} in {self}. Use one of its names, or a dim in [0, {self.ndim})."
            )
        at = names.index(dim) if isinstance(dim, str) else dim
        overrides = overrides_by_dim(backend_override or {}, mesh_dim_names)
        result: DeviceMesh = super()._unflatten(at, mesh_sizes, mesh_dim_names)
        if not backend_override or not result._has_groups:
            return result
        every = self._every_slice().reshape(-1, *result.shape)
        with over_groups(overridden_groups(every, [None] * (at % self.ndim + 1) + overrides)):
            return super()._unflatten(at, mesh_sizes, mesh_dim_names)

    @classmethod
    @_reading_ranks
    def from_group(  # type: ignore[override]
        cls,
        group: ProcessGroup | Sequence[ProcessGroup],
        device_type: str,
        mesh: torch.Tensor | Sequence[object] | None = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> "DeviceMesh":
        """A mesh that uses existing process groups. `group`: one group for a 1-D mesh of its ranks, or a list of one group per dim of `mesh`.

        The members of the mesh must call it. If `mesh` has several dims and does not contain all ranks of the world, they make one more group,
        of all members. An operator cannot mix tensors on this mesh with those of another mesh of the same ranks. Raises ValueError if groups and
        ranks do not fit.
        """
        if mesh is None:
            if not isinstance(group, ProcessGroup):
                raise ValueError("[device_mesh] Must pass mesh if passing multiple ProcessGroups: the ranks by dims.")
            mesh = dist.get_process_group_ranks(group)
        groups = [group] if isinstance(group, ProcessGroup) else list(group)
        with over_groups(given_groups_of(groups, torch.as_tensor(mesh, device="cpu"))):
            return cls(device_type, mesh, mesh_dim_names=mesh_dim_names, _is_by_all=False)

    def __exit__(self, *error: Any) -> None:
        if not torch_device_mesh._mesh_resources.mesh_stack:
            raise ValueError(f"[device_mesh] {self} is left, but no mesh was entered on this thread. Use `with mesh:`.")
        super().__exit__(*error)

    __eq__ = _C.DeviceMesh.__eq__
    __hash__ = _C.DeviceMesh.__hash__

    @_reading_ranks
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the ranks as numbers, the meshes that this one is a slice of, this rank, and the number of ranks."""
        own = (self.device_type, self.mesh.tolist(), self.mesh_dim_names)
        place = (self.get_rank(), self._world_size())
        families, root = self._families(), self._root_mesh
        if not families and root is not None:
            families = [(root.mesh.tolist(), root.mesh_dim_names, self.mesh_dim_names or (), self._dims_of_root())]
        return (rebuild_related, (*own, families, place)) if families else (rebuild_mesh, (*own, place))


@_reading_ranks
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[int | str, BackendOverride] | None = None,
) -> DeviceMesh:
    """The mesh of ranks 0, 1, 2, ... in row-major order. Collective over the world.

    Under torchrun it initialises torch.distributed if the program has not done so. `backend_override`: by dim number or name, a backend, its
    options, or both; the mesh then has separate groups along this dim. Raises ValueError if the world has fewer ranks than the mesh, and
    RuntimeError for a device with an index and if the number of names is not the number of dims.

    >>> grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    >>> grid
    DeviceMesh((dp=2, tp=2), 'cpu')
    >>> grid.mesh.tolist()
    [[0, 1], [2, 3]]
    """
    _check_mesh_arguments(device_type, mesh_shape, mesh_dim_names)
    ranks = torch.arange(prod(mesh_shape), device="cpu").view(tuple(mesh_shape))
    overrides = overrides_by_dim(backend_override, mesh_dim_names or [], len(mesh_shape)) if backend_override else None
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=overrides)


def _check_mesh_arguments(device_type: str, mesh_shape: Sequence[int], names: Sequence[str] | None) -> None:
    if ":" in device_type:
        raise RuntimeError(
            f"[device_mesh] Device type with index is not supported: {device_type!r}. A mesh spans devices: "
            f"use {device_type.partition(':')[0]!r}."
        )
    if names is None:
        return
    if len(set(names)) < len(names):
        raise RuntimeError(f"[device_mesh] Each mesh_dim_name must be unique. They are {list(names)}.")
    if len(names) != len(mesh_shape):
        raise RuntimeError(
            f"[device_mesh] mesh_shape and mesh_dim_names should have same length! They are {list(mesh_shape)} and {list(names)}."
        )


Ranks: TypeAlias = torch.Tensor | Sequence[object]  # the ranks of a mesh: numbers in files, tensors in older files
Place: TypeAlias = tuple[int, int] | None  # a rank and the number of ranks; None in older files


def _in_world_of(place: Place) -> AbstractContextManager[Any]:
    """A `with` block in which a mesh is unpickled in this process's world. A process that is no rank unpickles it without groups, as the
    rank that saved it."""
    return nullcontext() if place is None or is_rank() else _C.without_groups(*place)


def rebuild_mesh(
    device_type: str, mesh: Ranks, mesh_dim_names: Sequence[str] | None, place: Place = None
) -> DeviceMesh:
    """Unpickles a mesh: the same grid in the current world, and without groups in a process that is no rank."""
    with _in_world_of(place):
        return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names or None)


def rebuild_related(
    device_type: str,
    mesh: Ranks,
    mesh_dim_names: tuple[str, ...] | None,
    families: Sequence[tuple[Ranks, tuple[str, ...], tuple[str, ...], tuple[tuple[str, ...], ...] | None]],
    place: Place = None,
) -> DeviceMesh:
    """Unpickles a mesh that was made by itself and as a slice, or as a slice of several meshes. All of these are made, on all ranks."""
    made: list[DeviceMesh | None] = []  # keeps them, so that the mesh is one of them
    with _in_world_of(place):
        for root, root_names, names, dims in families:
            if dims is not None:
                made.append(_this_ranks_slice(device_type, root, root_names, names, dims))
            elif _is_in_world(device_type, root):
                made.append(rebuild_mesh(device_type, root, root_names))
        return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _is_by_all=False)


def _this_ranks_slice(
    device_type: str, root: Ranks, root_names: tuple[str, ...], names: tuple[str, ...], dims: Sequence[tuple[str, ...]]
) -> DeviceMesh | None:
    """The slice of `root` that contains this rank. If `root` has ranks outside of this world, only the slices inside it are made; None if there
    are none."""
    if _is_in_world(device_type, root):
        whole = DeviceMesh(device_type, root, mesh_dim_names=root_names)
        for name, of_root in zip(names, dims, strict=True):
            if of_root != (name,):
                whole[of_root]._flatten(name)
        return whole[names]
    here = [part for part in _C.mesh_slices(root, root_names, dims) if _is_in_world(device_type, part)]
    return _C.mesh_among(device_type, torch.stack(here), names) if here else None


def _is_in_world(device_type: str, ranks: Ranks) -> bool:
    """Whether this world has all these ranks. The answer is the same on all ranks."""
    try:
        DeviceMesh(device_type, ranks, _init_backend=False)
    except ValueError:
        return False
    return True
