"""The names of the package that stand on the layers above the core: pictures, embedding tables, parallel layers, training."""

import torch

from shardwise import fsdp, optim, parallel
from shardwise._C import EmbeddingPlan, QuantizedTable, TableConfig, lookup_exchange, plan_embeddings, quantize_rows
from shardwise._dry_run.run import dry_run
from shardwise._suggest import suggest
from shardwise.debug import visualize_mesh, visualize_sharding
from shardwise.distributed_embedding import (
    CacheCounts,
    DistributedEmbedding,
    EmbeddingLookup,
    EmbeddingPipeline,
    FileStorage,
    RaggedIds,
    broadcast_parameters,
)
from shardwise.fsdp import fully_shard
from shardwise.local_shards_wrapper import LocalShardsWrapper, rebuild_local_shards

__all__ = [
    "CacheCounts", "DistributedEmbedding", "EmbeddingLookup", "EmbeddingPipeline", "EmbeddingPlan", "FileStorage", "LocalShardsWrapper",
    "QuantizedTable", "RaggedIds", "TableConfig", "broadcast_parameters", "dry_run", "fsdp", "fully_shard", "lookup_exchange", "optim", "parallel",
    "plan_embeddings", "quantize_rows", "suggest", "visualize_mesh", "visualize_sharding",
]  # fmt: skip

torch.serialization.add_safe_globals([rebuild_local_shards])
