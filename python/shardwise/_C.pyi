from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar, Final, Literal, overload

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from shardwise.device_mesh import DeviceMesh as Mesh
from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper

class Placement:
    def is_shard(self, dim: int | None = None) -> bool: ...
    def is_replicate(self) -> bool: ...
    def is_partial(self, reduce_op: str | None = None) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Shard(Placement):
    def __init__(self, dim: int, sizes: Sequence[int] | None = None) -> None: ...
    dim: Final[int]
    sizes: Final[tuple[int, ...] | None]
    @staticmethod
    def local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]: ...
    def _split_tensor(
        self, tensor: torch.Tensor, num_chunks: int, *, with_padding: bool = True, contiguous: bool = True
    ) -> tuple[list[torch.Tensor], list[int]]: ...
    def _select_split_tensor(
        self,
        tensor: torch.Tensor,
        num_chunks: int,
        index: int,
        *,
        with_padding: bool = True,
        contiguous: bool = True,
        clone: bool = True,
    ) -> torch.Tensor: ...

class Replicate(Placement):
    def __init__(self) -> None: ...

class Partial(Placement):
    ALL_REDUCE_OPS: ClassVar[tuple[str, ...]]
    LINEAR_REDUCE_OPS: ClassVar[tuple[str, ...]]
    def __init__(self, reduce_op: str = "sum") -> None: ...
    reduce_op: Final[str]

class EnumerableShard(Placement):
    def __init__(self, shards: Sequence[ShardMetadata]) -> None: ...
    shards: Final[list[ShardMetadata]]

class RaggedShard(Placement):
    def __init__(self, dims: Sequence[int], local_units: Sequence[int]) -> None: ...
    dims: Final[tuple[int, ...]]
    local_units: Final[tuple[int, ...]]

class ShardMetadata:
    def __init__(self, offsets: Sequence[int], sizes: Sequence[int], rank: int) -> None: ...
    offsets: Final[tuple[int, ...]]
    sizes: Final[tuple[int, ...]]
    rank: Final[int]
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class MeshHandle: ...

class DeviceMesh:
    @overload
    def __init__(
        self,
        device_type: str,
        mesh: torch.Tensor | Sequence[object],
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> None: ...
    @overload
    def __init__(self, handle: MeshHandle) -> None: ...
    def _register(self) -> None: ...
    @property
    def device_type(self) -> str: ...
    @property
    def mesh(self) -> torch.Tensor: ...
    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def size(self, mesh_dim: int | str | None = None) -> int: ...
    def get_rank(self) -> int: ...
    def _world_size(self) -> int: ...
    def get_local_rank(self, mesh_dim: int | str | None = None) -> int: ...
    def get_coordinate(self) -> tuple[int, ...] | None: ...
    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup | None: ...
    def _set_origin(
        self,
        root: Mesh | None,
        dims: Sequence[Sequence[str]],
        given: Mapping[tuple[int, ...], str] | None,
        has_groups: bool,
    ) -> None: ...
    def _origin(
        self,
    ) -> tuple[Mesh | None, tuple[tuple[str, ...], ...], dict[tuple[int, ...], str] | None, bool] | None: ...
    def _world_notes(self) -> dict[Any, Any]: ...
    def __getitem__(self, mesh_dim_names: str | Sequence[str]) -> Mesh: ...
    def __enter__(self) -> Mesh: ...
    def __exit__(self, *error: object) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __deepcopy__(self, memo: object) -> Mesh: ...

class without_groups:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, mesh: DeviceMesh) -> None: ...
    @overload
    def __init__(self, rank: int, n_ranks: int) -> None: ...
    def __enter__(self) -> without_groups: ...
    def __exit__(self, *error: object) -> None: ...

def are_groups_absent() -> bool: ...

class given_groups:
    def __init__(self, names: Mapping[tuple[int, ...], str]) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Layout:
    def __init__(
        self,
        shape: Sequence[int],
        mesh: _Mesh | torch.Tensor | Sequence[object],
        placements: Sequence[Placement],
    ) -> None: ...
    shape: Final[tuple[int, ...]]
    mesh_shape: Final[tuple[int, ...]]
    ranks: Final[list[int]]
    placements: Final[tuple[Placement, ...]]
    def boxes(self, rank: int) -> list[tuple[list[int], list[int]]]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class RankTraffic:
    sent: Final[int]
    received: Final[int]
    bound: Final[int]
    buffer_bytes: Final[int]
    n_messages: Final[int]
    seconds: Final[float]

