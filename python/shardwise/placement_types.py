"""How one mesh dim treats a tensor."""

from typing import Any

from shardwise._C import BlockShard, EnumerableShard, Partial, Placement, RaggedShard, Replicate, Shard, ShardMetadata

KINDS = (BlockShard, EnumerableShard, Partial, RaggedShard, Replicate, Shard)
__all__ = [
    "BlockShard", "EnumerableShard", "Partial", "Placement", "RaggedShard", "Replicate", "Shard", "ShardMetadata",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`_StridedShard` is torch's own class, for a Shard against the order of mesh dims. Its module is imported only when the name is
    used."""
    if name != "_StridedShard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardwise.interop.when_imported import torchs_own

    return torchs_own("torch.distributed.tensor.placement_types")._StridedShard
