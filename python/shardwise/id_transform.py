"""Maps raw 64-bit ids, such as hashes or user numbers, to rows of a table with a fixed number of rows.

    to_rows = ExactMapping(1_000_000, mesh)                      # each id its own row, while there are rows
    table = torch.nn.Parameter(sw.rand(1_000_000, 64, device_mesh=mesh, placements=to_rows.placements))
    rows = to_rows(raw_ids)                                      # this rank's ids, or a DTensor
    to_rows.reset_rows(table, optimizer, init="normal", scale=0.01)    # rows that passed to another id start anew
    F.embedding(rows, table)

ModuloHash has no state, and ids share rows. ExactMapping remembers ids; if no row is free, a new id takes the row used longest ago.
"""

from typing import Any, Literal

import torch
from torch import nn

from shardwise import _C
from shardwise._C import Placement
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor

__all__ = ["ExactMapping", "IdTransform", "ModuloHash"]


class IdTransform(nn.Module):
    """The base of the mappings: raw ids, integers of any shape, to rows in [0, n_rows), int64 of the same shape. For a DTensor of ids the
    result is a DTensor of the same placements.

    >>> from shardwise.id_transform import IdTransform, ModuloHash
    >>> isinstance(ModuloHash(1000), IdTransform)
    True
    """

    n_rows: int

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The row of each id."""
        raise NotImplementedError


class ModuloHash(IdTransform):
    """The row of an id is its hash (splitmix64) modulo `n_rows`. It has no state, sends nothing, and gives the same rows on every rank.

    Ids share rows, and the mapping does not know which. With n ids in n_rows rows, an id is alone in its row with probability
    (1 - 1/n_rows)^(n - 1): in 1,000,000 rows, 0.1 % of 1,000 ids share a row with another id, and 63 % of 1,000,000 ids do. With another
    `seed`, other ids share rows. So the sum of the rows of two tables with different seeds distinguishes most ids.

    Raises TypeError for ids that are not integers, and ValueError for a Partial tensor and for n_rows below 1.

    >>> from shardwise.id_transform import ModuloHash
    >>> to_rows = ModuloHash(1000)
    >>> rows = to_rows(torch.tensor([2**40, 7, 2**40]))
    >>> bool(rows[0] == rows[2]), bool((rows < 1000).all())
    (True, True)
    """

    def __init__(self, n_rows: int, seed: int = 0) -> None:
        super().__init__()
        self.n_rows, self.seed = n_rows, seed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The row of each id. Cost: one pass."""
        return _C.modulo_hash(ids, self.n_rows, self.seed)

    def share_of_collisions(self, n_ids: int) -> float:
        """The expected share of `n_ids` ids that share a row with another id."""
        return 1.0 - (1.0 - 1.0 / self.n_rows) ** max(n_ids - 1, 0)

    def extra_repr(self) -> str:
        return f"n_rows={self.n_rows}, seed={self.seed}"


