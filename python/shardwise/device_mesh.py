"""Meshes: ranks in an n-D grid, with a process group along each dim."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from itertools import chain
from math import prod
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import device_mesh as torch_device_mesh
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise import _C
from shardwise._C import mesh_or_current, mesh_or_world
from shardwise._mesh_families import Family, MeshKey, note, related, root_key, slices
from shardwise._torch_groups import (
    BackendOverride,
    GroupsByRanks,
    group_of,
    is_known,
    is_rank,
    lines,
    over_groups,
    overridden_groups,
    overrides_of_several,
    with_everyone,
)
from shardwise._torch_versions import layout_of_dims, mesh_layout

__all__ = ["DeviceMesh", "init_device_mesh", "mesh_or_current", "mesh_or_world"]

P = ParamSpec("P")
T = TypeVar("T")


def _reading_ranks(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run outside of FakeTensorMode, because the ranks of a mesh are always real numbers."""

    @wraps(function)
    def with_values(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch._C._DisableTorchDispatch():
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
        _is_noted: bool = True,
    ) -> None:
        groups: GroupsByRanks | None = None
        _init_backend = _init_backend and not _C.are_groups_absent()
        overrides = overrides_of_several(mesh, backend_override) if backend_override else []
        if any(each is not None for each in overrides) and _init_backend:
            # All ranks first make the ordinary groups. In the block below, only members would make those that are not overridden.
            _C.DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names)
            groups = overridden_groups(mesh, overrides)
        with over_groups(groups) if _init_backend else _C.without_groups():
            super().__init__(device_type, mesh, mesh_dim_names=mesh_dim_names)
        self._tell_torch()
        if groups is not None or not _init_backend:
            self._keep_origin(given=groups, has_groups=_init_backend)
        if _is_noted:  # all ranks make this mesh; a part of another mesh is made by its members alone
            self._note_family()
        self._register()

    @classmethod
    @_reading_ranks
    def _of(cls, handle: _C.MeshHandle) -> "DeviceMesh":
        """Makes the Python object of a mesh that has none. C++ calls it to give out a mesh."""
        self = cls.__new__(cls)
        _C.DeviceMesh.__init__(self, handle)
        self._tell_torch()
        known = self._origin()
        if known is not None:
            root, dims, names, has_groups = known
            try:
                given = None if names is None else {ranks: group_of(name) for ranks, name in names.items()}
            except RuntimeError:  # they were destroyed
                given = {}
            self._keep_origin(root, dims, given, has_groups)
        self._register()
        return self

    @property
    @_reading_ranks
    def mesh(self) -> torch.Tensor:
        """The ranks as an int32 tensor of the mesh's shape."""
        return super().mesh

    def _tell_torch(self) -> None:
        """Sets the attributes that torch's own functions read of a mesh."""
        ranks = self.mesh.flatten()
        self._device_type = self.device_type
        self._mesh_dim_names = self.mesh_dim_names
        self._rank_map = ranks
        self._flatten_rank_map = tuple(ranks.tolist())
        self._layout = mesh_layout(self.shape)
        self._root_mesh = None
        self._flatten_mapping: dict[str, Any] = {}
        self._flattened_dims: dict[str, tuple[str, ...]] = {}
        self._slices: dict[tuple[str, ...], Any] = {}
        self._pg_registry: dict[str, ProcessGroup] = {}
        self._rank = self.get_rank()
        self._coordinate_on_dim = self.get_coordinate()
        self._thread_id = None
        self._preserve_rank_order = False  # torch 2.15
        self._hash = None
        self._dims: tuple[tuple[str, ...], ...] = tuple((name,) for name in self.mesh_dim_names or ())
        self._given: GroupsByRanks | None = None
        self._has_groups = True

    def _keep_origin(
        self,
        root: "DeviceMesh | None" = None,
        dims: tuple[tuple[str, ...], ...] = (),
        given: GroupsByRanks | None = None,
        has_groups: bool = True,
    ) -> None:
        """Notes the mesh that this one is a part of, and the groups it communicates over. C++ keeps both, too: tensors outlive this object.

        `dims`: for each dim, the dims of `root` that it consists of. `given`: groups of its own, to which its members may add; None: the mesh
        communicates over the groups that all ranks of the world make.
        """
        is_member = self.get_coordinate() is not None
        if given is not None and is_member and all(map(is_known, given.values())):
            given = None
        self._given, self._has_groups = given, has_groups
        if root is not None:
            self._root_mesh, self._dims = root, dims
            names = root.mesh_dim_names or ()
            self._layout = layout_of_dims(root._layout, [[names.index(dim) for dim in each] for each in dims])
            self._rank_map, self._flatten_rank_map = root._rank_map, root._flatten_rank_map
        group_names = None if given is None else {ranks: group.group_name for ranks, group in given.items()}
        self._set_origin(root, self._dims, group_names if is_member else None, has_groups)

    def _making(self, given: GroupsByRanks | None) -> AbstractContextManager[Any]:
        """A `with` block in which parts of this mesh are made: as over_groups() says, or without groups if this mesh has none."""
        return over_groups(given) if self._has_groups else _C.without_groups(self)

    def _key(self) -> MeshKey:
        return self.shape, tuple(self.mesh.flatten().tolist()), self.mesh_dim_names or ()

    @_reading_ranks
    def _note_family(self, names: tuple[str, ...] = (), dims: tuple[tuple[str, ...], ...] | None = None) -> None:
        """Notes that all ranks have made this mesh, or its slices of these `names` and `dims`, unless it has groups of its own or none."""
        if self._given is None and self._has_groups:
            note(self, Family(self.device_type, self._key(), names, dims))

    @property
    def _dim_group_names(self) -> list[str]:  # type: ignore[override]
        """The names of this rank's groups along each dim; empty outside the mesh."""
        if self.get_coordinate() is None:
            return []
        return [group.group_name for group in self.get_all_groups() if group is not None]

    def get_group(  # type: ignore[override]
        self, mesh_dim: int | str | None = None
    ) -> ProcessGroup | None:
        """torch.distributed's process group along `mesh_dim`, or of a flattened mesh; None on ranks outside the mesh. A 1-D mesh needs no
        `mesh_dim`. Raises RuntimeError if a mesh of several dims gets none, and for a mesh without groups."""
        if not self._has_groups:
            raise RuntimeError(
                f"[device_mesh] DeviceMesh process groups not initialized! {self} was made with _init_backend=False. Make it "
                "without that on all ranks."
            )
        flattened = self._get_root_mesh()._flatten_mapping.get(mesh_dim) if isinstance(mesh_dim, str) else None
        if flattened is not None:
            return flattened.get_group()
        self._check_named(mesh_dim)
        own = (self._given or {}).get((self.get_rank(),))
        return own if own is not None and self.size(mesh_dim) == 1 else super().get_group(mesh_dim)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's coordinate along `mesh_dim`. A 1-D mesh needs no `mesh_dim`; other meshes raise RuntimeError without it."""
        self._check_named(mesh_dim)
        return super().get_local_rank(mesh_dim)

    def _check_named(self, mesh_dim: int | str | None) -> None:
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(
                f"[device_mesh] {self} has {self.ndim} dims. Say which: Optional kwarg `mesh_dim` needs to be specified when "
                "device_mesh.ndim > 1."
            )

    def get_all_groups(self) -> list[ProcessGroup | None]:  # type: ignore[override]
        """torch.distributed's process groups along each dim through this rank."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    @_reading_ranks
    def __getitem__(self, mesh_dim_names: str | Sequence[str]) -> "DeviceMesh":
        """The mesh of the named dims, or flattened ones, that contains this rank. Collective as making a mesh is.

        Raises KeyError for a name that no dim has, and RuntimeError if dims have no names.
        """
        if not self.mesh_dim_names:
            raise RuntimeError(
                f"[device_mesh] Cannot slice a DeviceMesh without mesh_dim_names! {self} has none: give them to init_device_mesh."
            )
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self.mesh_dim_names:
            return self
        root: Any = self._get_root_mesh()
        if len(names) == 1 and names[0] in root._flatten_mapping:
            flat: DeviceMesh = root._flatten_mapping[names[0]]
            return flat
        own = self.mesh_dim_names
        by_name = [(name,) if name in own else root._flattened_dims.get(name, (name,)) for name in names]
        unknown = [dim for dims in by_name for dim in dims if dim not in own]
        if unknown:
            raise KeyError(
                f"[device_mesh] Invalid mesh_dim_names {names}: no mesh dim is called {', '.join(map(repr, unknown))}. The mesh has "
                f"{list(own)}."
            )
        if set(names) <= set(own):
            given = self._given_of(names)
            with self._making(given):
                part: DeviceMesh = super().__getitem__(names)
        else:
            part, given = self._merged(names, by_name)
        of_root = tuple(tuple(chain(*(self._dims[own.index(dim)] for dim in dims))) for dims in by_name)
        if part != root and given is None and root._slices.get(names) is not part:
            root._note_family(names, of_root)
        if part != self and part._root_mesh is None:
            part._keep_origin(root, of_root, given, self._has_groups)
            root._slices[names] = part  # keeps it alive: C++ gives out this object as the mesh of a tensor
        if part._root_mesh is not root and part._root_mesh == root:
            # The same mesh was made twice: both objects share their flattened meshes.
            for known in ("_flatten_mapping", "_flattened_dims"):
                getattr(part._root_mesh, known).update(getattr(root, known))
                setattr(root, known, getattr(part._root_mesh, known))
        return part

    def _merged(
        self, names: tuple[str, ...], by_name: Sequence[tuple[str, ...]]
    ) -> "tuple[DeviceMesh, GroupsByRanks | None]":
        """The slice along the dims `by_name`, with the dims of each flattened mesh merged into one, and the groups that it communicates over."""
        every = self[tuple(chain(*by_name))]
        given = self._given
        if given is not None:
            flattened: dict[str, Any] = self._get_root_mesh()._flatten_mapping
            parts = [flattened[name] for name in names if name in flattened]
            given = {line: group for mesh in (every, *parts) for line, group in (mesh._given or {}).items()}
        ranks = every.mesh.reshape([prod(map(every.size, dims)) for dims in by_name])
        return self._part(ranks, names, given), given

    def _part(self, ranks: torch.Tensor, names: tuple[str, ...], given: GroupsByRanks | None) -> "DeviceMesh":
        """A mesh of these ranks, made as _making() says by its members alone."""
        with self._making(given):
            return DeviceMesh(
                self.device_type, ranks, mesh_dim_names=names, _init_backend=self._has_groups, _is_noted=False
            )

    def _given_of(self, names: tuple[str, ...]) -> GroupsByRanks | None:
        """The groups of the slice along `names`, if this mesh has groups of its own. The members of the slice make a group of all its ranks here."""
        coordinate = self.get_coordinate()
        if self._given is None or coordinate is None:
            return self._given
        dims = [(self.mesh_dim_names or ()).index(name) for name in names]
        others = [dim for dim in range(self.ndim) if dim not in dims]
        ranks = self.mesh.permute(*others, *dims)[tuple(coordinate[dim] for dim in others)]
        groups = [group for dim in dims if (group := self.get_group(dim)) is not None]
        return with_everyone({tuple(dist.get_process_group_ranks(group)): group for group in groups}, ranks)

    @_reading_ranks
    def _flatten(
        self, mesh_dim_name: str | None = None, backend_override: BackendOverride | None = None
    ) -> "DeviceMesh":
        """The mesh of the same ranks in one dim. The root mesh knows it by its name.

        Raises ValueError if that name is taken, and RuntimeError if dims have no names.
        """
        if not self.mesh_dim_names:
            raise RuntimeError(
                f"[device_mesh] {self} has no mesh_dim_names to flatten it by. Give them to init_device_mesh."
            )
        root: Any = self._get_root_mesh()
        name = mesh_dim_name or "_".join(self.mesh_dim_names)
        if name in (root.mesh_dim_names or ()) and (name,) != self.mesh_dim_names:
            raise ValueError(
                f"[device_mesh] {name!r} already exists as a dim of {root}. Specify another valid mesh_dim_name."
            )
        if self.ndim == 1 and name == self.mesh_dim_names[0]:
            return self
        known: DeviceMesh | None = root._flatten_mapping.get(name)
        if known is not None:
            if known.mesh.tolist() != self.mesh.flatten().tolist():
                raise ValueError(
                    f"[device_mesh] a flattened mesh {name!r} of other ranks has been created before. Specify another valid "
                    "mesh_dim_name."
                )
            return known
        dims = self._dims_of_root()
        groups = self._given
        if groups is not None:  # one of them has all ranks of this mesh, unless the world is their group
            groups = {line: group for line, group in groups.items() if len(line) == self.size()}
        if backend_override is not None and self._has_groups:
            parts = slices(root.mesh, root.mesh_dim_names, [dims])
            groups = overridden_groups(
                parts, [None, backend_override]
            )  # for every part: other ranks make the groups of theirs
        flat = self._part(self.mesh.flatten(), (name,), groups)
        if groups is None:
            root._note_family((name,), (dims,))
        if flat._root_mesh is None and flat != root:
            flat._keep_origin(root, (dims,), groups, self._has_groups)
        root._flatten_mapping[name] = flat
        root._flattened_dims[name] = dims
        return flat

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
        names, sizes = list(self.mesh_dim_names or ([] if self.ndim > 1 else [""])), tuple(mesh_sizes)
        if len(mesh_dim_names) != len(sizes):
            raise RuntimeError(
                f"[device_mesh] mesh_sizes {list(sizes)} and mesh_dim_names {list(mesh_dim_names)} should have same length."
            )
        if not names:
            raise RuntimeError(f"[device_mesh] {self} has no mesh_dim_names. Give them to init_device_mesh.")
        if dim not in names and not (isinstance(dim, int) and -self.ndim <= dim < self.ndim):
            raise ValueError(
                f"[device_mesh] there is no dim {dim!r} in {self}. Use one of its names, or a dim in [0, {self.ndim})."
            )
        at = names.index(dim) if isinstance(dim, str) else dim % self.ndim
        if prod(sizes) != self.size(at):
            raise ValueError(
                f"[device_mesh] dim {dim!r} of {self} has {self.size(at)} ranks, and the sizes {list(sizes)} have the product {prod(sizes)}. "
                "Give sizes with the number of ranks as their product."
            )
        names[at : at + 1] = mesh_dim_names
        overrides = [None] * at + _by_dim(backend_override or {}, mesh_dim_names) + [None] * (self.ndim - at - 1)
        if self._given is not None or not self._has_groups:
            ranks = self.mesh.unflatten(at, sizes)
            given = self._given
            if given is not None:
                given = {**given, **overridden_groups(ranks, overrides_of_several(ranks, overrides))}
            part = self._part(ranks, tuple(names), given)
            part._keep_origin(given=given, has_groups=self._has_groups)
            return part
        root: Any = self._root_mesh
        every = self.mesh[None] if root is None else slices(root.mesh, root.mesh_dim_names, self._dims)
        return mesh_among(self.device_type, every.unflatten(at + 1, sizes), names, overrides)

    @staticmethod
    @_reading_ranks
    def _concatenate(device_mesh_list: Sequence["DeviceMesh"]) -> "DeviceMesh":  # type: ignore[override]
        """The mesh of the dims of all these slices of one mesh, in this order. Raises RuntimeError if there is no such mesh."""
        first, *others = device_mesh_list
        names = tuple(name for mesh in device_mesh_list for name in mesh.mesh_dim_names or ())
        root = root_of(first, others)
        if root is None or len(set(names)) < len(names):
            raise RuntimeError(
                f"[device_mesh] Cannot concatenate DeviceMeshes {', '.join(map(str, device_mesh_list))}: they are not slices of one mesh along "
                'different dims. Give slices of one mesh: mesh["dp"] and mesh["tp"].'
            )
        return root[names]

    def _dims_of_root(self) -> tuple[str, ...]:
        """The dims of the mesh that this one was sliced or flattened from."""
        return tuple(dim for dims in self._dims for dim in dims)

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
        groups = [group] if isinstance(group, ProcessGroup) else list(group)
        if mesh is None:
            if not isinstance(group, ProcessGroup):
                raise ValueError("[device_mesh] Must pass mesh if passing multiple ProcessGroups: the ranks by dims.")
            mesh = dist.get_process_group_ranks(groups[0])
        ranks = torch.as_tensor(mesh, device="cpu")
        if not groups or ranks.dim() != len(groups):
            raise ValueError(
                f"[device_mesh] Invalid mesh {ranks.tolist()} for ProcessGroup with ranks "
                f"{', '.join(str(dist.get_process_group_ranks(each)) for each in groups)}: got {len(groups)} ProcessGroups for a mesh of "
                f"{ranks.dim()} dims. Give one per dim."
            )
        for dim, each in enumerate(groups):
            members = dist.get_process_group_ranks(each)
            if members != sorted(members):
                raise ValueError(
                    f"[device_mesh] the group given for dim {dim} has the ranks {members}, which do not ascend. Make it with "
                    "sort_ranks=True; the mesh may have them in any order."
                )
            if members not in [sorted(line) for line in lines(ranks, dim)]:
                raise ValueError(
                    f"[device_mesh] Invalid mesh {ranks.tolist()} for ProcessGroup with ranks {members}, given for dim {dim}: these are not "
                    "the ranks along that dim. Give the group along each dim."
                )
        given = with_everyone({tuple(sorted(dist.get_process_group_ranks(each))): each for each in groups}, ranks)
        if all(map(is_known, given.values())):
            return cls(device_type, ranks, mesh_dim_names=mesh_dim_names, _is_noted=False)
        with over_groups(given):
            result = cls(device_type, ranks, mesh_dim_names=mesh_dim_names, _is_noted=False)
        result._keep_origin(given=given)
        return result

    def __enter__(self) -> "DeviceMesh":
        torch_device_mesh._mesh_resources.mesh_stack.append(self)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch_device_mesh._mesh_resources.mesh_stack.pop()

    __eq__ = _C.DeviceMesh.__eq__

    @_reading_ranks
    def __hash__(self) -> int:
        return hash((self.device_type, self.shape, tuple(self.mesh.flatten().tolist()), self.mesh_dim_names))

    @_reading_ranks
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the ranks as numbers, the meshes that this one is a slice of, this rank, and the number of ranks."""
        own = (self.device_type, self.mesh.tolist(), self.mesh_dim_names)
        place = (self.get_rank(), self._world_size())
        related_to = related(self, self._key()) if self._given is None and self._has_groups else []
        families = [(each.root_ranks().tolist(), each.root[2], each.names, each.dims) for each in related_to]
        if len(families) > 1:
            return rebuild_related, (*own, families, place)
        root: Any = self._root_mesh
        if not families and root is not None:
            families = [(root.mesh.tolist(), root.mesh_dim_names, self.mesh_dim_names or (), self._dims)]
        if not families or families[0][-1] is None:
            return rebuild_mesh, (*own, place)
        root_ranks, root_names, _, dims = families[0]
        return rebuild_slice, (*own, root_ranks, root_names, dims, place)


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
    overrides = _by_dim(backend_override, mesh_dim_names or [], len(mesh_shape)) if backend_override else None
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, backend_override=overrides)