class PlanSummary:
    route: Final[str]
    n_rounds: Final[int]
    received: Final[int]
    bound: Final[int]
    ratio: Final[float]
    most_loaded_rank: Final[int]
    most_received: Final[int]
    buffer_bytes: Final[int]
    seconds: Final[float]

class Plan:
    source: Final[Layout]
    destination: Final[Layout]
    route: Final[str]
    steps: Final[list[str]]
    n_rounds: Final[int]
    bytes_received: Final[int]
    bound: Final[int]
    ratio: Final[float]
    most_loaded_rank: Final[int]
    most_received: Final[int]
    buffer_bytes: Final[int]
    seconds: Final[float]
    planning_us: Final[float]
    def traffic(self, rank: int) -> RankTraffic: ...
    def simulate(self) -> list[tuple[int, RankTraffic]]: ...
    def summary(self, n_samples: int = 0) -> PlanSummary: ...

class TableConfig:
    def __init__(
        self,
        name: str,
        n_rows: int,
        n_columns: int,
        *,
        dtype: str | torch.dtype = "float32",
        combiner: str = "sum",
        ids_per_sample: float = 1.0,
        skew: float = 0.0,
    ) -> None: ...
    name: Final[str]
    n_rows: Final[int]
    n_columns: Final[int]
    dtype: Final[str]
    combiner: Final[str]
    ids_per_sample: Final[float]
    skew: Final[float]
    n_elements: Final[int]

class TableSlice:
    table: Final[int]
    rank: Final[int]
    rows: Final[tuple[int, int]]
    columns: Final[tuple[int, int]]
    group: Final[int]
    first_row: Final[int]

class TablePlan:
    treatment: Final[str]
    slices: Final[list[TableSlice]]
    reason: Final[str]

class EmbeddingGroup:
    is_replicated: Final[bool]
    n_columns: Final[int]
    dtype: Final[str]
    combiner: Final[str]
    n_rows: Final[int]

class RankLoad:
    weight_bytes: Final[int]
    state_bytes: Final[int]
    n_bytes: Final[int]
    lookups: Final[float]
    exchange_bytes: Final[float]
    seconds: Final[float]

class EmbeddingPlan:
    tables: Final[list[TableConfig]]
    n_ranks: Final[int]
    strategy: Final[str]
    table_plans: Final[list[TablePlan]]
    def groups(self, rank: int) -> list[EmbeddingGroup]: ...
    def slices(self, rank: int) -> list[TableSlice]: ...
    def rank_load(self, rank: int) -> RankLoad: ...
    most_loaded_rank: Final[int]
    heaviest_rank: Final[int]
    seconds: Final[float]
    bound_seconds: Final[float]
    def picture(self) -> str: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> EmbeddingPlan: ...
    def save(self, path: str) -> None: ...
    @staticmethod
    def load(path: str) -> EmbeddingPlan: ...

def tables_from_json(text: str) -> list[TableConfig]: ...
def plan_embeddings(
    tables: Sequence[TableConfig],
    n_ranks: int,
    *,
    strategy: str = "memory_optimized",
    column_slice_threshold: int | None = None,
    row_slice_threshold: int | None = None,
    data_parallel_threshold: int | None = None,
    memory_per_rank: int | None = None,
    batch_per_rank: int = 1024,
    state_bytes_per_element: int = 0,
    state_bytes_per_row: int = 0,
    mesh_shape: Sequence[int] = [],
    links: Sequence[tuple[float, float]] | None = None,
    machine: tuple[float, float, float] | None = None,
) -> EmbeddingPlan: ...
def lies_in_file(tensor: torch.Tensor) -> bool: ...

class DistributedEmbedding:
    class Lookup:
        def fetch(self) -> None: ...
        def wait(self) -> list[torch.Tensor]: ...

    def __init__(
        self,
        tables: Sequence[TableConfig],
        plans: Sequence[TablePlan],
        mesh: _Mesh,
        features: Sequence[tuple[str, int, str]],
        mean_gradients: bool = True,
        sparse: bool = False,
        dp_input: bool = True,
        concatenate: bool = False,
        storage: Mapping[int, tuple[str, int, int]] = {},
    ) -> None: ...
    def tables(self) -> list[torch.Tensor]: ...
    def pieces(self, table: int) -> list[tuple[torch.Tensor, slice, slice]]: ...
    def bytes_here(self, table: int) -> int: ...
    def flush(self) -> None: ...
    def cache_counts(self, table: int) -> list[int] | None: ...
    def gathered_rows(self, table: int, begin: int, end: int, root: int | None) -> torch.Tensor | None: ...
    def traffic(self) -> list[tuple[int, int, int]]: ...
    def buffer_bytes(self) -> int: ...
    def raise_together(self, error: tuple[str, str] | None) -> None: ...
    def start(
        self,
        inputs: Sequence[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] | None],
        tables: Sequence[torch.Tensor],
        error: tuple[str, str] | None = None,
    ) -> DistributedEmbedding.Lookup: ...

