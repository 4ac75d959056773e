from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from shardwise._C._layouts import DeviceMesh, Placement, _Ints, _Links, _Mesh, _Placements, _Scope

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
    mesh_shape: _Ints = [],
    links: _Links = None,
    machine: tuple[float, float, float] | None = None,
) -> EmbeddingPlan: ...
def lies_in_file(tensor: Tensor) -> bool: ...

class DistributedEmbedding:
    class Lookup:
        def fetch(self) -> None: ...
        def wait(self) -> list[Tensor]: ...

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
    def tables(self) -> list[Tensor]: ...
    def pieces(self, table: int) -> list[tuple[Tensor, slice, slice]]: ...
    def bytes_here(self, table: int) -> int: ...
    def flush(self) -> None: ...
    def cache_counts(self, table: int) -> list[int] | None: ...
    def gathered_rows(self, table: int, begin: int, end: int, root: int | None) -> Tensor | None: ...
    def traffic(self) -> list[tuple[int, int, int]]: ...
    def buffer_bytes(self) -> int: ...
    def raise_together(self, error: tuple[str, str] | None) -> None: ...
    def start(
        self,
        inputs: Sequence[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | None],
        tables: Sequence[Tensor],
        error: tuple[str, str] | None = None,
    ) -> DistributedEmbedding.Lookup: ...

class lookup_exchange(_Scope):
    def __init__(
        self,
        exchange: Literal["auto", "reduce_scatter", "all_to_all"] = "auto",
        *,
        check_ids: bool = True,
        links: _Links = None,
    ) -> None: ...

class ExactMapping:
    def __init__(self, n_rows: int, device_mesh: _Mesh, n_buckets: int = 0, default_row: int = 0) -> None: ...
    n_buckets: Final[int]
    placements: Final[tuple[Placement, ...]]
    def new_state(self) -> list[Tensor]: ...
    def transform(self, state: Sequence[Tensor], ids: Tensor, assigns: bool) -> Tensor: ...
    reassigned: Final[list[tuple[int, int]]]
    n_reassigned: Final[int]
    def reset_rows(self, tensor: Tensor, init: str, scale: float, seed: int) -> None: ...

def modulo_hash(ids: Tensor, n_rows: int, seed: int = 0) -> Tensor: ...

class RowOptions:
    def __init__(
        self,
        kind: Literal["sgd", "adagrad", "row_wise_adagrad", "adam", "row_wise_adam", "lamb", "row_wise_lamb"],
        lr: float,
        eps: float,
        beta1: float,
        beta2: float,
        initial_accumulator_value: float,
        weight_decay: float,
        decoupled_weight_decay: bool,
        stochastic_rounding: bool,
        seed: int,
    ) -> None: ...

class RowOptimizer:
    n_steps: int
    state: Final[list[Tensor]]
    def __init__(self, table: Tensor, options: RowOptions) -> None: ...
    def set_options(self, options: RowOptions) -> None: ...
    def set_before_step(self, function: Callable[[], object]) -> None: ...
    def write_back(self) -> None: ...

class QuantizedTable:
    shape: Final[tuple[int, int]]
    placements: Final[tuple[Placement, ...]]
    device_mesh: Final[DeviceMesh]
    nbytes: Final[int]
    @staticmethod
    def zeros(
        size: _Ints,
        *,
        dtype: torch.dtype = ...,
        device_mesh: _Mesh | None = None,
        placements: _Placements | None = None,
    ) -> QuantizedTable: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None: ...
    def lookup(self, ids: Tensor) -> Tensor: ...
    def lookup_bags(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        mode: str = "mean",
        *,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Tensor: ...
    def dequantize(self) -> Tensor: ...

def quantize_rows(table: Tensor, dtype: torch.dtype = ...) -> QuantizedTable: ...
def fuse_optimizer(table: Tensor, optimizer: RowOptimizer) -> None: ...
def release_optimizer(table: Tensor, optimizer: RowOptimizer) -> None: ...
