"""Run by test_mesh_lifetimes.py under torchrun: mesh_lifetime_program.py PARTS FOLDER prints PARTS-RANK where all is well."""

import gc
import os
import threading

import torch
import torch.distributed as dist
from torchrun import run_parts

import shardwise as sw
from shardwise import Replicate, Shard


def threads_and_files():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def given_groups(folder):
    """Each mesh is over a group of its own, which the program destroys and drops."""
    everyone = list(range(dist.get_world_size()))

    def use_one():
        group = dist.new_group(everyone)
        mesh = sw.DeviceMesh.from_group(group, "cpu")
        x = sw.ones(4, device_mesh=mesh, placements=[Shard(0)])
        assert (x + 1).redistribute(placements=[Replicate()]).to_local().tolist() == [2] * 4
        dist.barrier()
        dist.destroy_process_group(group)

    for _ in range(10):
        use_one()
    gc.collect()
    before = threads_and_files()
    for _ in range(50):
        use_one()
    gc.collect()
    after = threads_and_files()
    assert all(now < then + 20 for then, now in zip(before, after, strict=True)), (before, after)


def several_threads(folder):
    """Threads of one rank make meshes, each rank's in another order, and one that all of them want."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    wanted = [[a, b] for a in range(n_ranks) for b in range(a + 1, n_ranks)]
    wanted = wanted[rank:] + wanted[:rank]
    shared, errors = [], []

    def make(ranks):
        try:
            mesh = sw.DeviceMesh("cpu", ranks)
            if rank in ranks:
                total = torch.tensor([rank])
                dist.all_reduce(total, group=mesh.get_group())
                assert total.item() == sum(ranks), (ranks, total)
            shared.append(sw.DeviceMesh("cpu", [0, 1, 2]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(ranks,)) for ranks in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert all(mesh == shared[0] for mesh in shared)
    dist.barrier()


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def without_end(folder):
    """Meshes and shapes that are used once leave no memory."""

    def use_mesh(i):
        mesh = sw.DeviceMesh(
            "cpu", list(range(dist.get_world_size())), mesh_dim_names=(f"dim{i}",), _init_backend=False
        )
        (sw.DTensor.from_local(piece, mesh, [Shard(0)]) + 1).to_local()

    def use_shape(i):  # small tensors: the heap's gaps after large ones are no memory that shapes leave
        sizes = (1 + i % 20, 1 + i // 20 % 20, 1 + i // 400 % 20, 1 + i // 8000)
        (sw.DTensor.from_local(torch.empty(sizes), mesh, [Shard(0)]) + 1).to_local()

    piece = torch.ones(1, 1)
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    for use, n, warm in ((use_mesh, 10_000, 2_000), (use_shape, 40_000, 20_000)):
        for i in range(n):
            if i == warm:
                gc.collect()
                before = resident_mib()
            use(i)
        gc.collect()
        assert resident_mib() < before + 16, (use.__name__, before, resident_mib())


if __name__ == "__main__":
    run_parts(globals())
