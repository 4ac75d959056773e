"""Run by test_compiled_sizes.py under torchrun: compiled_lengths_program.py PART,PART FOLDER. The operators of attention, tokens and losses with batches of
several lengths, as in compiled_sizes_program.py."""

import math

import pytest
import torch
import torch.nn.functional as F
from compiled_sizes_program import EACH, LENGTHS, TWO, expect, placed, values, whole, world_mesh
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torchrun import run_parts

import shardwise as sw
from shardwise import Replicate, Shard


def lengths_of(by, function, *shapes, graphs=TWO):
    """expect() for tensors of these shapes, in which None stands for the length."""
    expect(
        graphs,
        function,
        lambda n: [placed(*(size or n for size in shape), by=by, seed=i) for i, shape in enumerate(shapes)],
    )


def attention(_):
    heads = (4, 6, None, 8)
    for by in (Replicate(), Shard(0), Shard(1)):
        for settings in ({}, {"is_causal": True}, {"scale": 0.5}):
            lengths_of(by, lambda q, k, v, s=settings: F.scaled_dot_product_attention(q, k, v, **s), *[heads] * 3)
        lengths_of(
            by,
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
            (4, 12, None, 8),
            *[heads] * 2,
        )
        # the keys of a cache, and those of the new tokens
        lengths_of(
            by,
            lambda q, k, v, past: F.scaled_dot_product_attention(q, torch.cat([past, k], 2), torch.cat([past, v], 2)),
            *[(4, 6, 3, 8)] * 3,
            heads,
        )
    lengths_of(Shard(1), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q @ k.mT), *[heads] * 3)


def parts_and_joins(_):
    for by in (Replicate(), Shard(0), Shard(2)):
        for part in (
            lambda x: x[:, 1:],
            lambda x: x[:, :-1] * x[:, 1:],
            lambda x: x[:, -3:].exp(),
            lambda x: x[:, 1 : x.shape[1] - 1 : 2] * 3,
            lambda x: x[:, : x.shape[1] // 2],
            lambda x: x[:, -1],
            lambda x: x[:, 2] + x[:, -2],
            lambda x: x.narrow(1, 1, x.shape[1] - 2),
            lambda x: x.split([2, x.shape[1] - 2], 1)[1],
            lambda x: x.split([1, x.shape[1] - 1], 1),
            lambda x: torch.cat([x[:, 1:], x[:, :1] * 2], 1),
            lambda x: torch.cat([x, x * 2, x[:, :2]], 1),
            lambda x: torch.stack([x, x * 2], 1),
            lambda x: torch.stack([x, x * 2]).unbind()[1],
        ):
            lengths_of(by, part, (4, None, 12))
    for part in (
        lambda x: x.split(4, -1)[1] * 2,
        lambda x: x.split([2, 4, 6], -1)[::2],
        lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1),
        lambda x: x.view(4, x.shape[1], 3, 4).unbind(2),
        lambda x: x[..., 5] * x[..., -1],
    ):
        lengths_of(Replicate(), part, (4, None, 12))
        lengths_of(Shard(0), part, (4, None, 12))
    # as a table of positions is cut to the length of another tensor
    lengths_of(Shard(1), lambda table, x: x + table[: x.shape[1]], (16, 12), (4, None, 12), graphs=EACH)
    lengths_of(Replicate(), lambda table, x: x + table[: x.shape[1]], (16, 12), (4, None, 12))
    # numbers of parts are numbers
    lengths_of(Replicate(), lambda x: x.split(2, 1)[1], (4, None, 12), graphs=EACH)
    lengths_of(Replicate(), lambda x: x.unbind(1)[1] * 2, (4, None, 12), graphs=EACH)


def uneven_heads(_):
    """Heads that ranks cannot share evenly: columns move, though on some rank the new piece lies in the old one."""
    for n_heads in (3, 6):
        expect(TWO, lambda x, n=n_heads: x.view(4, x.shape[1], n, -1) * 2, lambda n: [placed(4, n, 12, by=Shard(2))])


def bags(_):
    for mode in ("sum", "mean", "max"):
        for by in (Replicate(), Shard(0)):

            def operands(n, by=by):
                ids = torch.arange(4 * n).view(4, n) * 5 % 12
                return [sw.distribute_tensor(ids, world_mesh(), [by]), placed(12, 6, by=Shard(0))]

            expect(EACH, lambda ids, table, m=mode: F.embedding_bag(ids, table, mode=m), operands)


