"""Run by test_many_ranks.py in processes: many_ranks_program.py PARTS FOLDER, see run_parts()."""

from collections import Counter

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


if __name__ == "__main__":
    run_parts(globals())
