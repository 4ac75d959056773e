"""Run by test_hang.py, a process per rank: hang_program.py PART FOLDER RANK N_RANKS. Most parts never end by themselves."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import shardwise as sw
from shardwise import Replicate, Shard


def tensor_of(rank):
    """Once around, so that the ranks are connected."""
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = sw.ones(7, 3, device_mesh=mesh, placements=[Shard(0)])
    assert tensor.sum().item() == 21
    return tensor


def reads_a_file(folder, rank):
    """It says that it is here, and stays."""
    Path(folder, f"away-{rank}").touch()
    time.sleep(600)


def stays_away(folder, rank):
    tensor = tensor_of(rank)
    if rank == 2:
        reads_a_file(folder, rank)
    tensor.sum().item()  # the sum


def parts(folder, rank):
    tensor = tensor_of(rank)
    if rank == 1:
        tensor.redistribute(placements=[Replicate()])  # to all
    else:
        tensor.sum().item()  # the sum
    time.sleep(600)


def killed(folder, rank):
    tensor = tensor_of(rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        tensor.sum().item()
    except RuntimeError:
        sys.exit(3)


def circle(folder, rank):
    """Each rank is in two pairs, and begins with another one."""
    world = sw.init_device_mesh("cpu", (3,))
    meshes = [sw.DeviceMesh("cpu", pair) for pair in ([0, 1], [1, 2], [0, 2])]
    tensors = [sw.ones(4, device_mesh=mesh, placements=[Shard(0)]) for mesh in meshes]
    sw.ones(3, device_mesh=world, placements=[Shard(0)]).sum().item()
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    for pair in order:
        tensors[pair].sum().item()


def own_handler(folder, rank):
    """What the program does on SIGUSR1 stays."""
    signal.signal(signal.SIGUSR1, lambda *_: Path(folder, f"own-{rank}").touch())
    tensor_of(rank)
    os.kill(os.getpid(), signal.SIGUSR1)


def early_signal(folder, rank):
    """Before the first message, and in a process that was forked."""
    sw.init_device_mesh("cpu", (dist.get_world_size(),))
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(600)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGUSR1
    os.kill(os.getpid(), signal.SIGUSR1)
    while not list(Path(folder).glob(f"shardwise-rank{rank}-*.json")):
        time.sleep(0.05)
    assert len(list(Path(folder).glob(f"shardwise-rank{rank}-*.json"))) == 1


def checked(folder, rank):
    tensor = tensor_of(rank)
    try:
        if rank == 1:
            tensor.redistribute(placements=[Replicate()])  # to all
        else:
            tensor.sum().item()  # the sum
    except ValueError as error:
        Path(folder, f"error-{rank}").write_text(str(error))


if __name__ == "__main__":
    part, folder, rank, n_ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = dist.FileStore(str(Path(folder, "store")), n_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n_ranks, timeout=timedelta(seconds=120))
    globals()[part](folder, rank)
    if part in ("own_handler", "early_signal", "checked"):
        dist.barrier()
        dist.destroy_process_group()