def draws(_):
    """Numbers of a draw are those of the program as it is written."""
    for by in (Replicate(), Shard(0), Shard(2)):
        lengths_of(by, lambda x: F.dropout(x, 1.0) + x, (4, None, 12))
        counter = CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: F.dropout(x, 0.3), backend=counter)
        for n in LENGTHS:
            results, gradients = [], []
            for function in (compiled, lambda x: F.dropout(x, 0.3)):
                x = placed(4, n, 12, by=by)
                torch.manual_seed(n)
                results.append(function(x))
                results[-1].sum().backward()
                gradients.append(x.grad)
            torch.testing.assert_close(*map(whole, results))
            torch.testing.assert_close(*map(whole, gradients))
        assert counter.frame_count == 2, counter.frame_count


def losses(_):
    def targets(*sizes):
        return sw.distribute_tensor(torch.arange(math.prod(sizes)).reshape(sizes) * 5 % 12, world_mesh(), [Replicate()])

    for by in (Replicate(), Shard(0), Shard(1)):
        graphs = EACH if by == Shard(0) else TWO
        for settings in (
            {},
            {"reduction": "sum"},
            {"reduction": "none"},
            {"ignore_index": 5},
            {"label_smoothing": 0.1},
        ):
            expect(
                graphs,
                lambda x, at, s=settings: F.cross_entropy(x, at, **s),
                lambda n, by=by: (placed(n, 12, by=by), targets(n)),
            )
        expect(
            graphs,
            lambda x, at: F.nll_loss(x.log_softmax(-1), at),
            lambda n, by=by: (placed(n, 12, by=by), targets(n)),
        )
    for by in (Replicate(), Shard(2)):
        expect(
            TWO,
            lambda x, at: F.cross_entropy(x.flatten(0, 1), at.flatten()),
            lambda n, by=by: (placed(2, n, 12, by=by), targets(2, n)),
        )
        expect(
            TWO,
            lambda x, at: F.cross_entropy(x[:, :-1].flatten(0, 1), at[:, 1:].flatten()),
            lambda n, by=by: (placed(2, n, 12, by=by), targets(2, n)),
        )
        expect(
            TWO,
            lambda x, at: F.multi_margin_loss(x.flatten(0, 1), at.flatten(), p=2, margin=0.5),
            lambda n, by=by: (placed(2, n, 12, by=by), targets(2, n)),
        )
        expect(  # terms that are 0 have the gradient 0
            TWO,
            lambda x, at: F.multi_margin_loss((x - x.detach()).flatten(0, 1), at.flatten(), margin=0.0),
            lambda n, by=by: (placed(2, n, 12, by=by), targets(2, n)),
        )
        lengths_of(by, lambda x, y: F.mse_loss(x, y) + F.mse_loss(x, y, reduction="sum"), *[(2, None, 12)] * 2)


def choices(_):
    for by in (Replicate(), Shard(0)):
        for function in (
            lambda x: x.topk(3)[0],
            lambda x: x.topk(2, 2)[0].sum(1),
            lambda x: x.sort(-1)[0],
            lambda x: x.max(2)[0] + x.min(2)[0],
            lambda x: x + x.argmax(-1, keepdim=True),
            lambda x: x.gather(2, x.argmax(-1, keepdim=True)),
            lambda x: x.cumsum(-1),
            lambda x: x.cumsum(1),
            lambda x: x.repeat(1, 1, 2),
            lambda x: x.logsumexp(2) + x.norm(dim=2),
            lambda x: x.var(-1).sum() + x.std(1),
            # along the length
            lambda x: x.max(1)[0] + x.median(1)[0] + x.kthvalue(2, 1)[0] + x.mode(1)[0],
            lambda x: x.topk(2, 1)[0] + x.sort(1)[0][:, :2],
            lambda x: x.cummax(1)[0] + x.cummin(1)[0] + x.cummax(1)[1],
            lambda x: x.cumprod(1) + x.logcumsumexp(1) + x.flip(1),
            lambda x: x.gather(1, x.argsort(1)) + x.take_along_dim(~x.argmax(1, keepdim=True), 1),
            lambda x: (
                torch.zeros_like(x).scatter(1, x.argsort(1), x) + torch.ones_like(x).scatter_add(1, x.argsort(1), x)
            ),
            lambda x: x.unsqueeze(0).squeeze() * 2,
        ):
            lengths_of(by, function, (4, None, 12))


