"""An embedding table sharded by columns or rows."""

from typing import Unpack

import torch

from shardwise import _C
from shardwise.parallel.layer import InitType, LayerOptions, ParallelLayer
from shardwise.placement_types import Shard


class ParallelEmbedding(ParallelLayer):
    """nn.Embedding with its table [num_embeddings, embedding_dim] sharded along the columns, or along the rows with dim=0.

    `max_norm`: rows that are looked up are renormalised in place by the norm of the whole row, also if its columns are on several ranks.
    `padding_idx`: that row starts at 0 and gets no gradient. `gather_output`: True: the result has the layout of the ids; for plain ids it is
    whole on every rank. False: columns stay sharded (a plain output has this rank's columns), and over sharded rows the result is Partial (a
    plain output is this rank's term). `master_weight`: the whole table, equal on all ranks, instead of random values. nn.Embedding and
    ParallelLayer describe the other arguments.

    >>> table = sw.parallel.ParallelEmbedding(100, 10)
    >>> table.weight.shape, table(torch.tensor([3, 99])).shape
    (torch.Size([100, 10]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        init_type: InitType = "xavier_normal",
        *,
        dim: int = 1,
        gather_output: bool = True,
        master_weight: torch.Tensor | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(init_type, **options)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq, self.sparse, self.gather_output = scale_grad_by_freq, sparse, gather_output
        self._add_parameter("weight", (num_embeddings, embedding_dim), Shard(dim))
        self.reset_parameters()
        if master_weight is not None:
            self.set_master_weight(master_weight)

    def reset_parameters(self) -> None:
        """Draws the table, and zeros the padding row."""
        self._initialize(self.weight, self.init_type)
        _C.zero_row_(self.weight, self.padding_idx)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        of_torch = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return _C.parallel_embedding(input, self.weight, *of_torch, self.gather_output, self.mesh_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
