"""Hundreds of embedding tables on many ranks behind one layer."""

from shardwise.distributed_embedding.inputs import RaggedIds
from shardwise.distributed_embedding.layer import DistributedEmbedding, EmbeddingLookup, EmbeddingPipeline
from shardwise.distributed_embedding.replicas import broadcast_parameters
from shardwise.distributed_embedding.report import HotRow, MemoryReport, RankMemory
from shardwise.distributed_embedding.table_parameters import CacheCounts, FileStorage

__all__ = [
    "CacheCounts", "DistributedEmbedding", "EmbeddingLookup", "EmbeddingPipeline", "FileStorage", "HotRow",
    "MemoryReport", "RaggedIds", "RankMemory", "broadcast_parameters",
]  # fmt: skip
