"""Full and staged state dicts: does for our DTensors what torch.distributed.checkpoint.state_dict does for torch's.

Its functions walk through state dicts by torch.distributed._state_dict_utils. The replacements here handle our tensors and leave everything else to
the original. Others copy our tensors for checkpoints that are written while training goes on (async_save), and name every entry in which a state dict
differs from the tensors that it is loaded into.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor, distribute_tensor, rebuild_dtensor
from shardwise.interop.torch_tensors import from_torch, is_torch_dtensor
from shardwise.local_shards_wrapper import LocalShardsWrapper
from shardwise.module_tensors import submodules_of

Function = Callable[..., Any]
State = dict[str, Any]


def full_state_dict(state_dict: Any, *, cpu_offload: bool = False, keep: bool = True) -> Any:
    """`state_dict` with our tensors gathered, one after the other, as plain ones. Tensors that share their pieces, as tied weights do, share the
    result. With `keep=False` this rank only takes part, and has None in their place.

    Collective over each tensor's mesh. Raises ValueError if this rank is to keep a tensor that lives on other ranks only.
    """
    known: dict[tuple[Any, ...], torch.Tensor] = {}

    def gather(path: str, tensor: DTensor) -> torch.Tensor | None:
        full = _full_tensor(path, tensor, cpu_offload, keep)
        if full is None or not (memory := _memory_of(tensor)):
            return full
        return known.setdefault((tensor.device_mesh, tensor.shape, tensor.stride(), tensor.placements, *memory), full)

    return _with(DTensor, state_dict, gather)


def _memory_of(tensor: DTensor) -> list[Any]:
    """The addresses of this rank's pieces and how they are read; [] on meta. Other ranks' answers may differ, so nothing that ranks do together may
    depend on it."""
    if tensor.is_meta:
        return []
    return [
        (piece.data_ptr(), piece.shape, piece.stride(), piece.dtype, piece.is_conj(), piece.is_neg())
        for piece in _C.detached_pieces(tensor, "state_dict")
        if piece.numel() > 0
    ]


def _full_tensor(path: str, tensor: DTensor, cpu_offload: bool, keep: bool) -> torch.Tensor | None:
    if tensor.device_mesh.get_coordinate() is None:
        if not keep:
            return None
        raise ValueError(
            f"[state_dict] {path} lives on {tensor.device_mesh}, and rank {tensor.device_mesh.get_rank()} has no part of it, so that "
            "a full state dict would lack it here. Redistribute it to a mesh of all ranks first, or save shards with "
            "torch.distributed.checkpoint.save."
        )
    full = _C.full_tensor(tensor.detach())
    if not keep:
        return None
    return full.cpu() if cpu_offload else full


def _with(kind: type, value: Any, change: Callable[[str, Any], Any], path: tuple[str, ...] = ()) -> Any:
    """A copy of nested dicts, lists and tuples with `change(path, item)` instead of each item of class `kind`."""
    if isinstance(value, kind):
        return change(".".join(path), value)
    if isinstance(value, Mapping):
        return {key: _with(kind, item, change, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with(kind, item, change, (*path, str(i))) for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def any_ours(values: Any) -> bool:
    return any(isinstance(value, DTensor) for value in pytree.tree_leaves(values))


def whole(values: Any) -> Any:
    """`values` with our tensors as whole plain ones; `values` itself if none is ours."""
    if not any_ours(values):
        return values
    return pytree.tree_map_only(DTensor, lambda tensor: tensor.detach().full_tensor(), values)


def gather_state_dict(
    original: Function,
    state_dict: State,
    *,
    pg: Any = None,
    cpu_offload: bool = False,
    ranks_only: Any = (),
    **options: Any,
) -> Any:
    if any_ours(state_dict):
        keep = not ranks_only or dist.get_rank(pg) in ranks_only
        state_dict = full_state_dict(state_dict, cpu_offload=cpu_offload, keep=keep)
    return original(state_dict, pg=pg, cpu_offload=cpu_offload, ranks_only=ranks_only, **options)


def take_plain_values(module: nn.Module) -> None:
    """Lets load_state_dict() of `module` take torch's DTensors, and plain values that are equal on all ranks, for our tensors."""
    for submodule in submodules_of(module):
        submodule._load_state_dict_pre_hooks[_HOOK_ID] = _TakesPlainValues(submodule)


_HOOK_ID = RemovableHandle(OrderedDict()).id


