"""Optimizers fused into the backward of lookups: a row is updated as its gradient arrives, and no gradient of the table is stored.

    table = torch.nn.Parameter(sw.distribute_tensor(torch.rand(200_000, 64), mesh, [Shard(0)]))
    optimizer = sw.optim.FusedAdagrad([table], lr=0.1, row_wise=True)
    F.embedding_bag(ids, table).sum().backward()        # the rows that ids name have changed; table.grad is None

They are torch.optim.Optimizer classes: learning-rate schedules work on them, and state_dict() holds their state as DTensors. The backward
of each lookup in a table is one step, with the options that the parameter group has at that time. Rows that no id names do not change.
step() does nothing. If a table is used in other ways than lookups, it gets a gradient for these uses, which these optimizers ignore.

A table can have only one such optimizer at a time. After `close()`, or when the object is freed, lookups give gradients again. After a
table was cast or got another layout, it needs a new optimizer: lookups raise an error until then.

All take `weight_decay`, which changes only the rows that ids name. For tables of float16 and bfloat16 they take `stochastic_rounding`: a
row's new value, computed in float32, is rounded up or down at random, so that steps too small for 16 bits are not lost. The random
numbers depend only on `seed`, the table's index among the optimizer's tables, the step, the row and the column: they are the same for
any number of ranks and threads and in any layout. `row_wise=True` keeps one number per row instead of one per element. If the columns of
a row are on several ranks, row-wise optimizers and FusedLAMB exchange a few numbers for each row that ids name.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import torch

from shardwise import _C
from shardwise.interop.state_dicts import placed_as

__all__ = ["FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedSGD"]


class _FusedOptimizer(torch.optim.Optimizer):
    """The base of the fused optimizers: a C++ optimizer per table, made when its group is added."""

    _kind: Literal["sgd", "adagrad", "row_wise_adagrad", "adam", "row_wise_adam", "lamb", "row_wise_lamb"]
    _state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        self._rows: dict[torch.Tensor, _C.RowOptimizer] = {}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Fuses the group's tables, all or none. Raises TypeError or ValueError for a tensor that is not a 2-D floating DTensor,
        wants no gradient, or has a fused optimizer already."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        made: dict[torch.Tensor, _C.RowOptimizer] = {}
        try:
            for table in group["params"]:
                made[table] = self._fused(table, group, len(self._rows) + len(made))
        except Exception:
            self.param_groups.pop()
            for table, rows in made.items():
                _C.release_optimizer(table, rows)
            raise
        self._rows |= made
        self.state.update({table: self._own_state(table) for table in made})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Calls `closure`, if there is one. Its backward updates the rows."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of steps."""
        for table, rows in self._rows.items():
            rows.write_back()
            self.state[table]["step"] = torch.tensor(float(rows.n_steps), dtype=torch.float32)
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch. State of another layout or mesh is moved to that of the table; plain state must be equal on all ranks, and each rank
        takes its part. This optimizer's state keeps its dtype. Raises ValueError, before anything is loaded, if the state of a table is
        incomplete or has another shape."""
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        tables = [table for group in self.param_groups for table in group["params"]]
        state = dict(state_dict["state"])
        # torch raises an error if the numbers differ
        kept = [(name, table, self._own_state(table)) for name, table in zip(names, tables, strict=False)]
        for name, _, own in kept:
            self._check(name, state.get(name, {}), own)
        for rows in self._rows.values():
            rows.write_back()  # `state_dict` may hold this optimizer's own tensors
        for name, _, own in kept:
            saved = state.get(name, {})
            state[name] = {**saved, **{kind: _on_mesh_of(each, saved[kind]) for kind, each in own.items()}}
        super().load_state_dict({**state_dict, "state": state})
        for name, table, own in kept:
            self._rows[table].n_steps = int(state[name].get("step", 0))
            for kind, each in own.items():
                each.copy_(state[name][kind])
            self.state[table].update(own)

    def _own_state(self, table: torch.Tensor) -> dict[str, Any]:
        return dict(zip(self._state_names, self._rows[table].state, strict=True))

    def _check(self, name: Any, saved: dict[str, Any], state: dict[str, Any]) -> None:
        """Raises ValueError unless the saved state of a table has the names and shapes of its `state`."""
        missing = [kind for kind in state if kind not in saved]
        if missing:
            raise ValueError(
                f"[{type(self).__name__}] the state of parameter {name} lacks {missing}: another optimizer saved it, or one without some of "
                "the tables. Nothing was loaded. Load one that this class has saved."
            )
        for kind, own in state.items():
            if saved[kind].shape != own.shape:
                raise ValueError(
                    f'[{type(self).__name__}] the state "{kind}" of parameter {name} has shape {list(saved[kind].shape)}, and '
                    f"{list(own.shape)} is needed. Nothing was loaded. Load one that was saved of a table of the same shape, with the same "
                    "row_wise."
                )

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

    def _fused(self, table: torch.Tensor, group: dict[str, Any], place: int) -> _C.RowOptimizer:
        known = self._options(group, place)
        rows = _C.RowOptimizer(table, _C.RowOptions(*known))
        if not table.requires_grad:
            raise ValueError(
                f"[{type(self).__name__}] a table of shape {list(table.shape)} requires no gradient. Give parameters."
            )
        # The C++ optimizer holds the hook, so the hook must keep none of these alive.
        owner, weak_table, weak_rows = weakref.ref(self), weakref.ref(table), weakref.ref(rows)

        def take_over() -> None:
            nonlocal known
            optimizer, of, own = owner(), weak_table(), weak_rows()
            if optimizer is None or of is None or own is None:
                return
            options = optimizer._options(optimizer._group_of(of, place), place)
            if options != known:
                own.set_options(_C.RowOptions(*options))
                known = options

        rows.set_before_step(take_over)
        _C.fuse_optimizer(table, rows)
        return rows

    def _options(self, group: dict[str, Any], place: int) -> tuple[Any, ...]:
        """The arguments of RowOptions for the table with the index `place`."""
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        return (
            self._kind,
            float(group["lr"]),
            float(group.get("eps", 0.0)),
            float(beta1),
            float(beta2),
            group.get("initial_accumulator_value", 0.0),
            float(group.get("weight_decay", 0.0)),
            bool(group.get("decoupled_weight_decay", False)),
            bool(group.get("stochastic_rounding", False)),
            (int(group.get("seed", 0)) + place) % 2**64,
        )

    def _group_of(self, table: torch.Tensor, place: int) -> dict[str, Any]:
        for group in self.param_groups:
            params = group["params"]
            if (place < len(params) and params[place] is table) or id(table) in map(id, params):
                return group
        raise RuntimeError(
            f"[{type(self).__name__}] a table of shape {list(table.shape)} is in none of the optimizer's param_groups any more, so its step has no "
            "learning rate. close() the optimizer, after which lookups give gradients, or keep the group with lr=0."
        )


def _on_mesh_of(own: Any, saved: torch.Tensor) -> torch.Tensor:
    """The saved state on the mesh of the state `own`. Plain values get the layout of `own`."""
    placed: Any = placed_as(saved, own)
    return placed if placed.device_mesh == own.device_mesh else placed.redistribute(own.device_mesh, own.placements)


class FusedSGD(_FusedOptimizer):
    """row -= lr * (gradient + weight_decay * row), as torch.optim.SGD without momentum. No state.

    >>> table = torch.nn.Parameter(sw.ones(100, 4, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> optimizer = sw.optim.FusedSGD([table], lr=0.1)
    >>> F.embedding(sw.distribute_tensor(torch.tensor([3, 99]), mesh), table).sum().backward()
    >>> table.grad, bool((table[3] < 1).all()), bool((table[4] == 1).all())
    (None, True, True)
    """

    _kind = "sgd"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.0,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, stochastic_rounding=stochastic_rounding, seed=seed)


class FusedAdagrad(_FusedOptimizer):
    """Adagrad (Duchi, Hazan, Singer, 2011), the same as torch.optim.Adagrad. With `row_wise` it keeps one sum of mean squares per row, as TorchRec
    and FBGEMM do. `weight_decay` adds weight_decay * row to the gradient; with `decoupled_weight_decay` the row is multiplied by
    1 - lr * weight_decay instead. State: "sum", float32 (float64 for tables of doubles), of the table's shape or, with `row_wise`, [rows].

    >>> table = torch.nn.Parameter(sw.ones(100, 4, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> optimizer = sw.optim.FusedAdagrad([table], lr=0.1, row_wise=True)
    >>> F.embedding(sw.distribute_tensor(torch.tensor([3, 99]), mesh), table).sum().backward()
    >>> table.grad, bool((table[3] < 1).all()), bool((table[4] == 1).all())
    (None, True, True)
    """

    _state_names = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        row_wise: bool = False,
        initial_accumulator_value: float = 0.0,
        *,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        self._kind = "row_wise_adagrad" if row_wise else "adagrad"
        super().__init__(
            params,
            lr=lr,
            eps=eps,
            initial_accumulator_value=initial_accumulator_value,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )


class FusedAdam(_FusedOptimizer):
    """Adam (Kingma, Ba, 2014) on the rows that ids name, the same as torch.optim.SparseAdam: the moments of other rows do not change. With
    `row_wise` the second moment is one number per row, of mean squares, as in FBGEMM's partial row-wise Adam. `weight_decay` adds
    weight_decay * row to the gradient, as torch.optim.Adam does; with `decoupled_weight_decay` it is applied as in AdamW (Loshchilov,
    Hutter, 2019). State: "exp_avg" and "exp_avg_sq", float32 (float64 for tables of doubles), of the table's shape; with `row_wise` the
    second is [rows].

    >>> table = torch.nn.Parameter(sw.ones(100, 4, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> optimizer = sw.optim.FusedAdam([table], lr=0.01)
    >>> F.embedding(sw.distribute_tensor(torch.tensor([3, 99]), mesh), table).sum().backward()
    >>> table.grad, bool((table[3] < 1).all()), bool((table[4] == 1).all())
    (None, True, True)
    """

    _state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        row_wise: bool = False,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        self._kind = "row_wise_adam" if row_wise else "adam"
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )


class FusedLAMB(_FusedOptimizer):
    """LAMB (You et al., 2020) with each row as a layer, as in FBGEMM. The step is Adam's plus weight_decay * row, scaled to the norm of the row;
    if the norm of the step or of the row is 0, it is not scaled. With `row_wise` the second moment is one number per row, of mean squares
    (FBGEMM's partial row-wise LAMB). State: the same as FusedAdam's.

    >>> table = torch.nn.Parameter(sw.ones(100, 4, device_mesh=mesh, placements=[sw.Shard(0)]))
    >>> optimizer = sw.optim.FusedLAMB([table], lr=0.01)
    >>> F.embedding(sw.distribute_tensor(torch.tensor([3, 99]), mesh), table).sum().backward()
    >>> table.grad, bool((table[3] < 1).all()), bool((table[4] == 1).all())
    (None, True, True)
    """

    _state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        *,
        row_wise: bool = False,
        weight_decay: float = 0.0,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        self._kind = "row_wise_lamb" if row_wise else "lamb"
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
