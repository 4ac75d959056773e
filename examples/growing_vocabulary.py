"""A vocabulary that grows while a table is trained: raw 64-bit ids get rows of a table with a fixed number of rows, over four ranks.

Users come and go over six days. All ranks together have forty users a day, and the table has 120 rows. A new user gets a free row. If no
row is free, the user gets the row that was used longest ago; that row and its optimizer state are initialised again. The vectors learn a
function of the id, so the program can count how many users have a trained vector each day.

    $ torchrun --nproc-per-node 4 examples/growing_vocabulary.py
    day  users  new  rows taken  rows used  known from the day before
      1     40   40           0         40                          0
      2     40   20           0         60                         20
      3     40   20           0         80                         20
      4     40   20           0        100                         20
      5     40   20           5        115                         20
      6     40   20          17        118                         20
    In evaluation nobody gets a row: 60 users of whom 40 are known, 20 rows are the default row.
    Saved and loaded into another mapping: the same rows.
"""

import io

import torch
import torch.distributed as dist
import torch.nn.functional as F

import shardwise as sw
from shardwise.id_transform import ExactMapping


def users_of(day):
    """The ids of a day's users, as another system made them. Half of these users also came the day before."""
    return torch.arange(20 * day, 20 * day + 40) * 0x1234567890AB - (1 << 62)


def wanted(ids):
    """The target of a user's vector."""
    return torch.stack([(ids >> 8) % 17, (ids >> 20) % 17], dim=-1) / 8 - 1


def main():
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    to_rows = ExactMapping(120, mesh, n_buckets=4)
    table = torch.nn.Parameter(sw.zeros(120, 2, device_mesh=mesh, placements=to_rows.placements))
    optimizer = sw.optim.FusedAdagrad([table], lr=1.0, row_wise=True)
    say("day  users  new  rows taken  rows used  known from the day before")
    for day in range(1, 7):
        ids = sw.distribute_tensor(users_of(day), mesh, [sw.Shard(0)])
        is_known = to_rows.eval()(ids) != to_rows.default_row
        rows = to_rows.train()(ids)
        to_rows.reset_rows(table, optimizer, init="normal", scale=0.01)
        distance = (F.embedding(rows, table) - wanted(ids)).abs().amax(-1).full_tensor()
        for _ in range(30):
            (F.embedding(rows, table) - wanted(ids)).square().sum().backward()
        n_known = int(is_known.sum().full_tensor())
        n_used = int((to_rows.last_used >= 0).sum().full_tensor())
        n_close = int((distance < 0.1).sum())
        say(f"{day:3}  {len(distance):5}  {40 - n_known:3}  {to_rows.n_reassigned:10}  {n_used:9}  {n_close:25}")

    to_rows.eval()
    asked = torch.cat([users_of(6), users_of(8)])[:60]
    found = to_rows(asked)
    n_unknown = int((found == to_rows.default_row).sum())
    say(
        f"In evaluation nobody gets a row: 60 users of whom {60 - n_unknown} are known, {n_unknown} rows are the default row."
    )
    saved = io.BytesIO()
    torch.save(to_rows.state_dict(), saved)
    other = ExactMapping(120, mesh, n_buckets=4).eval()
    other.load_state_dict(torch.load(io.BytesIO(saved.getvalue())))
    say(
        f"Saved and loaded into another mapping: {'the same rows' if torch.equal(other(asked), found) else 'other rows'}."
    )


def say(text):
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(text)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