class _TakesPlainValues:
    """A hook of load_state_dict(), as register_load_state_dict_pre_hook() makes it, in a fifth of the time. A copy of the module has its own."""

    __slots__ = ("_module",)

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._module(),)

    def __call__(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        module = self._module()
        assert module is not None, (
            "[load_state_dict] the module of this hook is gone: copy.copy() shares hooks, copy.deepcopy() copies them"
        )
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            values = state_dict.get(prefix + name)
            if isinstance(tensor, DTensor) and isinstance(values, torch.Tensor):
                state_dict[prefix + name] = placed_as(values, tensor)


def placed_as(values: torch.Tensor, tensor: DTensor) -> torch.Tensor:
    """`values`, laid out as `tensor`: one of torch's DTensors, or a plain tensor that is equal on all ranks, for which nothing is sent.

    Values of another shape are returned as they are: the caller raises the error. If `tensor` is on meta, the values stay on the mesh's device,
    because they will be assigned.
    """
    if isinstance(values, DTensor) or values.shape != tensor.shape:
        return values
    if is_torch_dtensor(values):
        ours: DTensor = from_torch(cast(Any, values.detach()))
        return ours.redistribute(tensor.device_mesh, tensor.placements)
    here = values.detach().to(tensor.device_mesh.device_type if tensor.is_meta else tensor.device)
    return distribute_tensor(here, tensor.device_mesh, tensor.placements, src_data_rank=None)


def distribute_state_dict(
    original: Function, full_state_dict: State, local_state_dict: State, *arguments: Any, **options: Any
) -> None:
    """Lets every rank, which has all values, take its part of them."""
    ours = {
        key: tensor
        for key, tensor in local_state_dict.items()
        if isinstance(tensor, DTensor) and isinstance(full_state_dict.get(key), torch.Tensor)
    }
    if not ours:
        return original(full_state_dict, local_state_dict, *arguments, **options)
    rest = {key: value for key, value in full_state_dict.items() if key not in ours}
    original(rest, local_state_dict, *arguments, **options)
    for key, tensor in ours.items():
        local_state_dict[key] = placed_as(full_state_dict[key], tensor)


def broadcast_tensors(
    original: Function,
    full_state_dict: State,
    local_state_dict: State,
    keys: list[str],
    *arguments: Any,
    **options: Any,
) -> None:
    """Puts plain tensors in the place of ours, so that the original broadcasts the first rank's whole values. Each rank then takes its part."""
    ours = {key: tensor for key in keys if isinstance(tensor := local_state_dict.get(key), DTensor)}
    local_state_dict.update(dict.fromkeys(ours, torch.empty(0)))
    original(full_state_dict, local_state_dict, keys, *arguments, **options)
    for key, tensor in ours.items():
        local_state_dict[key] = placed_as(local_state_dict[key], tensor)


def broadcast_state_dict(
    original: Function, full_state_dict: State, local_state_dict: State, *arguments: Any, **options: Any
) -> None:
    """Lays out the tensors without dims, which the original sends as numbers. It sends others by _broadcast_tensors()."""
    ours = {key: tensor for key, tensor in local_state_dict.items() if isinstance(tensor, DTensor)}
    original(full_state_dict, local_state_dict, *arguments, **options)
    for key, tensor in ours.items():
        if isinstance(local_state_dict.get(key), torch.Tensor):
            local_state_dict[key] = placed_as(local_state_dict[key], tensor)


class _Done:
    """Hides a tensor from the original, which deep-copies values of unknown classes."""

    def __init__(self, tensor: DTensor) -> None:
        self.tensor = tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> _Done:
        return self


def create_cpu_state_dict(original: Function, state_dict: dict[str, Any], *arguments: Any, **options: Any) -> Any:
    """Copies our tensors: the original copies their pieces as plain tensors."""
    if not any_ours(state_dict):
        return original(state_dict, *arguments, **options)

    def on_cpu(path: str, tensor: DTensor) -> _Done:
        pieces = original({"pieces": _C.detached_pieces(tensor, "state_dict")}, *arguments, **options)["pieces"]
        mesh = tensor.device_mesh
        if mesh.device_type != "cpu":
            mesh = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names, _is_by_all=False)
        layout = (tensor.placements, tuple(tensor.shape), tensor.stride(), tensor.dtype, _C.local_form_of(tensor))
        return _Done(rebuild_dtensor(pieces, mesh, *layout, requires_grad=False, attributes={}))

    created = original(_with(DTensor, state_dict, on_cpu), *arguments, **options)
    return _with(_Done, created, lambda path, done: done.tensor)


