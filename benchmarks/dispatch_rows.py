"""The calls that benchmarks/dispatch times: one line per row, the same for every side.

A row builds a call from small operands ([4, 4] floats unless the row is fresh); the call takes no arguments and is
timed. A fresh row is built again for every call, with a shape that was not used before.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from sides import device

N_COLUMNS = 4
N_PARAMETERS = 50


@dataclass(frozen=True)
class Operands:
    """Makes a row's operands on one side."""

    side: object  # Plain or Distributed
    n_rows: int
    requires_grad: bool

    def batch(self, *dims):
        """[n_rows, 4] floats."""
        return self._floats((self.n_rows, N_COLUMNS), *dims)

    def weight(self, *dims):
        """[4, 4] floats; the shape does not depend on the number of rows."""
        return self._floats((N_COLUMNS, N_COLUMNS), *dims)

    def heads(self, *dims):
        """[n_rows, 2, 4, 4] floats: batches of attention's heads."""
        return self._floats((self.n_rows, 2, N_COLUMNS, N_COLUMNS), *dims)

    def ids(self, *dims):
        """[n_rows] row numbers of `weight`."""
        return self.side.distribute(torch.arange(self.n_rows, device=device()) % N_COLUMNS, *dims)

    def local(self):
        """A plain tensor like `batch`."""
        return torch.rand(self.n_rows, N_COLUMNS, device=device()).requires_grad_(self.requires_grad)

    def _floats(self, shape, *dims):
        return self.side.distribute(torch.rand(shape, device=device()), *dims).requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[[Operands], Callable[[], object]]
    grad: bool = False  # operands require grad, and grad mode is on
    fresh: bool = False

    @property
    def label(self):
        return f"{self.name} [grad]" if self.grad else self.name

    def calls(self, side, n_calls):
        """Yields lists of calls without end: for a hot row, `n_calls` times the same warm call; for a fresh row, a single new call."""
        call = self.build(Operands(side, N_COLUMNS, self.grad))
        for _ in range(10):
            call()
        while not self.fresh:
            yield [call] * n_calls
        while True:
            yield [self.build(Operands(side, next(_unseen_rows), self.grad))]


_unseen_rows = itertools.count(N_COLUMNS + 1)


def adam(operands, **implementation):
    """A step over 50 parameters of [4, 4] that have gradients."""
    parameters = [operands.weight(0).requires_grad_() for _ in range(N_PARAMETERS)]
    for parameter in parameters:
        parameter.grad = operands.weight(0)
    return torch.optim.Adam(parameters, **implementation).step


# name, call. Sharded operands: 0 and 1 are Shard(0) and Shard(1), None is Replicate().
OPS = (
    ("add", lambda t: partial(torch.add, t.batch(0), t.batch(0))),
    ("mul by scalar", lambda t: partial(torch.mul, t.batch(0), 2.0)),
    ("relu", lambda t: partial(torch.relu, t.batch(0))),
    ("linear, sharded weight", lambda t: partial(F.linear, t.batch(None), t.weight(0))),
    ("linear, contracted", lambda t: partial(F.linear, t.batch(1), t.weight(1))),
    ("embedding, rows", lambda t: partial(F.embedding, t.ids(None), t.weight(0))),
    ("attention, batch", lambda t: partial(F.scaled_dot_product_attention, *(t.heads(0) for _ in range(3)))),
    ("detach", lambda t: partial(torch.detach, t.batch(0))),
    ("view", lambda t: partial(torch.Tensor.view, t.batch(0), -1, 2, 2)),
    ("transpose", lambda t: partial(torch.transpose, t.batch(0), 0, 1)),
    ("cat", lambda t: partial(torch.cat, [t.batch(0), t.batch(0)], 1)),
    # With grad, each call appends a node to its left operand's graph: that costs the same however long the graph is.
    ("in-place add", lambda t: partial(torch.Tensor.add_, t.batch(0).clone(), t.batch(0))),
    ("from_local", lambda t: partial(t.side.from_local(0), t.local())),
    ("to_local", lambda t: partial(t.side.to_local(), t.batch(0))),
)

# A step runs under no_grad whatever the caller's mode.
STEPS = (
    ("Adam x50, for-loop", partial(adam, foreach=False, fused=False)),
    ("Adam x50, foreach", partial(adam, foreach=True)),
    ("Adam x50, fused", partial(adam, fused=True)),
)

FIRST_CALLS = (
    ("add, new shape", lambda t: partial(torch.add, t.batch(0), t.batch(0))),
    ("linear, new shape", lambda t: partial(F.linear, t.batch(None), t.weight(0))),
    ("embedding, new shape", lambda t: partial(F.embedding, t.ids(None), t.weight(0))),
    ("add, new shape, 2-D mesh", lambda t: partial(torch.add, t.batch(0, None), t.batch(0, None))),
    ("linear, new shape, 2-D mesh", lambda t: partial(F.linear, t.batch(0, None), t.weight(None, 0))),
    ("embedding, new shape, 2-D mesh", lambda t: partial(F.embedding, t.ids(0, None), t.weight(None, 0))),
)

ROWS = (
    *(Row(name, build, grad=grad) for grad in (False, True) for name, build in OPS),
    *(Row(name, build) for name, build in STEPS),
    *(Row(name, build, fresh=True) for name, build in FIRST_CALLS),
)


def select_rows(patterns):
    """The rows whose label contains one of `patterns`; all rows if there are no patterns."""
    rows = [row for row in ROWS if not patterns or any(pattern in row.label for pattern in patterns)]
    if not rows:
        raise SystemExit(f"[--rows] no row contains any of {patterns}. Rows: {', '.join(row.label for row in ROWS)}.")
    return rows