class RedistributionCounters:
    plan_hits: Final[int]
    plan_misses: Final[int]
    n_plans: Final[int]
    buffer_hits: Final[int]
    buffer_misses: Final[int]
    buffer_bytes: Final[int]

class ThreadHub:
    def __init__(self, n_ranks: int, timeout: float, strict: bool | None = None) -> None: ...
    def enter(self, rank: int) -> None: ...
    def leave(self) -> None: ...
    def finish(self, rank: int) -> None: ...
    def abort(self, rank: int, reason: str) -> bool: ...

def is_thread_rank() -> bool: ...
def has_world_of_cpp() -> bool: ...
def rank_state() -> torch.Tensor: ...
def set_rank_state(state: torch.Tensor) -> None: ...
def seed_rank(seed: int) -> None: ...

class CommEvent:
    collective: Final[str]
    op: Final[str]
    n_ranks: Final[int]
    bytes_sent: Final[int]
    bytes_received: Final[int]

class CommTrace:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def events(self) -> list[CommEvent]: ...

class GroupTraffic:
    ranks: Final[list[int]]
    n_calls: Final[float]
    bytes_sent: Final[float]
    bytes_received: Final[float]
    seconds: Final[float]

class PresentWait:
    name: Final[str]
    op: Final[str]
    seconds: Final[float]
    ranks: Final[list[int]]

class TrafficMeter:
    def __init__(self) -> None: ...
    def read(self) -> list[GroupTraffic]: ...
    def waits(self) -> list[PresentWait]: ...

class OpRecord:
    op: Final[str]
    rule: Final[str]
    given: Final[list[str]]
    used: Final[list[str]]
    results: Final[list[str]]
    n_collectives: Final[int]
    bytes_received: Final[int]

class OpTrace:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def records(self) -> list[OpRecord]: ...

class TimedOperator:
    op: str
    rule: str
    given: list[str]
    used: list[str]
    results: list[str]
    begin_ns: int
    end_ns: int
    n_collectives: int
    bytes_received: int

class TimedCommunication:
    collective: str
    op: str
    layouts: str
    source: str
    dtype: str
    is_asked_for: bool
    ranks: list[int]
    call: int
    bytes_sent: int
    bytes_received: int
    begin_ns: int
    end_ns: int
    waited_ns: int
    has_failed: bool

class Profile:
    def __init__(self) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def operators(self) -> list[TimedOperator]: ...
    def communications(self) -> list[TimedCommunication]: ...
    def n_operators(self) -> int: ...
    def n_communications(self) -> int: ...

class communication_policy:
    def __init__(self, policy: Literal["allow", "warn", "error"]) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Reading:
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class accumulate_gradients:
    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class ParameterGroup:
    leaves: list[torch.Tensor]
    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        mesh: _Mesh,
        root: _Mesh,
        param_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        along: Sequence[Placement],
    ) -> None: ...
    def with_sharded(self, sharded: Sequence[torch.Tensor]) -> ParameterGroup: ...
    sharded: Final[list[torch.Tensor]]
    is_in_place: Final[bool]
    is_stale: Final[bool]
    def on_exchange(self, exchange: Callable[[bool], None]) -> None: ...
    def start_gather(self) -> None: ...
    def gather(self) -> None: ...
    def release(self) -> None: ...
    def set_divide_factor(self, factor: float | None) -> None: ...
    def set_all_reduces(self, all_reduces: bool) -> None: ...

class GroupSchedule:
    reshards_after_forward: bool
    n_keeping: int
    reshards_after_backward: bool
    reduces: bool
    fills_unused: bool
    gathers_in_backward: bool
    def __init__(self) -> None: ...
    def set_ahead_in_forward(self, groups: Sequence[ParameterGroup]) -> None: ...
    def set_ahead_in_backward(self, groups: Sequence[ParameterGroup]) -> None: ...

