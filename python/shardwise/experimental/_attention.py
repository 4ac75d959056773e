"""Where torch.distributed.tensor.experimental has what goes with context_parallel."""

from shardwise.experimental.sharded_sequences import (
    SequenceOptions as _ContextParallelOptions,
)
from shardwise.experimental.sharded_sequences import (
    context_parallel,
    context_parallel_unshard,
    set_rotate_method,
)
from shardwise.experimental.sharded_sequences import (
    options as _cp_options,
)

__all__ = [
    "_ContextParallelOptions",
    "_cp_options",
    "context_parallel",
    "context_parallel_unshard",
    "set_rotate_method",
]