def create_plan(original: Any, state_dict: dict[str, Any], metadata: Any, strict: bool = True) -> Any:
    """Compares the whole state dict with the checkpoint first. torch compares name by name, and its error has only the first missing name.

    Raises RuntimeError that names all entries of `state_dict` that the checkpoint lacks or has in another size. It also names other entries of the
    checkpoint, but these alone are no error; neither are missing names if `strict` is False. The size of a LocalShardsWrapper is not compared: it
    knows only its own pieces.
    """
    if not any(isinstance(value, DTensor | LocalShardsWrapper) for value in state_dict.values()):
        return original(state_dict, metadata, strict)
    saved = metadata.state_dict_metadata
    missing = [name for name in state_dict if name not in saved] if strict else []
    sizes = other_sizes(
        {name: entry.size for name, entry in saved.items() if hasattr(entry, "size")},
        {name: value.size() for name, value in state_dict.items() if isinstance(value, DTensor)},
    )
    if missing or sizes:
        extra = [name for name in saved if name not in state_dict]
        raise RuntimeError(
            f"[checkpoint] the checkpoint is of another model; nothing has been loaded. {facts(missing, sizes, extra)} Rename the "
            "entries, or load a part with DefaultLoadPlanner(allow_partial_load=True)."
        )
    return original(state_dict, metadata, strict)


def other_sizes(there: Mapping[str, torch.Size], here: Mapping[str, torch.Size]) -> list[str]:
    """The names that both have with different sizes, each with the two sizes."""
    return [
        f"{name} is {list(there[name])} there and {list(size)} here"
        for name, size in here.items()
        if name in there and there[name] != size
    ]


def facts(missing: Sequence[str], sizes: Sequence[str], extra: Sequence[str]) -> str:
    """A sentence for each kind of difference, for an error."""
    kinds = (("It lacks", ", ", missing), ("Other sizes:", "; ", sizes), ("It has besides:", ", ", extra))
    return " ".join(f"{words} {separator.join(names)}." for words, separator, names in kinds if names)


def offload_tensor(
    original: Any, self: Any, x: torch.Tensor, memo: dict[int, Any], non_blocking: bool = False
) -> torch.Tensor:
    """Makes StateDictStager copy our tensors piece by piece."""
    if not isinstance(x, DTensor):
        return original(self, x, memo, non_blocking=non_blocking)
    pieces = _C.detached_pieces(x, "checkpoint")
    for piece in pieces:
        self._keep_alive(piece, memo)  # the memo has it by its id
    memo[id(x)] = staged(x, [original(self, piece, memo, non_blocking=non_blocking) for piece in pieces])
    return memo[id(x)]


def staged(tensor: DTensor, copies: list[torch.Tensor]) -> torch.Tensor:
    """Returns the stand-in of `tensor` in a state dict that is saved, perhaps by another process: copies of its pieces and their offsets,
    without its mesh."""
    if tensor.dim() == 0 and copies:
        return copies[0]
    offsets = [offset for offset, _ in tensor._saved_boxes()]
    wrapper = LocalShardsWrapper(copies, offsets, dtype=tensor.dtype)
    wrapper.table_size = tensor.size()
    wrapper.trained_on = tensor.device_mesh.device_type
    return wrapper


def execute_save(original: Any, self: Any, state: Any, **options: Any) -> Any:
    """Checks the group before a thread saves, so that async_save() raises the error, if the state dict is staged already."""
    if not isinstance(state, Future):
        _check_group(state, **options)
    return original(self, state, **options)


def save_wrapper(original: Any, staging_future_or_state_dict: Any, **options: Any) -> Any:
    """Checks the group in the saving thread, so that the future of the save has the error, if a thread staged the state dict."""
    state = staging_future_or_state_dict
    _check_group(state.result() if isinstance(state, Future) else state, **options)
    return original(state, **options)


def _check_group(state: Any, *, process_group: Any = None, no_dist: bool = False, **options: Any) -> None:
    """Raises ValueError if tensors of a CPU mesh would be saved over the world's group while training sends over it. Gloo matches the messages of a
    group by their order, so two threads cannot share one."""
    if (
        process_group is None
        and not no_dist
        and any(isinstance(each, LocalShardsWrapper) and each.trained_on == "cpu" for each in pytree.tree_leaves(state))
    ):
        raise ValueError(
            "[async_save] a thread would save DTensors of a CPU mesh over the process group that training uses, and Gloo confuses the "
            'messages of two threads. Give it its own group: process_group=dist.new_group(backend="gloo"), made once on all ranks.'
        )