def _by_dim(
    overrides: Mapping[int | str, BackendOverride], names: Sequence[str], n_dims: int | None = None
) -> list[BackendOverride | None]:
    """The override of each dim. Raises RuntimeError for a dim that does not exist or is given twice."""
    n_dims, names = len(names) if n_dims is None else n_dims, list(names)
    by_dim = {names.index(key) if key in names else key: value for key, value in overrides.items()}
    unknown = [key for key in by_dim if key not in range(n_dims)]
    if unknown or len(by_dim) < len(overrides):
        raise RuntimeError(
            f"[device_mesh] backend_override has keys {list(overrides)}: expected each of the {n_dims} dims at most once, by number or by its "
            f"name in {names}."
        )
    return [by_dim.get(dim) for dim in range(n_dims)]


def mesh_among(
    device_type: str,
    every: torch.Tensor,
    names: Sequence[str],
    overrides: Sequence[BackendOverride | None] | None = None,
) -> DeviceMesh:
    """The mesh that contains this rank, of the meshes of ranks `every[0]`, `every[1]`, ..., which have the same dim names. Collective over the
    world: all ranks make all these meshes."""
    if every.size(0) == 1:
        return DeviceMesh(device_type, every[0], mesh_dim_names=names, backend_override=overrides)
    rows = (f"others of {', '.join(names)}", *names)
    by_row = [None, *overrides] if overrides else None
    return DeviceMesh(device_type, every, mesh_dim_names=rows, backend_override=by_row)[tuple(names)]