class ExactMapping(IdTransform):
    """Each raw id gets its own row, of all `n_rows` except the default row.

    In training (module.training), new ids get rows. In a bucket without free rows, a new id takes the row used longest ago, or the first of
    these if several have the same age. Ids of the same step keep their rows. In evaluation nothing is inserted, and unknown ids get
    `default_row`, which belongs to no id.

    Rows are divided into `n_buckets` buckets of consecutive rows (0: one bucket per 256 rows). The hash of an id says which bucket it belongs
    to, on any number of ranks. Buckets fill up separately: with buckets of 256 rows the first one is full when about 80 % of all rows are
    taken. Each rank of `device_mesh` (1-D, on the CPU) owns whole buckets. `placements` shards rows by these buckets: the state has these
    placements, and a table with them has each row on the rank that knows its id.

    The result depends on the ids of all ranks together, not on which rank has which id: it is the same on any number of ranks. An id that
    occurs several times or on several ranks gets one row. Plain ids are this rank's own; ranks may have any number of them.

    The state consists of int64 DTensors, buffers of the module, so it is saved, loaded and resharded with the model: `ids`, `last_used`
    (the step; -1: never) and `counts` (how often the id occurred), [n_rows] each, and `header`: steps so far, n_rows, n_buckets,
    default_row. That is 24 bytes per row. A hash table takes 16 to 32 bytes more per row; it is at most half full, and is built again after a
    state was loaded.

    Collective over the mesh: three exchanges per call. A rank sends each of its distinct ids once, in 8 bytes and 4 for the count, and
    receives the row in 8.

    Raises, on all ranks and without a change of the state: TypeError for ids that are not integers; ValueError for a corrupt state or one of
    another mapping, if ranks are in different modes or at different steps, and if a step brings more ids of a bucket than it has rows.

    >>> from shardwise.id_transform import ExactMapping
    >>> to_rows = ExactMapping(1000, mesh)
    >>> raw = torch.tensor([2**40, 7, 2**40])
    >>> rows = to_rows(raw)
    >>> bool(rows[0] == rows[2]), bool(rows[0] == rows[1])
    (True, False)
    """

    ids: DTensor
    last_used: DTensor
    counts: DTensor
    header: DTensor

    def __init__(self, n_rows: int, device_mesh: DeviceMesh, *, n_buckets: int = 0, default_row: int = 0) -> None:
        super().__init__()
        self.n_rows, self.default_row, self.device_mesh = n_rows, default_row, device_mesh
        self._mapping = _C.ExactMapping(n_rows, device_mesh, n_buckets, default_row)
        self.n_buckets = self._mapping.n_buckets
        for name, tensor in zip(_STATE, self._mapping.new_state(), strict=True):
            self.register_buffer(name, tensor)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Rows sharded by whole buckets: the placements of the state. For a table with these placements, reset_rows() sends nothing."""
        return self._mapping.placements

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The row of each id."""
        return self._mapping.transform([getattr(self, name) for name in _STATE], ids, self.training)

    @property
    def reassigned(self) -> list[tuple[int, int]]:
        """(row, new id) of each row in this rank's buckets that the last training step took from another id."""
        return self._mapping.reassigned

    @property
    def n_reassigned(self) -> int:
        """The number of rows on all ranks that the last training step took from another id."""
        return self._mapping.n_reassigned

    def reset_rows(
        self,
        table: torch.Tensor,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        init: Literal["constant", "uniform", "normal"] = "normal",
        scale: float = 0.01,
        seed: int = 0,
    ) -> None:
        """Initialises the rows of `table` that the last training step gave to another id. Call it before these rows are looked up.

        `table`: a DTensor [n_rows, width] of any layout. `init`: "constant", all values are `scale`; "uniform" in [-scale, scale); or "normal" with
        standard deviation `scale`. Random numbers are a function of id, column and `seed`, so they are equal in any layout and on any number of
        ranks. `optimizer`: its state for these rows is reset, too: Adagrad's sums to initial_accumulator_value, all other state to 0.

        Every rank must call it. It sends nothing if the table has the placements `placements`, or if the last step reassigned no row.
        Otherwise it sends one message to each rank, once per step. Raises ValueError for a table with another number of rows, a Partial
        table, and a table that `optimizer` does not have.
        """
        states = [] if optimizer is None else _states_by_row(optimizer, table, self.n_rows)
        self._mapping.reset_rows(table, init, scale, seed)
        for state, value in states:
            self._mapping.reset_rows(state, "constant", value, 0)

    def extra_repr(self) -> str:
        return f"n_rows={self.n_rows}, n_buckets={self.n_buckets}, default_row={self.default_row}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mapping"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mapping = _C.ExactMapping(self.n_rows, self.device_mesh, self.n_buckets, self.default_row)


_STATE = ("ids", "last_used", "counts", "header")


def _states_by_row(
    optimizer: torch.optim.Optimizer, table: torch.Tensor, n_rows: int
) -> list[tuple[torch.Tensor, float]]:
    """The optimizer's tensors that have an entry per row of the table, each with its initial value."""
    group = next((group for group in optimizer.param_groups if any(p is table for p in group["params"])), None)
    if group is None:
        raise ValueError(
            f"[reset_rows] the {type(optimizer).__name__} does not have this table of shape {list(table.shape)}. Give the parameter itself, "
            "or its optimizer."
        )
    found = []
    for name, value in optimizer.state.get(table, {}).items():
        if isinstance(value, DTensor) and value.dim() > 0 and value.shape[0] == n_rows:
            found.append((value.detach(), float(group.get("initial_accumulator_value", 0.0)) if name == "sum" else 0.0))
    return found
