"""The calls that benchmarks/four_ranks.py times: operators along sharded dims, on operands of about 4 MB, 1 MB a rank.

A row has operands with the tensor dim along which each is sharded (None for a replica), the call on distributed tensors, the same call by
hand on a rank's own parts, and the dims along which the results are sharded. Rows are functions of the extent that is divided.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import four_ranks_by_hand as by_hand
import torch
import torch.nn.functional as F
from one_rank_rows import Operand

N = 1024  # the extent that is not divided


@dataclass(frozen=True)
class Row:
    name: str
    call: Callable[..., Any]
    by_hand: Callable[..., Any]
    operands: tuple[Operand, ...]
    results: tuple[int | None, ...]


def row(name, call, hand, operands, *results):
    return Row(name, call, hand, tuple(operands), results)


def floats(*shape, dim):
    return Operand(lambda: torch.randn(shape), dim)


def ids(below, *shape):
    return Operand(lambda: torch.randint(below, shape), None)


def rows(n):
    """Every row; `n` is the extent of the sharded dim."""
    x, by_rows = floats(N, n, dim=1), floats(n, N, dim=0)
    n_pictures = n // 64
    return [
        row("cross_entropy, vocabulary", F.cross_entropy, lambda x, t: by_hand.CrossEntropy.apply(x, t, n), [x, ids(n, N)], None),
        row(
            "batch_norm, batch",
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            lambda x, w, b: by_hand.BatchNorm.apply(x, w, b, n_pictures),
            [floats(n_pictures, 64, 32, 32, dim=0), floats(64, dim=None), floats(64, dim=None)], 0,
        ),
        row(
            "layer_norm, features",
            lambda x, w, b: F.layer_norm(x, (n,), w, b),
            lambda x, w, b: by_hand.LayerNorm.apply(x, w, b, n),
            [x, floats(n, dim=0), floats(n, dim=0)], 1,
        ),
        row("logsumexp", lambda x: x.logsumexp(1), by_hand.Logsumexp.apply, [x], None),
        row("softmax", lambda x: x.softmax(1), by_hand.Softmax.apply, [x], 1),
        row("log_softmax", lambda x: x.log_softmax(1), by_hand.LogSoftmax.apply, [x], 1),
        row("sum", torch.sum, lambda x: by_hand.Summed.apply(x.sum()), [by_rows], None),
        row("sum of dim 1", lambda x: x.sum(1), lambda x: by_hand.Summed.apply(x.sum(1)), [x], None),
        row("mean", torch.mean, lambda x: by_hand.Summed.apply(x.sum() / (n * N)), [by_rows], None),
        row("amax", lambda x: x.amax(1), by_hand.Amax.apply, [x], None),
        row("max", lambda x: x.max(1), lambda x: by_hand.Largest.apply(x, by_hand.best_of_ranks, n), [x], None, None),
        row("argmax", lambda x: x.argmax(1), lambda x: by_hand.best_of_ranks(x.detach(), n)[1], [x], None),
        row("topk", lambda x: x.topk(8, 1), lambda x: by_hand.Largest.apply(x, partial(by_hand.topk_of_ranks, k=8), n), [x], None, None),
        row("var", lambda x: x.var(1), lambda x: by_hand.Variance.apply(x, n), [x], None),
        row("norm", torch.linalg.vector_norm, lambda x: by_hand.Norm.apply(x, None), [by_rows], None),
        row("norm of dim 1", lambda x: torch.linalg.vector_norm(x, dim=1), lambda x: by_hand.Norm.apply(x, 1), [x], None),
        row(
            "linear, column", F.linear, lambda x, w, b: F.linear(by_hand.Copied.apply(x), w, b),
            [floats(N, 256, dim=None), floats(n, 256, dim=0), floats(n, dim=0)], 1,
        ),
        row(
            "linear, row", F.linear, lambda x, w, b: by_hand.Summed.apply(F.linear(x, w)) + b,
            [x, floats(256, n, dim=1), floats(256, dim=None)], None,
        ),
        row(
            "linear, batch", F.linear, lambda x, w: F.linear(x, by_hand.Copied.apply(w)),
            [floats(n, 256, dim=0), floats(N, 256, dim=None)], 0,
        ),
        row(
            "embedding, rows", lambda w, i: F.embedding(i, w), lambda w, i: by_hand.embedding_of_rows(w, i, n),
            [floats(n, 256, dim=0), ids(n, N)], None,
        ),
        row("embedding, columns", lambda w, i: F.embedding(i, w), lambda w, i: F.embedding(i, w), [x, ids(N, N)], 1),
        row("gather", lambda x, i: x.gather(1, i), lambda x, i: by_hand.gather(x, i, n), [x, ids(n, N, 64)], None),
        row("cumsum", lambda x: x.cumsum(1), by_hand.Cumsum.apply, [x], 1),
        row(
            "mse_loss, batch", F.mse_loss, lambda x, y: by_hand.Summed.apply(F.mse_loss(x, y, reduction="sum") / (n * N)),
            [by_rows, by_rows], None,
        ),
    ]  # fmt: skip


EVEN, UNEVEN = N, N - 1 - N // 4  # the last rank's part of UNEVEN is shorter


def part_of(whole, dim):
    """This rank's part of a whole tensor."""
    if dim is None:
        return whole.clone()
    begin, end = by_hand.own_range(whole.size(dim))
    return whole.narrow(dim, begin, end - begin).clone(memory_format=torch.contiguous_format)
