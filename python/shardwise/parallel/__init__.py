"""Sharding a model by a plan, as torch.distributed.tensor.parallel does, and model-parallel layers.

    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

makes the parameters of a model DTensors, and lays out the inputs and outputs of its modules. There are also model-parallel layers:

    up = parallel.ColumnParallelLinear(8, 32, gather_output=False)
    down = parallel.RowParallelLinear(32, 8, input_is_parallel=True)
    y = down(torch.relu(up(x)))                      # one all-reduce forward, one backward

Their parameters are DTensors with the shape of the whole parameter; sizes need not be multiples of the number of ranks. A DTensor as input
gives a DTensor. A torch.Tensor, which must be equal on every rank, gives a torch.Tensor. mp_copy, mp_reduce, mp_scatter and mp_gather move
plain tensors, for layers that you write yourself.
"""

from shardwise._C import RoutedTokens, combine_tokens, dispatch_tokens, mp_copy, mp_gather, mp_reduce, mp_scatter
from shardwise.parallel.api import parallelize_module
from shardwise.parallel.experts import ExpertParallel
from shardwise.parallel.layers import ColumnParallelLinear, ParallelEmbedding, RowParallelLinear
from shardwise.parallel.loss import VocabParallelCrossEntropy, loss_parallel
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
