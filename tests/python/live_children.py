"""Run by test_live_page.py under SHARDWISE_WATCH: a worker of a DataLoader, and a rank that torch.multiprocessing starts."""

import os
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist
from torch import multiprocessing
from torch.utils.data import DataLoader

import shardwise as sw


class Feeds:
    """Whether the process feeds the page."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return any(thread.name == "shardwise watch" for thread in threading.enumerate())


def stay(folder):
    while not (folder / "over").exists():
        time.sleep(0.05)


def run_rank(rank, folder):
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = sw.init_device_mesh("cpu", (2,))
    sw.ones(2, device_mesh=mesh, placements=[sw.Shard(0)]).sum().item()
    (folder / f"rank-{os.getpid()}").touch()
    stay(folder)


def main():
    folder = Path(sys.argv[1])
    started = multiprocessing.spawn(run_rank, (folder,), nprocs=2, join=False)
    os.environ["RANK"] = "0"  # as in a rank of torchrun's
    workers = DataLoader(Feeds(), num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    (folder / f"worker-{next(iter(workers)).item()}").touch()
    stay(folder)
    started.join()


if __name__ == "__main__":
    main()
