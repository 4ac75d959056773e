"""Optimizers fused into the backward of lookups: a row is updated as its gradient arrives, and no gradient of the table is stored.

    table = torch.nn.Parameter(sw.distribute_tensor(torch.rand(200_000, 64), mesh, [Shard(0)]))
    optimizer = sw.optim.FusedAdagrad([table], lr=0.1, row_wise=True)
    F.embedding_bag(ids, table).sum().backward()        # the rows that ids name have changed; table.grad is None

They are torch.optim.Optimizer classes: learning-rate schedulers work on them, state_dict() holds their state as DTensors. Each
lookup in a table is one step of it, whatever step() is called; rows that no id names do not move. Other uses of a table than
lookups give gradients as ever, which these optimizers ignore. `close()` gives the tables back.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from shardwise import _C

__all__ = ["FusedAdagrad", "FusedAdam", "FusedSGD"]


class _FusedOptimizer(torch.optim.Optimizer):
    """What the three share: a C++ optimizer per table, made when its group is added."""

    _kind: str
    _state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._rows: dict[torch.Tensor, _C.RowOptimizer] = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Fuses the group's tables. Raises TypeError or ValueError for a tensor that is not a 2-D floating DTensor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        for table in group["params"]:
            rows = _C.fuse_optimizer(
                table,
                self._kind,
                float(group["lr"]),
                group.get("eps", 0.0),
                beta1,
                beta2,
                group.get("initial_accumulator_value", 0.0),
            )
            self._rows[table] = rows
            self.state[table] = dict(zip(self._state_names, rows.state, strict=True))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes new learning rates over; the rows have their updates already."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_over()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Takes new learning rates over, and drops gradients that other uses of the tables gave."""
        self._take_over()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of steps."""
        for table, rows in self._rows.items():
            self.state[table]["step"] = torch.tensor(float(rows.n_steps))
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's: state of another cut is moved to this one's."""
        super().load_state_dict(state_dict)
        for table, rows in self._rows.items():
            loaded = self.state[table]
            rows.n_steps = int(loaded.get("step", 0))
            for name, own in zip(self._state_names, rows.state, strict=True):
                own.copy_(loaded[name])
                loaded[name] = own
        self._take_over()

    def close(self) -> None:
        """Lookups give gradients again, and this optimizer does nothing from now on."""
        for table in self._rows:
            _C.release_optimizer(table)
        self._rows.clear()

    def _take_over(self) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                if table in self._rows:
                    self._rows[table].set_lr(float(group["lr"]))


class FusedSGD(_FusedOptimizer):
    """row -= lr * gradient, as torch.optim.SGD without momentum. No state."""

    _kind = "sgd"

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})


class FusedAdagrad(_FusedOptimizer):
    """Adagrad (Duchi, Hazan, Singer, 2011) as torch.optim.Adagrad has it; with `row_wise` one sum of mean squares a row, as TorchRec
    and FBGEMM have it. State: "sum", float32 (float64 of doubles) of the table's shape, or [rows].
    """

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

    _state_names = ("sum",)


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
