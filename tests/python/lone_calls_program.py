"""Run by test_lone_calls.py, a process per rank: lone_calls_program.py PART FOLDER RANK N_RANKS. Each rank writes its errors to a file."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, parallelize_module

TIMEOUT = {"another_call": 10}  # seconds


def table_of(n_rows):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.arange(3.0 * n_rows).view(n_rows, 3)
    return sw.distribute_tensor(rows, mesh, [Shard(0)])


def error_of(call):
    begin = time.monotonic()
    try:
        value = call()
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error), "seconds": time.monotonic() - begin}
    return {"value": value}


def looked_up(table):
    ids = sw.distribute_tensor(torch.tensor([0, 3]), table.device_mesh, [Replicate()], src_data_rank=None)
    with sw.lookup_exchange("all_to_all"):  # which sends rows, however few
        return F.embedding(ids, table).full_tensor().tolist()


def another_call(rank):
    """Rank 0 alone reads a row, which is an operator that moves it."""
    table = table_of(4)
    looked_up(table)
    lone = error_of(lambda: table[0].full_tensor().tolist()) if rank == 0 else None  # the lone row
    return [lone, error_of(lambda: looked_up(table)), error_of(lambda: table.sum().item())]


def another_length(rank):
    """One operator, and another number of bytes on each rank: a move, and reductions of every length. Each has a group of its own."""
    errors = []
    for n_rows, placement in ((2, Shard(0)), (2, Partial()), (20_000, Partial()), (200_000, Partial())):
        group = dist.new_group(timeout=timedelta(seconds=3))
        mesh = sw.DeviceMesh.from_group(group, "cpu")
        table = sw.DTensor.from_local(torch.ones(n_rows + rank * n_rows // 2, 3), mesh, [placement])
        errors.append(error_of(lambda x=table: x.redistribute(placements=[Replicate()]).to_local().tolist()))
        errors.append(error_of(lambda x=table: x.sum().item()))
    return errors


def nobody_comes(rank):
    """Under SHARDWISE_CHECK=1."""
    table = table_of(4)
    table.sum().item()  # the sum of all
    errors = [error_of(lambda: table.mean().item())] if rank == 0 else []  # the lone mean
    while rank == 1 and not Path(folder, "errors-0").exists():
        time.sleep(0.1)
    return errors


def other_offsets(rank):
    """Under SHARDWISE_CHECK=1: bags of one length each, and of another one on each rank."""
    table = table_of(4)
    ids = sw.distribute_tensor(torch.tensor([0, 3]), table.device_mesh, [Replicate()], src_data_rank=None)
    offsets = torch.tensor([0, 1] if rank == 0 else [0])
    return [error_of(lambda: F.embedding_bag(ids, table, offsets).to_local().tolist())]


def other_operands(rank):
    """Under SHARDWISE_CHECK=1: one operator of the same number of elements, on other tensors, layers and models, and from another thread."""
    torch.manual_seed(0)
    table, longer = table_of(4), table_of(8)
    own, ids = (table, longer)[rank], sw.distribute_tensor(torch.tensor([1, 3]), table.device_mesh, [Shard(0)])
    errors = [
        error_of(lambda: own[own > 3].shape),
        error_of(lambda: own.nonzero().shape),
        error_of(lambda: F.embedding(ids, own).to_local().tolist()),
    ]

    def layer():
        return sw.DistributedEmbedding([sw.TableConfig("t", 8, 2)], mesh=table.device_mesh)

    def model():
        return sw.fully_shard(torch.nn.Linear(4, 4), mesh=table.device_mesh)

    for first, second, given in ((layer(), layer(), [torch.tensor([[1], [3]])]), (model(), model(), torch.ones(2, 4))):
        errors.append(error_of(lambda one=(first, second)[rank], given=given: one(given)[0].tolist()))
    columns = torch.nn.Sequential(torch.nn.Linear(2, 4))
    parallelize_module(columns, table.device_mesh, {"0": ColwiseParallel()})
    errors.append(error_of(lambda: columns(torch.ones(2, 2) * (rank + 1)).tolist()))
    with ThreadPoolExecutor(1) as pool:  # which is not the thread of the calls so far
        call = lambda: table.sum().item()  # noqa: E731
        errors.append(error_of(call if rank == 0 else lambda: pool.submit(call).result()))
    return errors


def killed(rank):
    table = table_of(4)
    table.sum().item()
    if rank == 1:
        os._exit(0)
    return [error_of(lambda: table.sum().item()), error_of(lambda: table.mean().item())]


def forked(rank):
    """A child that asks for a message, and ends as a DataLoader's worker does."""
    table = table_of(4)
    child = os.fork()
    if child == 0:
        Path(folder, f"child-{rank}").write_text(json.dumps(error_of(lambda: table.sum().item())))
        os._exit(7)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    error = json.loads(Path(folder, f"child-{rank}").read_text())
    return [{"value": ended}, error, {"value": table.sum().item()}]


if __name__ == "__main__":
    part, folder, rank, n_ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = dist.FileStore(str(Path(folder, "store")), n_ranks)
    timeout = timedelta(seconds=TIMEOUT.get(part, 120))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n_ranks, timeout=timeout)
    errors = globals()[part](rank)
    partial = Path(folder, f"partial-{rank}")
    partial.write_text(json.dumps(errors))
    partial.rename(Path(folder, f"errors-{rank}"))
