"""The names that torch.distributed.tensor.experimental has in the module of this name."""

from shardwise.experimental import attention_style, sharded_sequences
from shardwise.experimental.sharded_sequences import context_parallel, context_parallel_unshard, set_rotate_method

__all__ = [
    "_ContextParallel", "_ContextParallelOptions", "_HeadTailLoadBalancer", "_context_parallel_shard", "_cp_options",
    "_disable_context_parallel_dispatcher", "_enable_context_parallel_dispatcher", "context_parallel",
    "context_parallel_unshard", "set_rotate_method",
]  # fmt: skip

_ContextParallelOptions, _cp_options = sharded_sequences.SequenceOptions, sharded_sequences.options
_ContextParallel, _HeadTailLoadBalancer = attention_style.SequenceParallelAttention, attention_style.HeadTailBalancer
_context_parallel_shard = attention_style.shard_sequences
_enable_context_parallel_dispatcher = _disable_context_parallel_dispatcher = attention_style.attend_over_ranks
