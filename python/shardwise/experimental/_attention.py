"""The names that torch.distributed.tensor.experimental has in the module of this name."""

from shardwise.experimental import sharded_sequences
from shardwise.experimental.sharded_sequences import context_parallel, context_parallel_unshard, set_rotate_method

__all__ = [
    "_ContextParallelOptions", "_cp_options", "context_parallel", "context_parallel_unshard", "set_rotate_method",
]  # fmt: skip

_ContextParallelOptions, _cp_options = sharded_sequences.SequenceOptions, sharded_sequences.options