@_reading_ranks
def root_of(mesh: DeviceMesh, others: Iterable[DeviceMesh]) -> DeviceMesh | None:
    """The mesh that `mesh` and all `others` are slices of, by their names. None if there is none. If one of them is flattened, its dim is a dim of
    the result.

    A mesh may be a slice of several meshes. Then each of them is tried, in the order in which they were made.
    """
    own: Any = mesh._get_root_mesh()
    others = list(others)
    if all(each is own or each._get_root_mesh() is own for each in others):
        # As most often: without a look at other meshes.
        first_dims = {
            name: dims[0]
            for each in (mesh, *others)
            for name, dims in zip(each.mesh_dim_names or (), each._dims, strict=True)
        }
        names = own.mesh_dim_names or ()
        if not others or set(first_dims) <= set(names):
            return own
        return own[tuple(sorted(first_dims, key=lambda name: names.index(first_dims[name])))]
    key = root_key(mesh, [each._key() for each in (mesh, *others)], first=own._key())
    if key is None or key == own._key():
        return own if key else None
    shape, ranks, names = key
    return DeviceMesh(mesh.device_type, torch.tensor(ranks).view(shape), mesh_dim_names=names)


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


def rebuild_slice(
    device_type: str,
    mesh: Ranks,
    mesh_dim_names: tuple[str, ...],
    root: Ranks,
    root_dim_names: tuple[str, ...],
    dims: tuple[tuple[str, ...] | str, ...],
    place: Place = None,
) -> DeviceMesh:
    """Unpickles a slice of another mesh, `root`. The groups of all such slices are made, because other ranks unpickle the other slices.

    `dims`: for each dim, the dims of `root` that it consists of; a flat list in older files.
    """
    by_dim: Any = [(each,) if isinstance(each, str) else tuple(each) for each in dims]
    if len(by_dim) != len(mesh_dim_names):
        by_dim = [tuple(dim for each in by_dim for dim in each)]
    families = [(root, root_dim_names, mesh_dim_names, tuple(by_dim))]
    return rebuild_related(device_type, mesh, mesh_dim_names, families, place)


