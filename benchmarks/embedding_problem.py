"""The data of benchmarks/embedding.py: a table sharded by rows, ids, the gradient of the result, and the dense result."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

LEARNING_RATE = 0.25
ROWS_PER_SEED = 10_000


def draw_ids(kind, n_rows, shape, seed=0):
    """Uniform ids, or "zipf": the k-th most frequent one in proportion to k to the power of -1.05, at places spread over the table."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "uniform":
        return torch.randint(n_rows, shape, generator=generator)
    weight = torch.arange(1, n_rows + 1, dtype=torch.float64).pow_(-1.05).cumsum_(0)
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator) * weight[-1]
    return torch.randperm(n_rows, generator=generator)[torch.searchsorted(weight, drawn)]


def table_rows(begin, end, n_columns):
    """Rows [begin, end) of the table: each rank makes only its own rows."""
    rows = torch.empty(max(end - begin, 0), n_columns)
    for start in range(begin // ROWS_PER_SEED * ROWS_PER_SEED, end, ROWS_PER_SEED):
        block = torch.randn(ROWS_PER_SEED, n_columns, generator=torch.Generator().manual_seed(start))
        low, high = max(start, begin), min(start + ROWS_PER_SEED, end)
        rows[low - begin : high - begin] = block[low - start : high - start]
    return rows


@dataclass(frozen=True)
class Problem:
    """One lookup and its derivative. Batches are split by torch.chunk, and so are the table's rows."""

    n_rows: int
    n_columns: int
    ids: torch.Tensor  # [batch, ids of a sample], all of them on every rank
    is_pooled: bool  # the sum of a sample's rows is wanted, not each of them
    is_batch_sharded: bool  # ids and results are sharded by batch; else whole on every rank

    def own_rows(self):
        """This rank's part [begin, end) of the table."""
        return chunk_of(self.n_rows)

    def table(self):
        return table_rows(*self.own_rows(), self.n_columns)

    def own(self, tensor):
        """This rank's part of a tensor over the whole batch."""
        return tensor[slice(*chunk_of(len(tensor)))].clone() if self.is_batch_sharded else tensor

    def gradient(self):
        """The gradient of the results, over the whole batch. It has small integers, so sums are exact in any order."""
        shape = (len(self.ids), *([] if self.is_pooled else [self.ids.shape[1]]), self.n_columns)
        return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(1)).float()

    def dense(self):
        """The expected values of this rank: results, and the gradient of its rows."""
        table = table_rows(0, self.n_rows, self.n_columns).requires_grad_()
        look_up = F.embedding_bag if self.is_pooled else F.embedding
        result = look_up(self.ids, table, **({"mode": "sum"} if self.is_pooled else {}))
        result.backward(self.gradient())
        return self.own(result.detach()), table.grad[slice(*self.own_rows())].clone()


def chunk_of(length):
    step = -(-length // dist.get_world_size())
    return min(step * dist.get_rank(), length), min(step * (dist.get_rank() + 1), length)
