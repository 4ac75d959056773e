"""Run by test_torch_names.py under torchrun: torch_names_program.py PART prints PART-RANK where all is well."""

import gc
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torch_init_device_mesh

import shardwise as sw
from shardwise import _C, Replicate, Shard, _torch_groups
from shardwise._torch_groups import group_by_members, lone_group, timeout_of

c10d_functional = torch.ops.c10d_functional


def raises(kind, text, fn):
    try:
        fn()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def ranks_of(group):
    return dist.get_process_group_ranks(group)


def works(mesh):
    """A tensor on the mesh, back and forth."""
    x = torch.arange(10.0).view(5, 2)
    tensor = sw.distribute_tensor(x, mesh, [Shard(0)] * mesh.ndim)
    assert tensor.device_mesh == mesh
    assert mesh.get_coordinate() is None or torch.equal(tensor.full_tensor(), x)


def torchs_own():
    """A mesh is one of torch's, and equal to it."""
    rank = dist.get_rank()
    ours = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    theirs = torch_init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert isinstance(ours, TorchDeviceMesh) and ours == theirs and theirs == ours
    assert ours != torch_init_device_mesh("cpu", (4,)) and torch_init_device_mesh("cpu", (2, 2)) != ours
    assert [ranks_of(group) for group in ours.get_all_groups()] == [
        [rank % 2, rank % 2 + 2],
        [rank // 2 * 2, rank // 2 * 2 + 1],
    ]
    local = sw.distribute_tensor(torch.arange(4.0), theirs, [Shard(0), Replicate()])
    assert local.device_mesh == ours and local.device_mesh is sw.zeros(4, device_mesh=ours).device_mesh
    with theirs:
        assert sw.zeros(4).device_mesh == ours
    with ours:
        assert torch.distributed.device_mesh._mesh_resources.get_current_mesh() is ours
    permuted = TorchDeviceMesh("cpu", [2, 0, 3, 1])
    works(permuted)
    lone = sw.init_device_mesh("cpu", (4, 1), mesh_dim_names=("all", "one"))
    assert lone.get_group("one").size() == 1 and lone.get_group("one") is lone["one"].get_group()
    works(lone)


def slices():
    """Of one or several names, flattened ones, and names that are not there."""
    rank = dist.get_rank()
    cube = sw.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    assert cube["pp", "tp"].mesh.tolist() == [[0, 1], [2, 3]]
    assert cube["dp", "tp"].mesh.tolist() == [[rank // 2 * 2, rank // 2 * 2 + 1]]
    assert cube["tp"]._get_root_mesh() is cube and cube["dp", "tp"]["tp"] == cube["tp"]
    flat = cube["dp", "tp"]._flatten()
    assert flat.mesh_dim_names == ("dp_tp",) and flat.mesh.tolist() == cube["tp"].mesh.tolist()
    assert cube["dp_tp"] is flat and cube["dp", "tp"]._flatten("dp_tp") is flat
    assert cube._flatten("world").mesh.tolist() == [0, 1, 2, 3]
    own = cube["tp"]._flatten("own", backend_override="gloo")
    total = torch.tensor([rank])
    dist.all_reduce(total, group=own.get_group())
    assert total.item() == (1 if rank < 2 else 5) and own.get_group() is not cube.get_group("tp")
    groups = [None] * 4
    dist.all_gather_object(groups, own.get_group().group_name)
    assert len(set(groups)) == 2  # each group has a name of its own
    assert cube["tp"]._flatten("own", backend_override="gloo") is own is cube["own"]
    again = flat._flatten("again", backend_override="gloo")
    assert cube["pp", "again"].mesh.tolist() == [[0, 1], [2, 3]]
    raises(ValueError, '"tp" already exists', lambda: cube["pp", "dp"]._flatten("tp"))
    raises(ValueError, "of other ranks", lambda: cube["pp", "dp"]._flatten("world"))
    raises(KeyError, 'no mesh dim is called "cp"', lambda: cube["cp"])
    raises(KeyError, "cp", lambda: cube.get_group("cp"))
    raises(RuntimeError, "without mesh_dim_names", lambda: sw.init_device_mesh("cpu", (4,))["tp"])
    raises(RuntimeError, "`mesh_dim` needs to be specified", cube.get_group)
    raises(RuntimeError, "`mesh_dim` needs to be specified", cube.get_local_rank)
    partly = cube["pp", "dp_tp"]
    assert partly.mesh.tolist() == [[0, 1], [2, 3]] and partly.mesh_dim_names == ("pp", "dp_tp")
    assert cube.get_group("dp_tp") is flat.get_group() is partly.get_group("dp_tp")
    for mesh in (cube["pp", "tp"], cube["dp", "tp"], flat, cube["world"], cube["tp"], cube, partly, own, again):
        works(mesh)


def unflattened():
    """Meshes with dims in place of one dim: ours, and torch's, whose slices other ranks know only by the mesh that they are of."""
    rank = dist.get_rank()
    ours = sw.init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    theirs = torch_init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    for world in (ours, theirs):
        grid = world._unflatten(0, (2, 1, 2), ("a", "b", "c"), backend_override={"b": "fake"})
        swapped = world._unflatten(0, (1, 2, 2), ("b", "c", "a"))
        for mesh in (grid["a"], swapped["c"], swapped["a"], grid["c"], grid["b"], grid["a", "c"], grid, swapped):
            works(mesh)
            assert sw.zeros(4, device_mesh=mesh).device_mesh.mesh.tolist() == mesh.mesh.tolist()
    assert isinstance(ours._unflatten(0, (2, 2), ("a", "c")), sw.DeviceMesh)
    own = ours._unflatten(0, (2, 2), ("a", "c"), backend_override={"c": "gloo"})
    works(own)
    works(own["c"])
    total = torch.tensor([rank])
    dist.all_reduce(total, group=own.get_group("c"))
    assert total.item() == rank // 2 * 4 + 1
    if rank == 0:  # before any message
        raises(RuntimeError, "at most once", lambda: ours._unflatten(0, (2, 2), ("a", "c"), {"z": "gloo"}))
    pairs = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sw.DeviceMesh(
        "cpu", [[0], [1]], mesh_dim_names=("d", "e")
    )  # ranks 0 and 1 know the next mesh as one made by itself
    over_own = pairs["tp"]._unflatten("tp", (2, 1), ("d", "e"), backend_override={"d": "gloo"})
    assert ranks_of(over_own.get_group("d")) == ranks_of(pairs.get_group("tp"))
    assert over_own.get_group("d") is not pairs.get_group("tp")
    works(over_own)
    split = own._unflatten("c", (2, 1), ("d", "e"))
    assert split.get_group("d") is own.get_group("c") and split.mesh.tolist() == [[[0], [1]], [[2], [3]]]
    works(split)


def given_groups():
    """Meshes over groups that are there already, or are made in a way of their own."""
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[rank // 2]
    mesh = sw.DeviceMesh.from_group(mine, "cpu", mesh_dim_names=("tp",))
    assert mesh.get_group() is mine and mesh.mesh.tolist() == ranks_of(mine)
    works(mesh)
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    grid = sw.DeviceMesh.from_group([across, mine], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    assert grid.get_group("dp") is across and grid.get_all_groups() == [across, mine]
    works(grid)
    assert sw.DeviceMesh.from_group(mine, "cpu", mesh_dim_names=("tp",)) == mesh != sw.init_device_mesh("cpu", (4,))
    assert grid["tp"] == grid["tp"] and grid["tp"].get_group() is mine
    assert sw.parallel.mp_reduce(torch.tensor([float(rank)]), grid, "tp").item() == sum(ranks_of(mine))
    works(grid["tp"])
    world = sw.DeviceMesh.from_group(dist.group.WORLD, "cpu")
    assert world == sw.init_device_mesh("cpu", (4,)) and world.get_group() is dist.group.WORLD
    known = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    assert sw.DeviceMesh.from_group(known.get_group(), "cpu", mesh_dim_names=("tp",)) == known
    plain = sw.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "one", "tp"))
    names = plain.mesh_dim_names
    assert sw.DeviceMesh.from_group(plain.get_all_groups(), "cpu", plain.mesh, mesh_dim_names=names) == plain
    raises(
        ValueError, "got 1 ProcessGroups for a mesh of 2 dims", lambda: sw.DeviceMesh.from_group(mine, "cpu", [[0, 1]])
    )
    raises(ValueError, "these are not the ranks along that dim", lambda: sw.DeviceMesh.from_group(mine, "cpu", [1, 3]))
    raises(ValueError, "Must pass mesh", lambda: sw.DeviceMesh.from_group([mine, across], "cpu"))
    other = sw.init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("a", "b"), backend_override={"b": "gloo", 0: ("gloo", None)}
    )
    works(other)
    part = sw.init_device_mesh("cpu", (2,), backend_override={0: "gloo"})  # ranks 2 and 3 make its groups, too
    if rank < 2:
        works(part)
    works(sw.DeviceMesh("cpu", [0, 2]))
    backwards = dist.new_group([0, 1, 3, 2], sort_ranks=False)
    raises(ValueError, "which do not ascend", lambda: sw.DeviceMesh.from_group(backwards, "cpu"))
    raises(RuntimeError, "at most once", lambda: sw.init_device_mesh("cpu", (4,), backend_override={1: "gloo"}))


def only_members():
    """The others need not know of a mesh over a given group."""
    if dist.get_rank() in (1, 3):
        group = dist.new_group([1, 3], use_local_synchronization=True)
        works(sw.DeviceMesh.from_group(group, "cpu"))
    works(sw.init_device_mesh("cpu", (2, 2)))
    works(sw.DeviceMesh("cpu", [1, 3]))


def group_among(lines, **options):
    """This rank's group among those of `lines`, which all ranks make; None where it is in none."""
    made = [dist.new_group(line, **options) for line in lines]
    return next((group for group, line in zip(made, lines, strict=True) if dist.get_rank() in line), None)


def lone_groups():
    """One rank alone asks for its own: that changes nothing for groups that only their members make."""
    rank = dist.get_rank()
    mesh = sw.init_device_mesh("cpu", (4, 1), mesh_dim_names=("all", "one"))
    if rank == 0:
        assert ranks_of(mesh.get_group("one")) == [0] and mesh.get_group("one").group_name
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    group = dist.new_group(pair, use_local_synchronization=True, timeout=timedelta(seconds=20))
    total = torch.tensor([rank])
    dist.all_reduce(total, group=group)
    assert total.item() == sum(pair)
    own = dist.new_group([rank], use_local_synchronization=True)
    given = sw.DeviceMesh.from_group([mesh.get_group("all"), own], "cpu", mesh.mesh, mesh_dim_names=("all", "one"))
    assert given.get_group("one") is own is not mesh.get_group("one") and given["one"].get_group() is own
    works(given)


def all_ranks_make_groups():
    """Over a backend whose groups all ranks of the world make, as MPI's: a mesh does not ask its members alone for one."""
    _torch_groups.all_ranks_make_groups = lambda: True
    rank = dist.get_rank()
    line = sw.init_device_mesh("cpu", (4,))
    raises(ValueError, f"the group of rank {rank} alone does not exist", lone_group)
    raises(ValueError, "their backend needs all ranks to make a group", lambda: group_by_members([0, 1, 2], ""))
    split = sw.DeviceMesh("cpu", [3, 2, 1, 0], mesh_dim_names=("all",))._unflatten("all", (4, 1), ("a", "one"))
    if rank == 0:
        assert ranks_of(split.get_group("one")) == [0]
    mesh = sw.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "one", "tp"))
    works(line)
    works(mesh)
    works(mesh["one", "tp"])
    if rank == 0:
        assert ranks_of(mesh.get_group("one")) == [0]


