"""torch's checkpoints of safetensors files: a file has one piece per name, so a rank with several pieces would lose all but one."""

from collections import Counter
from typing import Any

from torch.distributed.checkpoint.planner import SavePlan, WriteItemType


def prepare_local_plan(original: Any, self: Any, plan: SavePlan) -> SavePlan:
    """Makes HuggingFaceStorageWriter raise ValueError if this rank has several pieces of a tensor. torch raises the error on all ranks, before
    anything is written."""
    counts = Counter(item.index.fqn for item in plan.items if item.type == WriteItemType.SHARD)
    several = [f"{n} of {name}" for name, n in counts.items() if n > 1]
    if several:
        raise ValueError(
            f"[checkpoint] a safetensors file holds one piece per name, but this rank has {', '.join(several)}. Redistribute to Shard or "
            "Replicate before, or save with torch's or shardwise.checkpoint's FileSystemWriter."
        )
    prepared: SavePlan = original(self, plan)
    return prepared