class GatherSchedule:
    def __init__(self) -> None: ...
    def add(self, group: ParameterGroup, settings: GroupSchedule) -> None: ...
    def take(self, other: GatherSchedule) -> None: ...
    def replace(self, old: ParameterGroup, fresh: ParameterGroup) -> None: ...
    def enter_forward(self, group: ParameterGroup) -> None: ...
    def leave_forward(self, group: ParameterGroup, releases: bool = True) -> None: ...
    def reshard_after_forward(self, group: ParameterGroup) -> None: ...
    def before_backward(self, group: ParameterGroup) -> None: ...
    def after_backward(self, group: ParameterGroup) -> None: ...
    n_ended: Final[int]
    def set_last_backward(self, is_last: bool) -> None: ...
    def reset(self) -> None: ...

def total_norm(tensors: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor: ...

class lookup_exchange:
    def __init__(
        self,
        exchange: Literal["auto", "reduce_scatter", "all_to_all"] = "auto",
        *,
        check_ids: bool = True,
        links: Sequence[tuple[float, float]] | None = None,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class ExactMapping:
    def __init__(self, n_rows: int, device_mesh: _Mesh, n_buckets: int = 0, default_row: int = 0) -> None: ...
    n_buckets: Final[int]
    placements: Final[tuple[Placement, ...]]
    def new_state(self) -> list[torch.Tensor]: ...
    def transform(self, state: Sequence[torch.Tensor], ids: torch.Tensor, assigns: bool) -> torch.Tensor: ...
    reassigned: Final[list[tuple[int, int]]]
    n_reassigned: Final[int]
    def reset_rows(self, tensor: torch.Tensor, init: str, scale: float, seed: int) -> None: ...

def modulo_hash(ids: torch.Tensor, n_rows: int, seed: int = 0) -> torch.Tensor: ...

class RowOptimizer:
    def __init__(
        self,
        table: torch.Tensor,
        kind: Literal["sgd", "adagrad", "row_wise_adagrad", "adam", "row_wise_adam", "lamb", "row_wise_lamb"],
        lr: float,
        eps: float,
        beta1: float,
        beta2: float,
        initial_accumulator_value: float,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None: ...
    @property
    def n_steps(self) -> int: ...
    @n_steps.setter
    def n_steps(self, n: int) -> None: ...
    @property
    def state(self) -> list[torch.Tensor]: ...
    def set_options(
        self,
        lr: float,
        eps: float,
        beta1: float,
        beta2: float,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None: ...
    def set_before_step(self, function: Callable[[], object]) -> None: ...
    def write_back(self) -> None: ...

class QuantizedTable:
    shape: Final[tuple[int, int]]
    placements: Final[tuple[Placement, ...]]
    device_mesh: Final[DeviceMesh]
    nbytes: Final[int]
    @staticmethod
    def zeros(
        size: Sequence[int],
        *,
        dtype: torch.dtype = ...,
        device_mesh: _Mesh | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> QuantizedTable: ...
    def state_dict(self) -> dict[str, torch.Tensor]: ...
    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None: ...
    def lookup(self, ids: torch.Tensor) -> torch.Tensor: ...
    def lookup_bags(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        mode: str = "mean",
        *,
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> torch.Tensor: ...
    def dequantize(self) -> torch.Tensor: ...

def quantize_rows(table: torch.Tensor, dtype: torch.dtype = ...) -> QuantizedTable: ...
def fuse_optimizer(table: torch.Tensor, optimizer: RowOptimizer) -> None: ...
def release_optimizer(table: torch.Tensor, optimizer: RowOptimizer) -> None: ...
def register_rule(
    op: str,
    rule: str | Callable[[list[tuple[int, ...]]], str | None],
    *,
    linear: Literal["all", "each", "first"] | None = None,
    whole: str = "",
) -> None: ...
def register_sharding(op: str, ask: Callable[[list[Any]], Any]) -> None: ...
def exchange_attention(function: Callable[..., torch.Tensor] | None) -> Callable[..., torch.Tensor] | None: ...

class CacheCounters:
    hits: Final[int]
    misses: Final[int]
    size: Final[int]

def set_one_element_replicas(are_on: bool) -> None: ...
def set_answers_outside(are_on: bool) -> None: ...

class implicit_replication:
    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class TensorLayout:
    """All of a distributed tensor but its values."""

    n_pieces: Final[int]
    dtype: Final[torch.dtype]
    device: Final[torch.device]
    def wrap(self, pieces: Sequence[torch.Tensor], is_traced: bool = False) -> DTensor: ...
    def take(self, tensor: torch.Tensor) -> DTensor: ...

class ComparedCalls:
    """Which calls of a module with these tensors the ranks have compared."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None: ...

MOST_ARGUMENTS: int

_Mesh = DeviceMesh | TorchDeviceMesh

def join_forward(module: int) -> bool: ...
def open_forward(
    module: int,
    name: str,
    calls: ComparedCalls,
    arguments: Sequence[tuple[str, torch.Tensor | None, str, str]],
    frame: FrameType | None = None,
) -> None: ...
def leave_forward(module: int) -> None: ...
def cache_counters() -> CacheCounters: ...
def world_rank() -> int: ...
def clock_offsets() -> list[int]: ...
def gathered_texts(text: str | bytes) -> list[bytes]: ...
def told_by_rank_0(number: int) -> int: ...
def forget_world() -> None: ...
def caller_line() -> str: ...
def set_package(folder: str, **functions: Callable[..., Any]) -> None: ...
def dump_folder() -> str: ...
def dump_flights(folder: str | None = None) -> list[str]: ...
def mesh_or_current(device_mesh: _Mesh | None = None) -> Mesh: ...
def mesh_or_world(device_mesh: _Mesh | None = None, device_type: str = "cpu") -> Mesh: ...
def set_tensor_class(type: type[torch.Tensor]) -> None: ...
def from_local(
    local_tensor: torch.Tensor,
    device_mesh: _Mesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    run_check: bool = False,
    shape: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
) -> DTensor: ...
def layer_input(
    local_tensor: torch.Tensor,
    device_mesh: _Mesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
) -> DTensor: ...
def from_pieces(
    pieces: Sequence[torch.Tensor],
    device_mesh: _Mesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    local_kind: int,
    sparse_dim: int = 0,
    is_meta: bool = False,
    saved_by: int | None = None,
) -> DTensor: ...
def local_kind_of(tensor: torch.Tensor) -> int: ...
def set_local_shards_class(type: type[torch.Tensor]) -> None: ...
def make_local_shards(
    local_shards: Sequence[torch.Tensor],
    offsets: Sequence[Sequence[int]],
    dtype: torch.dtype = ...,
    device: torch.device | None = None,
    n_dims: int = 2,
) -> LocalShardsWrapper: ...
def from_known_shards(
    wrapper: torch.Tensor,
    device_mesh: _Mesh,
    shape: Sequence[int],
    dtype: torch.dtype,
    piece_strides: Sequence[int],
    pieces: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]],
) -> DTensor: ...
def local_shards(self: torch.Tensor) -> list[torch.Tensor]: ...
def local_sizes(wrapper: torch.Tensor) -> list[list[int]]: ...
def local_offsets(wrapper: torch.Tensor) -> list[list[int]]: ...
def to_local(self: torch.Tensor, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor: ...
def detached_pieces(tensor: torch.Tensor, reader: str) -> list[torch.Tensor]: ...
def note_write(tensor: torch.Tensor) -> None: ...
def whole_piece(tensor: torch.Tensor, reader: str) -> torch.Tensor: ...
def is_stale(tensor: torch.Tensor) -> bool: ...
def to_pieces(tensor: torch.Tensor) -> list[torch.Tensor]: ...
def layout_of(tensor: torch.Tensor) -> TensorLayout: ...
def piece_at(tensor: torch.Tensor, i: int) -> torch.Tensor: ...
def as_gradient(tensor: torch.Tensor) -> torch.Tensor: ...
def wrapped_number(number: complex) -> torch.Tensor: ...
def pieces_of_move(what: str) -> list[tuple[list[int], list[int], torch.dtype, torch.device]]: ...
def redistribute(
    self: torch.Tensor,
    device_mesh: _Mesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
    objective: str = "bytes",
    links: Sequence[tuple[float, float]] | None = None,
    memory_cap: int = 0,
) -> DTensor: ...
def redistribute_many(
    tensors: Sequence[torch.Tensor],
    placements: Sequence[Placement] | Sequence[Sequence[Placement]],
    *,
    objective: str = "bytes",
    links: Sequence[tuple[float, float]] | None = None,
    memory_cap: int = 0,
    bucket_bytes: int = ...,
) -> list[DTensor]: ...
def redistribution_counters() -> RedistributionCounters: ...
def plan_redistribution(
    src: torch.Tensor | Layout,
    dst: torch.Tensor | Layout | Sequence[Placement],
    *,
    dtype: torch.dtype | None = None,
    objective: str = "bytes",
    links: Sequence[tuple[float, float]] | None = None,
    memory_cap: int = 0,
) -> Plan: ...
def full_tensor(self: torch.Tensor, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor: ...
def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: _Mesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor: ...
def boxes_of(tensor: torch.Tensor) -> list[tuple[list[int], list[int]]]: ...
def boxes_of_all(tensor: torch.Tensor) -> list[tuple[int, list[int], list[int]]]: ...
def mesh_of(tensor: torch.Tensor) -> Mesh: ...
def placements_of(tensor: torch.Tensor) -> tuple[Placement, ...]: ...
def empty(
    size: Sequence[int],
    dtype: torch.dtype,
    device_mesh: _Mesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
) -> DTensor: ...
def full(
    size: Sequence[int],
    fill_value: bool | int | float | complex,
    dtype: torch.dtype,
    device_mesh: _Mesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
) -> DTensor: ...
def rand(
    size: Sequence[int],
    dtype: torch.dtype,
    device_mesh: _Mesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
) -> DTensor: ...
def randn(
    size: Sequence[int],
    dtype: torch.dtype,
    device_mesh: _Mesh | None,
    placements: Sequence[Placement] | None,
    requires_grad: bool,
) -> DTensor: ...

_Pieces = Sequence[tuple[Sequence[int], Sequence[int]]]  # offsets and sizes of each

class Figures:
    def draw(self, format: str = "text", color: bool = False, max_width: int = 100) -> str: ...

def page_style() -> str: ...
def picture_of_tensor(
    tensor: torch.Tensor | Layout, element_bytes: int = 4, dim_names: Sequence[str] = []
) -> Figures: ...
def picture_of_mesh(shape: Sequence[int], ranks: Sequence[int], dim_names: Sequence[str] = []) -> Figures: ...
def picture_of_tensors(
    tensors: Sequence[tuple[str, Sequence[int], str, int, torch.Tensor | Layout | _Pieces | None]], rank: int = 0
) -> Figures: ...
def picture_of_shards(rank: int, pieces: _Pieces, element_bytes: int) -> Figures: ...
def picture_of_plan(plan: Plan, source_names: Sequence[str] = [], destination_names: Sequence[str] = []) -> Figures: ...
def difference_of_plan(
    plan: Plan, source_names: Sequence[str] = [], destination_names: Sequence[str] = []
) -> Figures: ...
def mp_copy(
    input: torch.Tensor, mesh: _Mesh | None = None, mesh_dim: int | str = 0, reduce_op: str = "sum"
) -> torch.Tensor: ...
def mp_reduce(
    input: torch.Tensor, mesh: _Mesh | None = None, mesh_dim: int | str = 0, reduce_op: str = "sum"
) -> torch.Tensor: ...
def mp_scatter(
    input: torch.Tensor, dim: int = -1, mesh: _Mesh | None = None, mesh_dim: int | str = 0
) -> torch.Tensor: ...
def mp_gather(
    input: torch.Tensor, dim: int = -1, mesh: _Mesh | None = None, mesh_dim: int | str = 0
) -> torch.Tensor: ...

class RoutedTokens:
    rows: Final[DTensor]
    weights: Final[DTensor | None]
    expert_ids: Final[DTensor]
    num_tokens_per_expert: Final[DTensor]
    offs: Final[DTensor]

def dispatch_tokens(
    tokens: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor | None = None, *, experts: DTensor
) -> RoutedTokens: ...
def combine_tokens(rows: torch.Tensor, routed: RoutedTokens) -> torch.Tensor: ...
def column_parallel_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gather_output: bool = True,
    mesh_dim: int = 0,
) -> torch.Tensor: ...
def row_parallel_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    input_is_parallel: bool = False,
    mesh_dim: int = 0,
) -> torch.Tensor: ...
def parallel_embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    gather_output: bool = True,
    mesh_dim: int = 0,
) -> torch.Tensor: ...
def vocab_parallel_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    mesh: _Mesh | None = None,
    mesh_dim: int | str = 0,
) -> torch.Tensor: ...
def parallel_weight(
    size: Sequence[int], dim: int, mesh: _Mesh, mesh_dim: int | str, stride: int, dtype: torch.dtype
) -> DTensor: ...
def mesh_dim_number(mesh: _Mesh, mesh_dim: int | str) -> int: ...
def initialize_(tensor: torch.Tensor, init_type: str) -> None: ...
def zero_row_(tensor: torch.Tensor, row: int | None) -> None: ...
def set_master_(parameter: torch.Tensor, master: torch.Tensor) -> None: ...