def slice_of(mesh, dim):
    return _C.DeviceMesh.__getitem__(mesh, [dim])


def given_groups_of_some():
    """A mesh of several dims over groups of some ranks: its members make the group of all of them."""
    rank = dist.get_rank()
    for first in (0, 4):
        a, b, c, d = range(first, first + 4)
        tp, dp = group_among([[a, b], [c, d]]), group_among([[a, c], [b, d]])
        if first == 4:  # the others never hear of this mesh
            group_among([[4, 5]])
        if tp is None:
            continue
        ranks = [[a, b], [c, d]]

        def make(groups=(dp, tp), ranks=ranks):
            return sw.DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=("dp", "tp"))

        if first == 0:
            grid = make()
            works(grid)
            works(grid._flatten("all"))
            assert make() == grid and grid.get_group("tp") is tp and grid["tp"].get_group() is tp
            assert [slice_of(make(), dim) for dim in ("tp", "dp")] == [grid["tp"], grid["dp"]]  # as C++ makes them
        else:
            works(make())
    works(sw.init_device_mesh("cpu", (8,)))
    known = sw.DeviceMesh("cpu", [4, 5, 6, 7])
    if rank >= 4:
        assert slice_of(make(), "dp").get_group() is dp
        works(make())
    works(known)


def groups_of_members():
    """A group that members make has the timeout of the first dim's group. If the program destroys it, they make another one."""
    tp = group_among([[0, 1], [2, 3]], timeout=timedelta(seconds=70))
    dp = group_among([[0, 2], [1, 3]], timeout=timedelta(seconds=80))
    if tp is None:
        return
    for _ in range(2):
        grid = sw.DeviceMesh.from_group([dp, tp], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        everyone = grid._flatten("all").get_group()
        assert ranks_of(everyone) == [0, 1, 2, 3] and timeout_of(everyone) == timedelta(seconds=80)
        works(grid)
        dist.barrier(everyone)
        dist.destroy_process_group(everyone)
        raises(ValueError, "was destroyed", grid["all"].get_group)
        del grid
        gc.collect()


def slices_of_given_groups():
    """Each is over a group of its own ranks; they stay so where the program has let go of its meshes."""
    ranks = torch.arange(8).view(2, 2, 2)
    a, b, c = (group_among(ranks.movedim(dim, -1).reshape(-1, 2).tolist()) for dim in range(3))
    cube = sw.DeviceMesh.from_group([a, b, c], "cpu", ranks, mesh_dim_names=("a", "b", "c"))
    assert cube["a", "b"] == cube["a", "b"] and cube["a", "b"]["a"] == cube["a"]
    flat = cube["a", "b"]._flatten("ab")
    for mesh in (cube, cube["a", "b"], cube["b", "c"], cube["c"], flat, cube["ab", "c"]):
        works(mesh)
    kept = sw.ones(4, device_mesh=cube["b", "c"], placements=[Shard(0), Replicate()])
    del cube, flat, mesh
    gc.collect()
    mesh = kept.device_mesh
    assert mesh["b"].get_group() is b and mesh._get_root_mesh().get_group("a") is a
    works(mesh["b"])
    works(mesh._get_root_mesh()["a", "c"])


def functional_collectives():
    """torch's functional collectives take a mesh, and are counted."""
    rank = dist.get_rank()
    line = sw.init_device_mesh("cpu", (4,))
    grid = sw.init_device_mesh("cpu", (2, 2))
    x = torch.full((2,), float(rank))
    with sw.CommDebugMode() as comm:
        total = funcol.all_reduce(x, "sum", line).wait()
        pair = funcol.all_reduce(x, "sum", (grid, 1)).wait()
        gathered = funcol.all_gather_tensor(x, 0, group=line).wait()
        dist.broadcast(x, 0)
        sw.ones(8, device_mesh=line, placements=[Shard(0)]).redistribute(placements=[Replicate()])
    assert total.tolist() == [6, 6] and pair[0] == (1 if rank < 2 else 5) and gathered.shape == (8,)
    counts = comm.get_comm_counts()
    assert counts == {"all_reduce": 2, "all_gather": 2, "broadcast": 1} and comm.get_total_counts() == 5
    assert counts[c10d_functional.all_reduce] == counts[torch.ops._c10d_functional.all_reduce] == 2
    assert counts[c10d_functional.all_gather_into_tensor] == 2 and counts[torch.ops.c10d.broadcast_] == 1
    assert counts[c10d_functional.reduce_scatter_tensor] == 0 and c10d_functional.broadcast not in counts
    assert comm.comm_counts.by_operator()[c10d_functional.all_reduce] == 2
    assert [event.n_ranks for event in comm.events] == [4, 2, 4, 4, 4]


if __name__ == "__main__":
    part = sys.argv[1]
    dist.init_process_group("gloo")
    globals()[part]()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"{part}-{os.environ['RANK']}\n")