def bounds_of_positions(_):
    """A graph that serves all lengths checks positions for the length with which it runs."""
    compiled = torch.compile(lambda x, at: x.gather(1, at), backend="aot_eager", fullgraph=True)
    for n in LENGTHS:
        x = placed(4, n, 12, by=Shard(0))
        for last in (n - 1, n):
            at = sw.distribute_tensor(torch.full((4, n, 12), last), world_mesh(), [Shard(0)])
            if last < n:
                torch.testing.assert_close(whole(compiled(x, at)), whole(x)[:, -1:].expand(4, n, 12))
                continue
            with pytest.raises(RuntimeError, match=f"index {n} is out of bounds for dimension 1 with size {n}"):
                compiled(x, at)


def sums_of_products(_):
    for by in (Replicate(), Shard(0), Shard(2)):
        expect(
            TWO,
            lambda x, w, v: torch.einsum("bsd,dhe->bhse", x, w) + torch.einsum("bsd,de->bse", x, v).unsqueeze(1),
            lambda n, by=by: (placed(4, n, 12, by=by), placed(12, 2, 3, by=Replicate()), placed(12, 3, by=Replicate())),
        )
    for by in (Replicate(), Shard(0), Shard(2)):
        lengths_of(by, lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), *[(4, None, 12)] * 2)
    for by in (Replicate(), Shard(0), Shard(1)):
        lengths_of(by, lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), *[(4, 2, None, 6)] * 2)


class Llama(nn.Module):
    """A block of a Llama with its embedding, rotary positions and loss. All activations are DTensors."""

    def __init__(self, features=24, vocabulary=36):
        super().__init__()
        mesh, by_row, by_column = world_mesh(), [Shard(0)], [Shard(1)]

        def weight(rows, columns, by, seed):
            return nn.Parameter(sw.distribute_tensor(values(rows, columns, seed=seed, grad=False), mesh, by))

        self.table = weight(vocabulary, features, by_row, 0)
        self.q, self.k, self.v = (weight(features, features, by_row, seed) for seed in (1, 2, 3))
        self.gate, self.up = (weight(48, features, by_row, seed) for seed in (4, 5))
        self.o, self.down = weight(features, features, by_column, 6), weight(features, 48, by_column, 7)
        self.norms = nn.Parameter(sw.distribute_tensor(torch.ones(2, features), mesh, [Replicate()]))
        angles = torch.outer(torch.arange(16.0), 10 ** -torch.arange(0.0, 1, 0.5)).repeat(1, 2)
        for name, part in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, sw.distribute_tensor(part, mesh, [Replicate()]))

    def turned(self, x):
        length, halves = x.shape[2], x.chunk(2, -1)
        return x * self.cos[:length] + torch.cat([-halves[1], halves[0]], -1) * self.sin[:length]

    def forward(self, ids, targets):
        x = F.embedding(ids, self.table)
        n_batch, length, features = x.shape
        given = F.rms_norm(x, (features,), self.norms[0])
        q, k, v = (F.linear(given, w).view(n_batch, length, -1, 4).transpose(1, 2) for w in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).flatten(2), self.o)
        given = F.rms_norm(x, (features,), self.norms[1])
        x = x + F.linear(F.silu(F.linear(given, self.gate)) * F.linear(given, self.up), self.down)
        return F.cross_entropy(F.linear(x, self.table).flatten(0, 1), targets.flatten())


def llama(_):
    def batch(n):
        ids = torch.arange(2 * n + 2) * 7 % 36
        return [
            sw.distribute_tensor(part.reshape(2, n).clone(), world_mesh(), [Replicate()])
            for part in (ids[:-2], ids[2:])
        ]

    expect(TWO, Llama(), batch)
    # On one of the ranks a gradient that is reduced is needed for nothing: the moves after it may not come before it.
    expect(TWO, Llama(), batch, backend="inductor")


PARTS = {
    part.__name__: part
    for part in (
        attention,
        parts_and_joins,
        uneven_heads,
        bags,
        draws,
        losses,
        choices,
        bounds_of_positions,
        sums_of_products,
        llama,
    )
}


if __name__ == "__main__":
    run_parts(PARTS)
