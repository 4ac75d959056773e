from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, Literal

import torch
from torch import Tensor

from shardwise._C._layouts import Placement, _Ints, _Links, _Mesh, _Placements, _Scope
from shardwise.device_mesh import DeviceMesh as Mesh
from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper

class TensorLayout:
    """All of a distributed tensor but its values."""

    n_pieces: Final[int]
    dtype: Final[torch.dtype]
    device: Final[torch.device]
    def wrap(self, pieces: Sequence[Tensor], is_traced: bool = False) -> DTensor: ...
    def take(self, tensor: Tensor) -> DTensor: ...
    def fits_graphs_of(self, other: TensorLayout) -> bool: ...

def set_tensor_class(type: type[Tensor]) -> None: ...
def dispatch_to_class(tensor: Tensor) -> None: ...
def from_local(
    local_tensor: Tensor,
    device_mesh: _Mesh | None = None,
    placements: _Placements | None = None,
    *,
    run_check: bool = False,
    shape: _Ints | None = None,
    stride: _Ints | None = None,
    grad_placements: _Placements | None = None,
) -> DTensor: ...
def lay_out(
    tensor: Tensor,
    device_mesh: _Mesh,
    placements: _Placements | None,
    desired: _Placements | None,
    use_local: bool = False,
    n_features: int | None = None,
    is_layer_input: bool = False,
) -> Tensor: ...
def from_pieces(
    pieces: Sequence[Tensor],
    device_mesh: _Mesh,
    placements: _Placements,
    shape: _Ints,
    stride: _Ints,
    dtype: torch.dtype,
    local_form: str,
    sparse_dim: int = 0,
    is_meta: bool = False,
    saved_by: int | None = None,
) -> DTensor: ...
def local_form_of(tensor: Tensor) -> str: ...
def set_local_shards_class(type: type[Tensor]) -> None: ...
def make_local_shards(
    local_shards: Sequence[Tensor],
    offsets: Sequence[_Ints],
    dtype: torch.dtype = ...,
    device: torch.device | None = None,
    n_dims: int = 2,
) -> LocalShardsWrapper: ...
def from_known_shards(
    wrapper: Tensor,
    device_mesh: _Mesh,
    shape: _Ints,
    dtype: torch.dtype,
    piece_strides: _Ints,
    pieces: Sequence[Sequence[tuple[_Ints, _Ints]]],
) -> DTensor: ...
def local_shards(self: Tensor) -> list[Tensor]: ...
def local_sizes(wrapper: Tensor) -> list[list[int]]: ...
def local_offsets(wrapper: Tensor) -> list[list[int]]: ...
def to_local(self: Tensor, *, grad_placements: _Placements | None = None) -> Tensor: ...
def detached_pieces(tensor: Tensor, reader: str) -> list[Tensor]: ...
def note_write(tensor: Tensor) -> None: ...
def whole_piece(tensor: Tensor, reader: str) -> Tensor: ...
def is_stale(tensor: Tensor) -> bool: ...
def to_pieces(tensor: Tensor) -> list[Tensor]: ...
def layout_of(tensor: Tensor) -> TensorLayout: ...
def piece_at(tensor: Tensor, i: int) -> Tensor: ...
def as_gradient(tensor: Tensor) -> Tensor: ...
def note_graph_write(tensor: Tensor) -> None: ...
def view_again(base: Tensor, view: Tensor) -> Tensor: ...
def has_symbols(tensor: Tensor) -> bool: ...
def wrapped_number(number: complex) -> Tensor: ...
def pieces_of_step(what: str) -> list[tuple[list[int], list[int], torch.dtype, torch.device]]: ...

class KeepsSymbols(_Scope):
    def __init__(self, op: str = "", argument: int = 0, sizes: Sequence[int | torch.SymInt] = ()) -> None: ...

def redistribute(
    self: Tensor,
    device_mesh: _Mesh | None = None,
    placements: _Placements | None = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
    objective: str = "bytes",
    links: _Links = None,
    memory_cap: int = 0,
) -> DTensor: ...
def redistribute_many(
    tensors: Sequence[Tensor],
    placements: _Placements | Sequence[_Placements],
    *,
    objective: str = "bytes",
    links: _Links = None,
    memory_cap: int = 0,
    bucket_bytes: int = ...,
) -> list[DTensor]: ...
def full_tensor(self: Tensor, *, grad_placements: _Placements | None = None) -> Tensor: ...
def distribute_tensors(
    tensors: Sequence[Tensor],
    device_mesh: Mesh,
    placements: Sequence[Sequence[Placement]],
    src_data_rank: int | None = 0,
) -> list[Tensor]: ...
def distribute_tensor(
    tensor: Tensor,
    device_mesh: _Mesh | None = None,
    placements: _Placements | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor: ...
def subclass_in(tensor: Tensor) -> Tensor | None: ...
def inner_tensors(tensor: Tensor) -> list[tuple[str, DTensor]]: ...
def boxes_of(tensor: Tensor) -> list[tuple[list[int], list[int]]]: ...
def boxes_of_all(tensor: Tensor) -> list[tuple[int, list[int], list[int]]]: ...
def read_box(file: int, begin: int, sizes: Sequence[int], offsets: Sequence[int], to: Tensor) -> int: ...
def empty(
    size: _Ints, dtype: torch.dtype, device_mesh: _Mesh | None, placements: _Placements | None, requires_grad: bool
) -> DTensor: ...
def full(
    size: _Ints,
    fill_value: bool | int | float | complex,
    dtype: torch.dtype,
    device_mesh: _Mesh | None,
    placements: _Placements | None,
    requires_grad: bool,
) -> DTensor: ...
def rand(
    size: _Ints, dtype: torch.dtype, device_mesh: _Mesh | None, placements: _Placements | None, requires_grad: bool
) -> DTensor: ...
def randn(
    size: _Ints, dtype: torch.dtype, device_mesh: _Mesh | None, placements: _Placements | None, requires_grad: bool
) -> DTensor: ...
def total_norm(tensors: Sequence[Tensor], norm_type: float) -> Tensor: ...

class implicit_replication(_Scope): ...
class accumulate_gradients(_Scope): ...

def register_rule(
    op: str,
    rule: str | Callable[[list[tuple[int, ...]]], str | None],
    *,
    linear: Literal["all", "each", "first"] | None = None,
    whole: str = "",
) -> None: ...
def register_sharding(op: str, ask: Callable[[list[Any]], Any]) -> None: ...
def exchange_attention(function: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None: ...
def set_one_element_replicas(are_on: bool) -> None: ...
def set_answers_outside(are_on: bool) -> None: ...

class CacheCounters:
    hits: Final[int]
    misses: Final[int]
    size: Final[int]

def cache_counters() -> CacheCounters: ...

class ComparedCalls:
    """Which calls of a module with these tensors the ranks have compared."""

    def __init__(self, tensors: Sequence[Tensor]) -> None: ...

MOST_ARGUMENTS: int

def join_forward(module: int) -> bool: ...
def open_forward(
    module: int,
    name: str,
    calls: ComparedCalls,
    arguments: Sequence[tuple[str, Tensor | None, str, str]],
    frame: FrameType | None = None,
) -> None: ...
def leave_forward(module: int) -> None: ...
