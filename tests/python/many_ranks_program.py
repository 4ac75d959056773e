"""Run by test_many_ranks.py in processes: many_ranks_program.py PARTS FOLDER, see run_parts()."""

import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from many_ranks import cases, run_cases
from torchrun import run_parts

import shardwise as sw
from shardwise import Shard


def every_case(folder):
    n = dist.get_world_size()
    run_cases(dist.get_rank(), n, cases(n))


class CountingStore(dist.Store):
    """A store that counts the keys that are set and read."""

    def __init__(self, store):
        super().__init__()
        self.store, self.calls = store, Counter()

    def set(self, key, value):
        self.calls["set"] += 1
        self.store.set(key, value)

    def get(self, key):
        self.calls["read"] += 1
        return self.store.get(key)

    def wait(self, keys, timeout=None):
        self.store.wait(keys) if timeout is None else self.store.wait(keys, timeout)


def store_calls(folder):
    """A mesh sets a key and reads those of the members for each group of this rank along a dim; the group of a slice comes when it is used."""
    store = CountingStore(dist.PrefixStore("counted", dist.distributed_c10d._get_default_store()))
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n)

    def expect(n_set, n_read):
        assert store.calls == Counter(set=n_set, read=n_read), store.calls
        store.calls.clear()

    expect(1, n)
    mesh = sw.init_device_mesh("cpu", (2, 2, n // 4), mesh_dim_names=("a", "b", "c"))
    expect(3, 2 + 2 + n // 4)
    part = mesh["b", "c"]
    assert mesh["c"].get_group() is part["c"].get_group() is mesh.get_group("c")
    sw.init_device_mesh("cpu", (2, 2, n // 4))
    expect(0, 0)
    for n_set in (1, 0):
        tensor = sw.distribute_tensor(torch.arange(24.0), part, [Shard(0), Shard(0)])
        assert tensor.full_tensor().tolist() == list(range(24))
        expect(n_set, n_set * n // 2)


def different_agreements(folder):
    """Ranks that agree on different things learn it at once, and their messages still meet afterwards."""
    rank, mesh = dist.get_rank(), sw.init_device_mesh("cpu", (dist.get_world_size(),))
    for _ in range(2):
        with pytest.raises(ValueError, match="make different calls; this rank calls") as error:
            if rank == 3:
                sw.DTensor.from_local(torch.ones(3), mesh, [Shard(0)], run_check=True)
            else:
                sw.distribute_tensor(torch.ones(40), mesh, [Shard(0)])
        assert str(error.value).count("from_local" if rank == 3 else "distribute_tensor") == 1
    assert sw.distribute_tensor(torch.arange(40.0), mesh, [Shard(0)]).full_tensor().tolist() == list(range(40))


def gone_before_an_agreement(folder):
    x = torch.ones(40)
    expect_all_to_fail(lambda mesh: sw.distribute_tensor(x, mesh, [Shard(0)]), folder)


def gone_before_a_reduction(folder):
    expect_all_to_fail(lambda mesh: sw.ones(40, device_mesh=mesh, placements=[Shard(0)]).sum().item(), folder)


def expect_all_to_fail(call, folder):
    """Rank 3 goes. All others fail long before the timeout, although few of them wait for rank 3 itself, and nobody who has failed goes."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mesh = sw.init_device_mesh("cpu", (n,))
    dist.barrier()
    if rank != 3:
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=f"rank {rank} failed in its"):
            call(mesh)
        assert time.monotonic() - began < 40, "the timeout is 60 seconds"
    (Path(folder) / str(rank)).touch()
    while rank != 3 and len(list(Path(folder).iterdir())) < n and time.monotonic() - began < 40:
        time.sleep(0.1)
    sys.stdout.write(f"{sys.argv[1]}-{rank}\n")
    os._exit(0)


if __name__ == "__main__":
    run_parts(globals())
