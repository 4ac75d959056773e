"""The parts of a DistributedEmbedding that the other modules of this folder use: the layer imports them, so they cannot import the layer."""

from typing import Protocol

from torch import nn

from shardwise import _C
from shardwise._C import EmbeddingPlan, TableConfig
from shardwise.device_mesh import DeviceMesh
from shardwise.distributed_embedding.storage import CacheCounts
from shardwise.distributed_embedding.table_parameters import TableParameters


class LayerParts(Protocol):
    configs: list[TableConfig]
    plan: EmbeddingPlan
    mesh: DeviceMesh
    tables: TableParameters
    _core: _C.DistributedEmbedding
    _n_samples: int  # of the last lookup

    def cache_counts(self) -> dict[str, CacheCounts]: ...

    def _index_of(self, table: int | str) -> int: ...

    def _parameters_in_order(self) -> list[nn.Parameter]: ...