def rebuild_related(
    device_type: str,
    mesh: Ranks,
    mesh_dim_names: tuple[str, ...] | None,
    families: Sequence[tuple[Ranks, tuple[str, ...], tuple[str, ...], tuple[tuple[str, ...], ...] | None]],
    place: Place = None,
) -> DeviceMesh:
    """Unpickles a mesh that was made by itself and as a slice, or as a slice of several meshes. All of these are made, on all ranks."""
    made: list[DeviceMesh | None] = []
    with _in_world_of(place):
        for root, root_names, names, dims in families:
            if dims is not None:
                made.append(_this_ranks_slice(device_type, root, root_names, names, dims))
            elif _is_in_world(device_type, root):
                made.append(rebuild_mesh(device_type, root, root_names))
        return _this_one(device_type, mesh, mesh_dim_names, made)


def _this_one(
    device_type: str, mesh: Ranks, names: tuple[str, ...] | None, made: list[DeviceMesh | None]
) -> DeviceMesh:
    """The mesh of `made` that has these ranks and names, or a new one."""
    ranks = torch.as_tensor(mesh, device="cpu").tolist()
    for each in made:
        if each is not None and each.mesh_dim_names == names and each.mesh.tolist() == ranks:
            return each
    return DeviceMesh(device_type, mesh, mesh_dim_names=names, _is_noted=False)


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
    ranks = torch.as_tensor(root, device="cpu")
    here = [part for part in slices(ranks, root_names, dims) if _is_in_world(device_type, part)]
    if not here:
        return None
    return mesh_among(device_type, torch.stack(here), names)


def _is_in_world(device_type: str, ranks: Ranks) -> bool:
    """Whether this world has all these ranks. The answer is the same on all ranks."""
    try:
        DeviceMesh(device_type, ranks, _init_backend=False)
    except ValueError:
        return False
    return True
