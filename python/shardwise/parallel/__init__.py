"""Model-parallel layers: each rank has some rows, columns or classes of a layer's weight.

    up = parallel.ColumnParallelLinear(8, 32, gather_output=False)
    down = parallel.RowParallelLinear(32, 8, input_is_parallel=True)
    y = down(torch.relu(up(x)))                      # one all-reduce forward, one backward

Parameters are DTensors of the whole shape; sizes need not divide by the number of ranks. Inputs may be DTensors, and so is the
output then, or torch.Tensors that are the same on every rank, and the output is plain. With plain tensors there are mp_copy,
mp_reduce, mp_scatter and mp_gather, too, to write layers by hand.
"""

from shardwise._C import mp_copy, mp_gather, mp_reduce, mp_scatter
from shardwise.parallel.cross_entropy import VocabParallelCrossEntropy
from shardwise.parallel.embedding import ParallelEmbedding
from shardwise.parallel.linear import ColumnParallelLinear, RowParallelLinear

__all__ = [
    "ColumnParallelLinear",
    "ParallelEmbedding",
    "RowParallelLinear",
    "VocabParallelCrossEntropy",
    "mp_copy",
    "mp_gather",
    "mp_reduce",
    "mp_scatter",
]
