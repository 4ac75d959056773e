"""The calls that benchmarks/one_rank.py times: operators and layers on operands of about 4 MB.

A row has operands and a function of them. Every float operand is a leaf that requires a gradient. Operands are sharded along dim 0,
and parameters, which are written as `parameter(...)`, are replicated: on one rank both are the whole tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

MODEL = 256  # features of the layers


@dataclass(frozen=True)
class Operand:
    """Plain data, and the tensor dim along which it is sharded; None for a replica."""

    make: Callable[[], torch.Tensor]
    dim: int | None = 0


def floats(*shape: int) -> Operand:
    return Operand(lambda: torch.randn(shape))


def positive(*shape: int) -> Operand:
    return Operand(lambda: torch.rand(shape) + 0.1)


def ids(below: int, *shape: int) -> Operand:
    return Operand(lambda: torch.randint(below, shape))


def parameter(*shape: int) -> Operand:
    return Operand(lambda: torch.randn(shape) / 16, dim=None)


def matrices(n: int, size: int) -> Operand:
    """Symmetric positive definite matrices."""
    return Operand(lambda: (lambda x: x @ x.mT / size + torch.eye(size))(torch.randn(n, size, size)))


@dataclass(frozen=True)
class Row:
    name: str
    operands: tuple[Operand, ...]
    call: Callable[..., Any]


def row(name: str, call: Callable[..., Any], *operands: Operand) -> Row:
    return Row(name, operands or (X,), call)


X = floats(1024, 1024)
Y = floats(1024, 1024)
ROWS_OF_X = ids(1024, 1024)
CLASSES = ids(1024, 1024)
PICTURES = floats(16, 64, 32, 32)
HEADS = floats(8, 8, 64, 64)

POINTWISE = [
    row("add", torch.add, X, Y),
    row("mul", torch.mul, X, Y),
    row("div", torch.div, X, Y),
    row("mul by a number", lambda x: x * 2.0),
    row("addcmul", torch.addcmul, X, Y, Y),
    row("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    row("where", lambda x, y: torch.where(x > 0, x, y), X, Y),
    row("maximum", torch.maximum, X, Y),
    row("clamp", lambda x: x.clamp(-1, 1)),
    row("exp", torch.exp),
    row("log", torch.log, positive(1024, 1024)),
    row("sqrt", torch.sqrt, positive(1024, 1024)),
    row("tanh", torch.tanh),
    row("sigmoid", torch.sigmoid),
    row("relu", torch.relu),
    row("gelu", F.gelu),
    row("silu", F.silu),
    row("softplus", F.softplus),
    row("glu", lambda x: F.glu(x, 1)),
    row("masked_fill", lambda x: x.masked_fill(x > 0, 0.0)),
    row("dropout", lambda x: F.dropout(x, 0.5)),
    row("to bfloat16", lambda x: x.bfloat16()),
]
REDUCTIONS = [
    row("sum", torch.sum),
    row("sum of dim 0", lambda x: x.sum(0)),
    row("sum of dim 1", lambda x: x.sum(1)),
    row("mean", torch.mean),
    row("mean of dim 1", lambda x: x.mean(1)),
    row("amax of dim 1", lambda x: x.amax(1)),
    row("max of dim 0", lambda x: x.max(0).values),
    row("argmax", lambda x: x.argmax(1)),
    row("std", torch.std),
    row("var of dim 1", lambda x: x.var(1)),
    row("norm", torch.linalg.vector_norm),
    row("norm of dim 1", lambda x: torch.linalg.vector_norm(x, dim=1)),
    row("prod of dim 1", lambda x: x.prod(1)),
    row("logsumexp", lambda x: x.logsumexp(1)),
    row("softmax", lambda x: x.softmax(1)),
    row("log_softmax", lambda x: x.log_softmax(1)),
    row("softmax of dim 0", lambda x: x.softmax(0)),
    row("cumsum", lambda x: x.cumsum(1)),
    row("cumsum of dim 0", lambda x: x.cumsum(0)),
    row("topk", lambda x: x.topk(8, 1).values),
    row("sort", lambda x: x.sort(1).values),
    row("normalize", lambda x: F.normalize(x, dim=1)),
    row("pairwise_distance", F.pairwise_distance, X, Y),
    row("cosine_similarity", F.cosine_similarity, X, Y),
    row("any", lambda x: (x > 4).any()),
]
SHAPES = [
    row("transpose and copy", lambda x: x.t().contiguous()),
    row("view", lambda x: x.view(1024, 32, 32)),
    row("reshape of a transpose", lambda x: x.t().reshape(-1)),
    row("cat", lambda x, y: torch.cat([x, y], 1), X, Y),
    row("cat of dim 0", lambda x, y: torch.cat([x, y]), X, Y),
    row("stack", lambda x, y: torch.stack([x, y]), X, Y),
    row("split", lambda x: x.split(256)),
    row("split of dim 1", lambda x: x.split(256, 1)),
    row("chunk", lambda x: x.chunk(4)),
    row("unbind", lambda x: x.view(4, 256, 1024).unbind()),
    row("slice", lambda x: x[256:768]),
    row("select", lambda x: x[0]),
    row("narrow and copy", lambda x: x.narrow(1, 256, 512).contiguous()),
    row("pad", lambda x: F.pad(x, (1, 1))),
    row("flip", lambda x: x.flip(1)),
    row("roll", lambda x: x.roll(1, 1)),
    row("repeat", lambda x: x.repeat(2, 1), floats(512, 1024)),
    row("expand and add", lambda x, b: x + b, X, parameter(1024)),
    row("tril", torch.tril),
    row("diagonal", torch.diagonal),
]
INDEXING = [
    row("index_select", lambda x, i: x.index_select(0, i), X, ROWS_OF_X),
    row("index_select of dim 1", lambda x, i: x.index_select(1, i), X, Operand(ROWS_OF_X.make, None)),
    row("x[ids]", lambda x, i: x[i], X, ROWS_OF_X),
    row("gather", lambda x, i: x.gather(1, i), X, ids(1024, 1024, 1024)),
    row("scatter", lambda x, y, i: x.scatter(1, i, y), X, Y, ids(1024, 1024, 1024)),
    row("scatter_add", lambda x, y, i: x.scatter_add(1, i, y), X, Y, ids(1024, 1024, 1024)),
    row("index_add", lambda x, y, i: x.index_add(0, i, y), X, Y, ROWS_OF_X),
    row("index_put", lambda x, y, i: x.index_put((i,), y), X, Y, ROWS_OF_X),
    row("masked_select", lambda x: x.masked_select(x > 0)),
    row("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), X, ids(1024, 1024, 1024)),
    row("embedding", lambda w, i: F.embedding(i, w), X, ids(1024, 64, 64)),
    row("embedding_bag", lambda w, i: F.embedding_bag(i, w, mode="sum"), X, ids(1024, 64, 64)),
    row("one_hot", lambda i: F.one_hot(i, 512), ids(512, 1024)),
]
PRODUCTS = [
    row("mm", torch.mm, floats(512, 512), parameter(512, 512)),
    row("bmm", torch.bmm, floats(64, 128, 128), floats(64, 128, 128)),
    row("linear", F.linear, floats(4096, MODEL), parameter(MODEL, MODEL), parameter(MODEL)),
    row("addmm", lambda b, x, w: torch.addmm(b, x, w), parameter(MODEL), floats(4096, MODEL), parameter(MODEL, MODEL)),
    row("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), floats(64, 128, 128), floats(64, 128, 128)),
    row("outer", torch.outer, floats(1024), floats(1024)),
    row("conv1d", lambda x, w: F.conv1d(x, w, padding=1), floats(16, 64, 1024), parameter(64, 64, 3)),
    row("conv2d", lambda x, w: F.conv2d(x, w, padding=1), PICTURES, parameter(64, 64, 3, 3)),
    row("max_pool2d", lambda x: F.max_pool2d(x, 2), PICTURES),
    row("avg_pool2d", lambda x: F.avg_pool2d(x, 2), PICTURES),
    row("interpolate", lambda x: F.interpolate(x, scale_factor=2.0), floats(16, 64, 16, 16)),
    row("attention", F.scaled_dot_product_attention, HEADS, HEADS, HEADS),
    row(
        "causal attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, HEADS, HEADS
    ),
    row(
        "attention with a mask",
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask > 0),
        HEADS, HEADS, HEADS, parameter(64, 64),
    ),
    row("cholesky", torch.linalg.cholesky, matrices(256, 32)),
    row("solve", torch.linalg.solve, matrices(256, 32), floats(256, 32, 8)),
    row("inverse", torch.linalg.inv, matrices(256, 32)),
    row("qr", lambda x: torch.linalg.qr(x).R, floats(256, 32, 32)),
]  # fmt: skip
NORMS_AND_LOSSES = [
    row("layer_norm", lambda x, w, b: F.layer_norm(x, (1024,), w, b), X, parameter(1024), parameter(1024)),
    row("rms_norm", lambda x, w: F.rms_norm(x, (1024,), w), X, parameter(1024)),
    row(
        "batch_norm",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        PICTURES, parameter(64), parameter(64),
    ),
    row("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), PICTURES, parameter(64), parameter(64)),
    row("instance_norm", F.instance_norm, PICTURES),
    row("cross_entropy", F.cross_entropy, X, CLASSES),
    row("nll_loss", F.nll_loss, X, CLASSES),
    row("nll_loss of pictures", F.nll_loss, PICTURES, ids(64, 16, 32, 32)),
    row("mse_loss", F.mse_loss, X, Y),
    row("l1_loss", F.l1_loss, X, Y),
    row("smooth_l1_loss", F.smooth_l1_loss, X, Y),
    row("huber_loss", F.huber_loss, X, Y),
    row("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), X, positive(1024, 1024)),
    row(
        "bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid().detach()), X, Y
    ),
]  # fmt: skip


def module(make: Callable[[], torch.nn.Module], call: Callable[..., Any], *operands: Operand) -> tuple:
    """Operands of a row that calls a module: its parameters, then `operands`. The call gets the module with those parameters."""
    model = make()
    names = [name for name, _ in model.named_parameters()]
    leaves = [Operand(lambda p=p: p.detach().clone(), None) for p in model.parameters()]

    def apply(*values: Any) -> Any:
        inputs = values[len(names) :]
        return call(lambda *args, **kw: torch.func.functional_call(model, dict(zip(names, values)), args, kw), *inputs)

    return apply, *leaves, *operands


SEQUENCES = floats(32, 128, MODEL)
STATE = Operand(lambda: torch.zeros(1, 256, 64), dim=1)  # given: torch.nn would make a plain one
LAYERS = [
    row("Linear, GELU, Linear", *module(
        lambda: torch.nn.Sequential(torch.nn.Linear(MODEL, 1024), torch.nn.GELU(), torch.nn.Linear(1024, MODEL)),
        lambda model, x: model(x), floats(1024, MODEL),
    )),
    row("MultiheadAttention", *module(
        lambda: torch.nn.MultiheadAttention(MODEL, 8, batch_first=True),
        lambda model, x: model(x, x, x, need_weights=False)[0], SEQUENCES,
    )),
    row("TransformerEncoderLayer", *module(
        lambda: torch.nn.TransformerEncoderLayer(MODEL, 8, 512, dropout=0.0, batch_first=True),
        lambda model, x: model(x), floats(8, 128, MODEL),
    )),
    row("GRU", *module(
        lambda: torch.nn.GRU(64, 64, batch_first=True), lambda model, x, h: model(x, h)[0], floats(256, 16, 64), STATE,
    )),
    row("LSTM", *module(
        lambda: torch.nn.LSTM(64, 64, batch_first=True), lambda model, x, h, c: model(x, (h, c))[0],
        floats(256, 16, 64), STATE, STATE,
    )),
]  # fmt: skip
ROWS = [*POINTWISE, *REDUCTIONS, *SHAPES, *INDEXING, *PRODUCTS, *NORMS_AND_LOSSES, *LAYERS]
