"""Lookups in an embedding table that is sharded over four ranks: by rows, by columns, in bags, with max_norm and with padding.

The program calls torch's own F.embedding and F.embedding_bag. Row r of a table holds r + 0.00, r + 0.01, r + 0.02 and so on. Every
result is compared with the same lookup in the whole table.

    $ torchrun --nproc-per-node 4 examples/sharded_embedding.py
    Rows: ten of them on four ranks, ids sharded by batch. A rank gets its rows from those that have them.
      rank        0             1             2             3
      has rows    0 1 2         3 4 5         6 7 8         9
      asks for    7 7           2 0           9 9           4 1
      gets        7.00 7.00     2.00 0.00     9.00 9.00     4.00 1.00     their first column
      gradient    1 1 1         0 1 0         0 2 0         2             how often its rows were asked for

    Columns: 17 of them on four ranks, all ids on each. A rank finds its columns of all rows.
      rank        0             1             2             3
      has columns 0 to 4        5 to 9        10 to 14      15 and 16
      asks for    3 1 5 5       3 1 5 5       3 1 5 5       3 1 5 5
      finds       3.00 1.00     3.05 1.05     3.10 1.10     3.15 1.15     its first, of the first two
      and gets    row 3         row 1         row 5         row 5         all columns of one, redistributed

    Bags: rows are pooled where they are, and only what came out of each bag is sent.
      rank        0             1             2             3
      has rows    0             1 2 3 4                     5 6 7 8 9
      wants bag   7 7 1                       9             4 1 0
      sum         15.00         0.00          9.00          5.00          the first column
      mean        5.00          0.00          9.00          1.67
      max         7.00          0.00          9.00          4.00

    max_norm: rows that are asked for are made no longer than 4, by the norm of their columns on all ranks.
      row         0             1             2             3             4             5
      asked for   no            yes           no            yes           no            yes
      norm        0.04          2.03          4.03          6.03          8.03          10.03
      afterwards  0.04          2.03          4.03          4.00          8.03          4.00

    Padding: row 0 stands for no word. Whoever has it, it gets no gradient.
      rank        0             1             2             3
      has row     0             1             2             3
      asks for    3 0           1 0           1 2           0 0
      gradient    0             2             1             1

sharded_embedding.cpp prints the same from C++.
"""

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import shardwise as sw

N_RANKS = 4


def table_of(n_rows: int, n_columns: int) -> Tensor:
    return torch.arange(n_rows)[:, None] + torch.arange(n_columns) / 100


def distribute(tensor: Tensor, placement: sw.Placement) -> sw.DTensor:
    """This rank's part of a tensor that every rank has."""
    mesh = sw.init_device_mesh("cpu", (N_RANKS,))
    return sw.distribute_tensor(tensor, mesh, [placement], src_data_rank=None)


def title(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"\n{text}")


def line(label: str, cells: Iterable[object], note: str = "") -> None:
    """A cell for each rank."""
    if dist.get_rank() == 0:
        print((f"  {label:12}" + "".join(f"{cell!s:14}" for cell in cells) + note).rstrip())


def text(values: Iterable[float], digits: int = 0) -> str:
    return " ".join(f"{float(value):.{digits}f}" for value in values)


def rows() -> None:
    title("Rows: ten of them on four ranks, ids sharded by batch. A rank gets its rows from those that have them.")
    values, batch = table_of(10, 3), torch.tensor([[7, 7], [2, 0], [9, 9], [4, 1]])
    table = distribute(values, sw.Shard(0)).requires_grad_()
    ids = distribute(batch, sw.Shard(0))

    found = F.embedding(ids, table).redistribute(placements=[sw.Shard(0)])
    found.sum().backward()

    result = found.detach().full_tensor()
    assert torch.equal(result, F.embedding(batch, values))
    line("rank", range(N_RANKS))
    line("has rows", map(text, torch.arange(10).split([3, 3, 3, 1])))
    line("asks for", map(text, batch))
    line("gets", map(partial(text, digits=2), result[:, :, 0]), "their first column")
    line("gradient", map(text, table.grad.full_tensor()[:, 0].split([3, 3, 3, 1])), "how often its rows were asked for")


