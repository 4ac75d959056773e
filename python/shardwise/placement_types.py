"""How one mesh dim treats a tensor."""

from shardwise._C import EnumerableShard, Partial, Placement, Replicate, Shard, ShardMetadata

__all__ = ["EnumerableShard", "Partial", "Placement", "Replicate", "Shard", "ShardMetadata"]
