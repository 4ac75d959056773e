"""Optimizers fused into the backward of lookups: a row is updated as its gradient arrives, and no gradient of the table is stored.

    table = torch.nn.Parameter(sw.distribute_tensor(torch.rand(200_000, 64), mesh, [Shard(0)]))
    optimizer = sw.optim.FusedAdagrad([table], lr=0.1, row_wise=True)
    F.embedding_bag(ids, table).sum().backward()        # the rows that ids name have changed; table.grad is None

They are torch.optim.Optimizer classes: learning-rate schedules work on them, state_dict() holds their state as DTensors. Each
lookup in a table is one step of it, by the numbers in its group at the time of the backward; rows that no id names do not move, and
step() has nothing left to do. Other uses of a table than lookups give gradients as ever, which these optimizers ignore.

A table has one such optimizer at a time, while that lives: `close()` it, or drop it, and lookups give gradients again. A table that is
cast or laid out anew needs a new one: lookups say so.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import torch

from shardwise import _C

__all__ = ["FusedAdagrad", "FusedAdam", "FusedSGD"]


class _FusedOptimizer(torch.optim.Optimizer):
    """What the three share: a C++ optimizer per table, made when its group is added."""

    _kind: Literal["sgd", "adagrad", "row_wise_adagrad", "adam"]
    _state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._rows: dict[torch.Tensor, _C.RowOptimizer] = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Fuses the group's tables, all or none. Raises TypeError or ValueError for a tensor that is not a 2-D floating DTensor,
        wants no gradient, or has a fused optimizer already."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        made: dict[torch.Tensor, _C.RowOptimizer] = {}
        try:
            for table in group["params"]:
                made[table] = self._fused(table, group)
        except Exception:
            self.param_groups.pop()
            for table, rows in made.items():
                _C.release_optimizer(table, rows)
            raise
        for table, rows in made.items():
            self._rows[table] = rows
            self.state[table] = dict(zip(self._state_names, rows.state, strict=True))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Calls `closure`, if there is one: its backward updates the rows."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of steps."""
        for table, rows in self._rows.items():
            self.state[table]["step"] = torch.tensor(float(rows.n_steps))
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's: state of another layout is moved to this one's. It keeps its dtype."""
        super().load_state_dict(state_dict)
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        tables = [table for group in self.param_groups for table in group["params"]]
        for name, table in zip(names, tables, strict=True):
            saved, rows = state_dict["state"].get(name, {}), self._rows[table]
            rows.n_steps = int(saved.get("step", 0))
            for kind, own in zip(self._state_names, rows.state, strict=True):
                own.copy_(saved[kind])
                self.state[table][kind] = own

    def close(self) -> None:
        """Lookups give gradients again, and this optimizer does nothing from now on."""
        for table, rows in self._rows.items():
            _C.release_optimizer(table, rows)
        self._rows.clear()

    def __getstate__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"[{name}] belongs to its tables and cannot be copied. Make one for the copies and load its state_dict()."
        )

    def _fused(self, table: torch.Tensor, group: dict[str, Any]) -> _C.RowOptimizer:
        rows = _C.RowOptimizer(
            table, self._kind, **_numbers(group), initial_accumulator_value=group.get("initial_accumulator_value", 0.0)
        )
        if not table.requires_grad:
            raise ValueError(
                f"[{type(self).__name__}] a table of shape {list(table.shape)} wants no gradient. Give parameters."
            )
        # The hook must keep neither of them alive: the C++ optimizer holds it.
        owner, weak_rows = weakref.ref(self), weakref.ref(rows)

        def take_over() -> None:
            optimizer, own = owner(), weak_rows()
            if optimizer is not None and own is not None:
                own.set_options(**_numbers(optimizer._group_of(own)))

        rows.set_before_step(take_over)
        _C.fuse_optimizer(table, rows)
        return rows

    def _group_of(self, rows: _C.RowOptimizer) -> dict[str, Any]:
        return next(g for g in self.param_groups for table in g["params"] if self._rows.get(table) is rows)


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return {"lr": float(group["lr"]), "eps": float(group.get("eps", 0.0)), "beta1": beta1, "beta2": beta2}


class FusedSGD(_FusedOptimizer):
    """row -= lr * gradient, as torch.optim.SGD without momentum. No state."""

    _kind = "sgd"

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})


class FusedAdagrad(_FusedOptimizer):
    """Adagrad (Duchi, Hazan, Singer, 2011) as torch.optim.Adagrad has it; with `row_wise` one sum of mean squares a row, as TorchRec
    and FBGEMM have it. State: "sum", float32 (float64 of doubles) of the table's shape, or [rows].
    """

    _state_names = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        row_wise: bool = False,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        self._kind = "row_wise_adagrad" if row_wise else "adagrad"
        super().__init__(params, {"lr": lr, "eps": eps, "initial_accumulator_value": initial_accumulator_value})


class FusedAdam(_FusedOptimizer):
    """Adam (Kingma, Ba, 2014) on the rows that ids name, as torch.optim.SparseAdam has it: the moments of other rows stand still.
    State: "exp_avg" and "exp_avg_sq", float32 (float64 of doubles) of the table's shape.
    """

    _kind = "adam"
    _state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