def columns() -> None:
    title("Columns: 17 of them on four ranks, all ids on each. A rank finds its columns of all rows.")
    values, batch = table_of(6, 17), torch.tensor([3, 1, 5, 5])
    table = distribute(values, sw.Shard(1))
    ids = distribute(batch, sw.Replicate())

    found = F.embedding(ids, table)
    whole_rows = found.redistribute(placements=[sw.Shard(0)])

    assert found.placements == (sw.Shard(1),)
    assert torch.equal(whole_rows.full_tensor(), F.embedding(batch, values))
    line("rank", range(N_RANKS))
    line("has columns", ["0 to 4", "5 to 9", "10 to 14", "15 and 16"])
    line("asks for", [text(batch)] * N_RANKS)
    line("finds", [text(part[:2, 0], 2) for part in found.full_tensor().split(5, 1)], "its first, of the first two")
    line("and gets", [f"row {row[0]:.0f}" for row in whole_rows.full_tensor()], "all columns of one, redistributed")


def bags() -> None:
    title("Bags: rows are pooled where they are, and only what came out of each bag is sent.")
    values, flat, starts = table_of(10, 3), torch.tensor([7, 7, 1, 9, 4, 1, 0]), torch.tensor([0, 3, 3, 4])
    table = distribute(values, sw.Shard(0, sizes=[1, 4, 0, 5]))
    ids, offsets = distribute(flat, sw.Replicate()), distribute(starts, sw.Replicate())

    line("rank", range(N_RANKS))
    line("has rows", map(text, torch.arange(10).split([1, 4, 0, 5])))
    line("wants bag", map(text, flat.tensor_split(starts[1:])))
    for mode in ("sum", "mean", "max"):
        pooled = F.embedding_bag(ids, table, offsets, mode=mode).redistribute(placements=[sw.Shard(0)]).full_tensor()
        torch.testing.assert_close(pooled, F.embedding_bag(flat, values, starts, mode=mode))
        line(mode, (f"{row[0]:.2f}" for row in pooled), "the first column" if mode == "sum" else "")


def max_norm() -> None:
    title("max_norm: rows that are asked for are made no longer than 4, by the norm of their columns on all ranks.")
    values, batch = table_of(6, 4), torch.tensor([5, 1, 3, 5])
    table = distribute(values, sw.Shard(1))
    ids = distribute(batch, sw.Replicate())

    F.embedding(ids, table, max_norm=4.0)

    F.embedding(batch, dense := values.clone(), max_norm=4.0)
    torch.testing.assert_close(table.full_tensor(), dense)
    line("row", range(6))
    line("asked for", ["yes" if row in batch else "no" for row in range(6)])
    line("norm", (f"{norm:.2f}" for norm in values.norm(dim=1)))
    line("afterwards", (f"{norm:.2f}" for norm in table.full_tensor().norm(dim=1)))


def padding() -> None:
    title("Padding: row 0 stands for no word. Whoever has it, it gets no gradient.")
    values, batch = table_of(4, 3), torch.tensor([[3, 0], [1, 0], [1, 2], [0, 0]])
    table = distribute(values, sw.Shard(0)).requires_grad_()
    ids = distribute(batch, sw.Shard(0))

    F.embedding(ids, table, padding_idx=0).redistribute(placements=[sw.Shard(0)]).sum().backward()

    F.embedding(batch, dense := values.clone().requires_grad_(), padding_idx=0).sum().backward()
    assert torch.equal(table.grad.full_tensor(), dense.grad)
    line("rank", range(N_RANKS))
    line("has row", range(4))
    line("asks for", map(text, batch))
    line("gradient", map(text, table.grad.full_tensor()[:, :1]))


def main() -> None:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == N_RANKS, (
        f"[sharded_embedding] started with {dist.get_world_size()} ranks: use {N_RANKS}"
    )
    for part in (rows, columns, bags, max_norm, padding):
        part()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
