"""Sharding a model by a plan, as torch.distributed.tensor.parallel does, and model-parallel layers.

    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

makes DTensors of a model's parameters and lays out what goes in and out of its modules. The layers are modules of their own:

    up = parallel.ColumnParallelLinear(8, 32, gather_output=False)
    down = parallel.RowParallelLinear(32, 8, input_is_parallel=True)
    y = down(torch.relu(up(x)))                      # one all-reduce forward, one backward

Their parameters are DTensors of the whole shape; sizes need not divide by the number of ranks. Inputs may be DTensors, and so
is the output then, or torch.Tensors that are the same on every rank, and the output is plain. With plain tensors there are
mp_copy, mp_reduce, mp_scatter and mp_gather, too, to write layers by hand.
"""

from shardwise._C import RoutedTokens, combine_tokens, dispatch_tokens, mp_copy, mp_gather, mp_reduce, mp_scatter
from shardwise.parallel.api import parallelize_module
from shardwise.parallel.cross_entropy import VocabParallelCrossEntropy
from shardwise.parallel.embedding import ParallelEmbedding
from shardwise.parallel.experts import ExpertParallel
from shardwise.parallel.linear import ColumnParallelLinear, RowParallelLinear
from shardwise.parallel.loss import loss_parallel
from shardwise.parallel.style import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = [
    "ColumnParallelLinear", "ColwiseParallel", "ExpertParallel", "ParallelEmbedding", "ParallelStyle",
    "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput", "RoutedTokens", "RowParallelLinear",
    "RowwiseParallel", "SequenceParallel", "VocabParallelCrossEntropy", "combine_tokens", "dispatch_tokens",
    "loss_parallel", "mp_copy", "mp_gather", "mp_reduce", "mp_scatter", "parallelize_module",
]  # fmt: skip
