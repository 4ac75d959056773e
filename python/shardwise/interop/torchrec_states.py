"""State dicts of TorchRec's sharded modules as DTensors, and back. Values are aliased.

A table of a sharded module is a ShardedTensor or, with `output_dtensor`, a torch DTensor over a LocalShardsWrapper, whose placements differ between
ranks: only the offsets of its pieces can be trusted. A tensor may be absent on a rank that has no piece of it, as in the state of fused optimizers.
So the ranks gather once which parts of all tensors they hold.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from shardwise import _C
from shardwise._C import Replicate
from shardwise.device_mesh import DeviceMesh, init_device_mesh
from shardwise.dtensor import DTensor
from shardwise.interop.torch_tensors import from_torch, is_local_shards, is_torch_dtensor, shards_of
from shardwise.interop.when_imported import torchs_own
from shardwise.local_shards_wrapper import LocalShardsWrapper

Box = tuple[list[int], list[int]]  # offsets, sizes
Pieces = list[tuple[list[int], torch.Tensor]]  # offsets, values


@dataclass
class Held:
    """One rank's part of a tensor, described for the other ranks."""

    kind: Literal["pieces", "plain", "DTensor"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device_type: str
    boxes: list[Box]
    strides: list[int]  # of the first piece
    problem: str  # why the pieces cannot be of one tensor, or ""


def is_sharded_tensor(value: object) -> bool:
    """Whether `value` is a torch.distributed._shard.sharded_tensor.ShardedTensor."""
    module = sys.modules.get("torch.distributed._shard.sharded_tensor.api")
    return module is not None and isinstance(value, module.ShardedTensor)


def pieces_of(value: Any) -> Pieces | None:
    """(offsets, piece) of this rank's pieces that have elements, sorted by offsets; None if the value does not consist of pieces."""
    if is_sharded_tensor(value):
        pieces = [(list(shard.metadata.shard_offsets), shard.tensor) for shard in value.local_shards()]
    elif is_torch_dtensor(value) and is_local_shards(value._local_tensor):
        pieces = shards_of(value._local_tensor)
    else:
        return None
    return sorted((piece for piece in pieces if piece[1].numel() > 0), key=lambda piece: piece[0])


def wrapper_of(pieces: Pieces, dtype: torch.dtype) -> LocalShardsWrapper:
    """Our wrapper over the pieces. `dtype` is used if there are none."""
    return LocalShardsWrapper([piece.detach() for _, piece in pieces], [offsets for offsets, _ in pieces], dtype=dtype)


def held(value: Any) -> Held:
    """The description of this rank's part of any tensor."""
    pieces = pieces_of(value)
    of_all = value.metadata() if is_sharded_tensor(value) else None  # size() and dtype of a ShardedTensor warn
    shape, dtype = (value.shape, value.dtype) if of_all is None else (of_all.size, of_all.tensor_properties.dtype)
    found = Held("pieces", tuple(shape), dtype, "", [], [], "")
    if pieces is None:
        found.kind, found.device_type = ("DTensor" if is_torch_dtensor(value) else "plain"), value.device.type
        return found
    if pieces:
        first = pieces[0][1]
        found.dtype, found.device_type, found.strides = first.dtype, first.device.type, list(first.stride())
    found.boxes = [(offsets, list(piece.shape)) for offsets, piece in pieces]
    try:
        wrapper_of(pieces, found.dtype)
    except (TypeError, ValueError) as error:
        found.problem = str(error)
    return found


def difference(all_held: Mapping[int, Held | None]) -> str:
    """Why the parts of the ranks are not of one tensor; "" if they are. `all_held`: the parts by rank."""
    there = [(rank, held) for rank, held in all_held.items() if held is not None]
    for rank, held in there:
        first_rank, first = there[0]
        if held.problem:
            return f"rank {rank}: {held.problem}"
        if (held.kind, held.shape) != (first.kind, first.shape):
            return (
                f"rank {first_rank} has a tensor of kind {first.kind} and shape {list(first.shape)}, rank {rank} one of kind "
                f"{held.kind} and shape {list(held.shape)}. Give all ranks' parts of one tensor."
            )
    holders = [(rank, held) for rank, held in there if held.boxes or held.kind != "pieces"]
    for rank, held in holders:
        first_rank, first = holders[0]
        if (held.dtype, held.device_type) != (first.dtype, first.device_type):
            return (
                f"rank {first_rank} has {first.dtype} on {first.device_type}, rank {rank} {held.dtype} on {held.device_type}. "
                "Convert one of them."
            )
    absent = [rank for rank, held in all_held.items() if held is None]
    if absent and first.kind != "pieces":
        return f"rank {absent[0]} lacks it, and it is not sharded. Give it on all ranks."
    return ""


Path = tuple[Any, ...]


def from_torchrec(state_dict: Mapping[str, Any], device_mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """Converts the state dict of a TorchRec module, or of its fused optimizer: the result has a DTensor for each tensor, in the same memory.

    Each table, sharded by rows, columns or cells of a grid, or whole on one rank, gets the exact placements of its pieces, also on ranks
    without a piece: Shard(0) or Shard(1), with sizes if these are uneven, otherwise EnumerableShard. Plain tensors must be equal on all ranks,
    and become replicated DTensors. torch's own DTensors keep their mesh, as from_torch does. Other values do not change. Dicts may be nested.

    `device_mesh`: 1-D; default: all ranks. Collective over it: one message of sizes and offsets for the whole dict.
    Raises ValueError on all ranks, naming every tensor that does not fit: shapes, dtypes or kinds that differ between ranks, pieces that
    overlap or leave holes, and plain tensors that are missing on a rank.

    >>> from shardwise.sharded_tensor import to_sharded_tensor
    >>> from shardwise.interop import from_torchrec
    >>> table = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> theirs = {"table": to_sharded_tensor(table)}  # as a TorchRec module's state_dict() has it
    >>> from_torchrec(theirs)["table"].placements
    (Shard(0),)
    """
    return _nested(_converted("from_torchrec", state_dict, device_mesh))


def to_torchrec(state_dict: Mapping[str, Any], like: Mapping[str, Any], device_mesh: DeviceMesh | None = None) -> Any:
    """The reverse of from_torchrec: converts `state_dict` to ShardedTensors, torch DTensors over local shards, or plain tensors.

    `like`: the state dict of the module that will load the result; the values of the result have its kinds and shards. DTensors that have
    this layout already keep their memory; others are redistributed, one after the other. Entries that `like` does not have on this rank are
    not in the result. Values that are not tensors come from `state_dict`.

    Collective over `device_mesh`, as from_torchrec. Raises ValueError on all ranks, before anything moves, naming every tensor that is
    missing, extra or of another shape or dtype.

    >>> from shardwise.sharded_tensor import to_sharded_tensor
    >>> from shardwise.interop import to_torchrec
    >>> table = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> theirs = {"table": to_sharded_tensor(table)}  # as a TorchRec module's state_dict() has it
    >>> back = to_torchrec({"table": table * 2}, like=theirs)["table"]
    >>> back.local_shards()[0].tensor[0]
    tensor([2., 2.])
    """
    values, models = _flattened(state_dict), _flattened(like)
    result = {path: values.get(path, model) for path, model in models.items()}
    for path, moved, _ in _laid_out("to_torchrec", values, like, device_mesh):
        if path in models:
            result[path] = _as_torchrecs(moved, models[path])
    return _nested(result)


def copy_to_torchrec(
    state_dict: Mapping[str, Any], like: Mapping[str, Any], device_mesh: DeviceMesh | None = None
) -> None:
    """Copies the tensors of `state_dict` into those of `like`, the state dict of a module: its tables change in place.

    Layouts may differ: tensors are redistributed one after the other. A tensor that is in the same memory is not copied. It is collective and
    raises errors as to_torchrec does; after an error nothing has been written.

    >>> from shardwise.sharded_tensor import to_sharded_tensor
    >>> from shardwise.interop import copy_to_torchrec
    >>> table = sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])
    >>> theirs = {"table": to_sharded_tensor(table)}  # as a TorchRec module's state_dict() has it
    >>> copy_to_torchrec({"table": table * 2}, theirs)
    >>> theirs["table"].local_shards()[0].tensor[0]
    tensor([2., 2.])
    """
    with torch.no_grad():
        for _, moved, target in _laid_out("copy_to_torchrec", _flattened(state_dict), like, device_mesh):
            for own, new in zip(_C.detached_pieces(target, "copy_"), _C.detached_pieces(moved, "copy_"), strict=True):
                if own.data_ptr() != new.data_ptr():
                    own.copy_(new)


def _flattened(state: Mapping[str, Any], prefix: Path = ()) -> dict[Path, Any]:
    flat: dict[Path, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            flat |= _flattened(value, (*prefix, key)) or {(*prefix, key): {}}
        else:
            flat[(*prefix, key)] = value
    return flat


def _nested(flat: Mapping[Path, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for path, value in flat.items():
        inner = state
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return state


def _name(path: Path) -> str:
    return "/".join(map(str, path))


def _all_gathered(mine: Any, mesh: DeviceMesh | None) -> dict[int, Any]:
    """The values of all ranks by rank, in the order of the mesh. Collective."""
    ranks: list[int] = list(range(dist.get_world_size())) if mesh is None else mesh.mesh.flatten().tolist()
    found: list[Any] = [(dist.get_rank(), mine)] * len(ranks)
    if len(ranks) > 1:
        dist.all_gather_object(found, found[0], group=None if mesh is None else mesh.get_group())
    by_rank = dict(found)
    return {rank: by_rank[rank] for rank in ranks}


def _check_mesh(op: str, mesh: DeviceMesh | None) -> None:
    if not dist.is_initialized():
        raise ValueError(
            f"[{op}] there is no process group, which TorchRec's tensors name ranks by. Start ranks with torchrun."
        )
    if mesh is not None and mesh.ndim != 1:
        raise ValueError(
            f"[{op}] the mesh {mesh} has {mesh.ndim} dims, but pieces are distributed over one. Give the dim along which tables are "
            'sharded, mesh["shard"] say.'
        )
    if mesh is not None and mesh.get_coordinate() is None:
        raise ValueError(
            f"[{op}] rank {dist.get_rank()} is outside the mesh {mesh}. Call it only on ranks of the mesh."
        )


def _raise_for(op: str, problems: Mapping[Path, str]) -> None:
    if problems:
        listed = "; ".join(f"{_name(path)}: {problem}" for path, problem in problems.items())
        raise ValueError(
            f"[{op}] {len(problems)} of the tensors cannot be taken: {listed}. Give tensors that fit together on all ranks."
        )


def _converted(op: str, state_dict: Mapping[str, Any], mesh: DeviceMesh | None) -> dict[Path, Any]:
    """The flat dict with DTensors. Tensors that are absent on this rank come last."""
    _check_mesh(op, mesh)
    flat = _flattened(state_dict)
    mine = {path: held(value) for path, value in flat.items() if isinstance(value, torch.Tensor)}
    by_rank: dict[int, dict[Path, Held]] = _all_gathered(mine, mesh)
    paths = dict.fromkeys(path for of_rank in by_rank.values() for path in of_rank)
    everywhere = {path: {rank: of_rank.get(path) for rank, of_rank in by_rank.items()} for path in paths}
    problems = {path: problem for path, all_held in everywhere.items() if (problem := difference(all_held))}
    _raise_for(op, problems)
    made: dict[Path, DTensor] = {}
    for path, all_held in everywhere.items():
        try:
            made[path] = _dtensor_of(flat.get(path), all_held, mesh)
        except ValueError as error:
            problems[path] = str(error)
    _raise_for(op, problems)
    return {path: made.get(path, value) for path, value in flat.items()} | made


def _dtensor_of(value: Any, all_held: Mapping[int, Held | None], mesh: DeviceMesh | None) -> DTensor:
    """The DTensor of the ranks' parts. `value`: this rank's part, or None."""
    there = [each for each in all_held.values() if each is not None]
    leader = next((each for each in there if each.boxes), there[0])
    on = mesh if mesh is not None else init_device_mesh(leader.device_type or "cpu", (len(all_held),))
    if leader.kind == "DTensor":
        ours: DTensor = from_torch(value.detach())
        return ours
    if leader.kind == "plain":
        return DTensor.from_local(value.detach(), on, [Replicate()])
    wrapper = wrapper_of(pieces_of(value) or [], leader.dtype)
    boxes = [[] if each is None else each.boxes for each in all_held.values()]
    return _C.from_known_shards(wrapper, on, leader.shape, leader.dtype, leader.strides, boxes)


def _laid_out(
    op: str, values: Mapping[Path, Any], like: Mapping[str, Any], mesh: DeviceMesh | None
) -> Iterator[tuple[Path, DTensor, DTensor]]:
    """(path, value laid out as in `like`, DTensor of the tensor in `like`) of each tensor, in the same order on all ranks. A value moves when the
    iterator reaches it; errors are raised before the first one moves."""
    targets = {path: value for path, value in _converted(op, like, mesh).items() if isinstance(value, DTensor)}
    given = {path: value for path, value in values.items() if isinstance(value, torch.Tensor)}
    mine = {path: _misfit(given.get(path), target) for path, target in targets.items()}
    mine |= {path: "extra: there is no such tensor in like=" for path in given if path not in targets}
    problems: dict[Path, str] = {}
    for rank, of_rank in _all_gathered({path: problem for path, problem in mine.items() if problem}, mesh).items():
        for path, problem in of_rank.items():
            problems.setdefault(path, f"{problem} (rank {rank})")
    _raise_for(op, problems)
    for path in sorted(targets, key=_name):
        yield path, _moved(given[path], targets[path]), targets[path]


def _misfit(value: torch.Tensor | None, target: DTensor) -> str:
    if value is None:
        return f"missing: it has shape {list(target.shape)}"
    if tuple(value.shape) != tuple(target.shape) or value.dtype != target.dtype:
        return f"{value.dtype} {list(value.shape)} is given where like= has {target.dtype} {list(target.shape)}"
    return ""


def _moved(value: torch.Tensor, target: DTensor) -> DTensor:
    """`value`, which must be equal on all ranks if it is plain, laid out as `target`."""
    ours: Any = value.detach()
    if not isinstance(ours, DTensor):
        ours = DTensor.from_local(ours, target.device_mesh)
    is_there = ours.device_mesh == target.device_mesh and ours.placements == target.placements
    moved: DTensor = ours if is_there else ours.redistribute(target.device_mesh, target.placements)
    return moved


def _as_torchrecs(tensor: DTensor, like: Any) -> Any:
    """The pieces of `tensor` in a value of the kind of `like`."""
    own = {tuple(o): piece for (o, _), piece in zip(_C.boxes_of(tensor), _C.to_pieces(tensor), strict=True)}

    def piece_like(shard: torch.Tensor, offsets: Any) -> torch.Tensor:
        return own[tuple(offsets)] if shard.numel() > 0 else shard

    if is_sharded_tensor(like):
        shards = [copy.copy(shard) for shard in like.local_shards()]
        for shard in shards:
            shard.tensor = piece_like(shard.tensor, shard.metadata.shard_offsets)
        return type(like)._init_from_local_shards_and_global_metadata(
            shards, like.metadata(), process_group=like._process_group, sharding_spec=like.sharding_spec()
        )
    if not is_torch_dtensor(like):
        return _C.to_pieces(tensor)[0]
    local = like._local_tensor
    if is_local_shards(local):
        offsets = [torch.Size(each) for each, _ in shards_of(local)]
        local = type(local)([piece_like(shard, each) for each, shard in shards_of(local)], offsets)
    else:
        (local,) = _C.to_pieces(tensor)
    from_local: Callable[..., Any] = torchs_own("torch.distributed.tensor").DTensor.from_local
    layout = (like.device_mesh, like.placements)
    return from_local(local, *layout, run_check=False, shape=like.shape, stride=like.stride())
