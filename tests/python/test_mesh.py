"""Meshes."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import shardwise as sw
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, parallelize_module
from shardwise.testing import run_ranks


def test_a_mesh_tells_its_shape_names_and_this_ranks_place():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        assert mesh.shape == (2, 3) and mesh.ndim == 2 and mesh.mesh_dim_names == ("dp", "tp")
        assert mesh.size() == 6 and mesh.size(0) == 2 and mesh.size("tp") == 3 and mesh.size(-1) == 3
        assert torch.equal(mesh.mesh, torch.arange(6, dtype=torch.int32).view(2, 3))
        assert mesh.device_type == "cpu" and mesh.get_rank() == rank
        assert mesh.get_coordinate() == (rank // 3, rank % 3)
        assert mesh.get_local_rank("dp") == rank // 3 and mesh.get_local_rank(1) == rank % 3
        assert repr(mesh) == "DeviceMesh((dp=2, tp=3), 'cpu')"

    run_ranks(6, body)


@pytest.mark.parametrize("ranks", [[2, 0, 1], (2, 0, 1), torch.tensor([2, 0, 1])], ids=["list", "tuple", "tensor"])
def test_ranks_may_come_in_any_order_and_shards_follow_it(ranks):
    def body(rank):
        mesh = sw.DeviceMesh("cpu", ranks)
        assert mesh.mesh_dim_names is None and mesh.mesh.tolist() == [2, 0, 1]
        local = sw.distribute_tensor(torch.arange(3), mesh, [sw.Shard(0)]).to_local()
        return mesh.get_local_rank(), local.item()

    assert run_ranks(3, body) == [(1, 1), (2, 2), (0, 0)]


def test_a_rank_outside_a_mesh_has_no_coordinate():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [1, 3])
        if rank in (0, 2):
            with pytest.raises(ValueError, match=rf"rank {rank} is outside the mesh \(2: ranks \[1, 3\]\)"):
                mesh.get_local_rank()
        return mesh.get_coordinate()

    assert run_ranks(4, body) == [None, (0,), None, (1,)]


def test_slices_by_name_hold_the_ranks_beside_this_one():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh["dp", "tp"] is mesh and mesh["tp"] is mesh["tp"]
        with pytest.raises(KeyError, match='no mesh dim is called "pp"'):
            sw.parallel.mp_reduce(torch.ones(1), mesh, "pp")
        return mesh["dp"].mesh.tolist(), mesh["tp"].mesh.tolist(), mesh["tp"].mesh_dim_names

    names = ("tp",)
    assert run_ranks(4, body) == [
        ([0, 2], [0, 1], names),
        ([1, 3], [0, 1], names),
        ([0, 2], [2, 3], names),
        ([1, 3], [2, 3], names),
    ]


def test_meshes_are_made_and_sliced_where_tensors_have_no_values():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with FakeTensorMode():
            inside = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            parts = [
                inside["dp"],
                inside["tp"],
                inside["dp", "tp"],
                inside._flatten("all"),
                sw.DeviceMesh("cpu", [3, 1]),
            ]
            assert inside == mesh and hash(inside) == hash(mesh)
        assert [type(part.mesh) for part in parts] == [torch.Tensor] * 5
        assert parts[:3] == [mesh["dp"], mesh["tp"], mesh]
        return [part.mesh.tolist() for part in parts]

    def expected(rank):
        return [[rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1], [[0, 1], [2, 3]], [0, 1, 2, 3], [3, 1]]

    assert run_ranks(4, body) == [expected(rank) for rank in range(4)]


def test_equal_meshes_are_equal_and_hash_alike():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [0, 1])
        assert mesh == sw.init_device_mesh("cpu", (2,)) and hash(mesh) == hash(sw.init_device_mesh("cpu", (2,)))
        assert mesh != sw.DeviceMesh("cpu", [1, 0]) and mesh != "mesh"
        assert mesh != sw.DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))
        assert copy.deepcopy(mesh) is mesh

    run_ranks(2, body)


def test_slices_of_any_dims_are_pickled_with_the_mesh_that_they_are_of():
    def sliced(rank):
        mesh = sw.init_device_mesh("cpu", (2, 1, 2, 2), mesh_dim_names=("pp", "ep", "dp", "tp"))
        mesh["dp", "tp"]._flatten("mp")
        mesh["ep", "dp"]._flatten()
        return [mesh["tp"], mesh["tp", "pp"], mesh["mp"], mesh["ep_dp", "tp"], mesh["pp", "tp"]["pp"]]

    def saved(rank):
        return [pickle.dumps(mesh) for mesh in sliced(rank)]

    def loaded(rank):
        for _ in range(2):  # what was loaded is saved likewise
            parts = [pickle.loads(file) for file in files[rank]]
            roots = [part._get_root_mesh() for part in parts]
            assert [root.shape for root in roots] == [(2, 1, 2, 2)] * 5
            files[rank] = [pickle.dumps(part) for part in parts]
        assert parts == sliced(rank)

    files = run_ranks(8, saved)
    run_ranks(8, loaded)


def test_a_slice_that_fully_shard_made_is_pickled_with_its_root():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        model = nn.Linear(4, 4)
        parallelize_module(model, mesh["tp"], ColwiseParallel())
        fully_shard(model, mesh=mesh["dp"])
        return pickle.dumps(model.state_dict()["weight"].device_mesh)

    def loaded(rank):
        part = pickle.loads(files[rank])
        assert part._get_root_mesh().shape == (2, 2, 2)
        assert part.mesh.flatten().tolist() == list(range(rank // 4 * 4, rank // 4 * 4 + 4))

    files = run_ranks(8, body)
    run_ranks(8, loaded)


def test_unflattened_meshes_have_slices_in_common():
    def body(rank):
        world = sw.init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
        dense = world._unflatten(0, (1, 4, 2), ("pp", "dp", "tp"), {"pp": "fake"})
        sparse = world._unflatten("world", (2, 2, 2), ("dp", "ep", "tp"))
        assert dense.mesh.tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7]]] and isinstance(dense, sw.DeviceMesh)
        assert dense["tp"] == sparse["tp"] and dense["tp"].mesh.tolist() == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert sparse["dp"] != dense["dp"] and sparse["dp"].mesh.tolist() == [rank % 4, rank % 4 + 4]
        assert sw.DeviceMesh._concatenate([sparse["ep"], sparse["tp"]]) == sparse["ep", "tp"]
        assert sw.DeviceMesh._concatenate([sparse["tp"], dense["dp"]]) == dense["tp", "dp"]
        with pytest.raises(RuntimeError, match="not slices of one mesh along different dims"):
            sw.DeviceMesh._concatenate([sparse["ep"], dense["dp"]])
        halves = dense["dp"]._unflatten(0, (2, 2), ("outer", "inner"))  # of a slice, which differs between ranks
        assert halves.mesh.tolist() == [[rank % 2, rank % 2 + 2], [rank % 2 + 4, rank % 2 + 6]]
        flat = dense["dp", "tp"]._flatten("all")._unflatten("all", (2, 4), ("a", "b"))
        assert flat["b"].mesh.tolist() == list(range(rank // 4 * 4, rank // 4 * 4 + 4))
        for mesh in (dense["dp"], sparse["ep", "tp"], halves, halves["inner"], flat["a"]):
            x = torch.arange(float(mesh.size()))
            assert torch.equal(sw.distribute_tensor(x, mesh, [sw.Shard(0)] * mesh.ndim).full_tensor(), x)
            assert pickle.loads(pickle.dumps(mesh)) == mesh
        for kind, words, call in (
            (ValueError, "there is no dim 'cp'", lambda: world._unflatten("cp", (8,), ("a",))),
            (ValueError, "there is no dim 1", lambda: world._unflatten(1, (8,), ("a",))),
            (ValueError, r"the sizes \[3, 2\] have the product 6", lambda: world._unflatten(0, (3, 2), ("a", "b"))),
            (RuntimeError, "should have same length", lambda: world._unflatten(0, (4, 2), ("a",))),
            (RuntimeError, "at most once", lambda: world._unflatten(0, (4, 2), ("a", "b"), {"c": "gloo"})),
        ):
            with pytest.raises(kind, match=words):
                call()

    run_ranks(8, body)


def test_a_mesh_made_twice_knows_its_flattened_dims_by_both_objects():
    def body(rank):
        first, second = (sw.init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("pp", "dp", "tp")) for _ in range(2))
        own = first["dp", "tp"]
        flat = second["dp", "tp"]._flatten("mp")
        assert first == second and second["mp"] == flat == own._flatten("mp") and second["pp", "mp"].size("mp") == 2

    run_ranks(4, body)


def test_a_mesh_is_its_own_slice_by_all_names_whichever_object_it_is():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        flat = mesh["dp", "tp"]._flatten("all")
        again = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert again["dp", "tp"] is again and again._flatten("all") == again["all"] == flat
        assert pickle.loads(pickle.dumps(flat)) == flat

    run_ranks(4, body)


def test_a_slice_with_a_flattened_dim_is_sliced_by_its_own_names():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        mesh["dp", "tp"]._flatten("mp")
        part = mesh["pp", "mp"]
        assert part["pp", "mp"] == part and part["mp", "pp"] == mesh["mp", "pp"] and part["mp"] is mesh["mp"]
        assert pickle.loads(pickle.dumps(part["mp", "pp"])) == part["mp", "pp"]
        with pytest.raises(KeyError, match='no mesh dim is called "tp"'):
            part["tp"]

    run_ranks(8, body)


def test_an_object_of_a_mesh_that_ends_is_not_given_out_again():
    """As another thread would get it while this one drops what the object owns."""

    class AtTheEnd:
        def __del__(self):
            found.append(tensor.device_mesh)

    def body(rank):
        nonlocal tensor
        tensor = sw.ones(4, device_mesh=sw.DeviceMesh("cpu", [0]))
        dropped = tensor.device_mesh
        dropped.at_the_end = AtTheEnd()
        del dropped
        assert len(found) == 1 and found[0] is tensor.device_mesh
        assert found[0] == tensor.device_mesh and not hasattr(found[0], "at_the_end")
        assert pickle.loads(pickle.dumps(found[0])) == found[0]

    tensor, found = None, []
    run_ranks(1, body)


def test_the_innermost_mesh_of_a_with_block_is_the_default():
    def body(rank):
        outer, inner = sw.init_device_mesh("cpu", (2,)), sw.DeviceMesh("cpu", [1, 0])
        with outer as entered:
            assert entered is outer
            with inner:
                assert sw.zeros(4).device_mesh is inner
            assert sw.zeros(4).device_mesh is outer
            assert sw.distribute_tensor(torch.ones(2)).device_mesh is outer
            assert sw.DTensor.from_local(torch.ones(2)).placements == (sw.Replicate(),)
        with pytest.raises(RuntimeError, match="no mesh is given and none is active"):
            sw.zeros(4)
        with pytest.raises(ValueError, match="is left, but no mesh was entered"):
            outer.__exit__(None, None, None)

    run_ranks(2, body)


def test_get_group_of_ranks_as_threads_says_that_there_is_none():
    def body(rank):
        with pytest.raises(ValueError, match="ranks are threads here"):
            sw.init_device_mesh("cpu", (2,)).get_group()

    run_ranks(2, body)


def test_a_mesh_without_groups_knows_layouts_and_raises_where_it_is_to_communicate():
    def body(rank):
        # On one rank alone: making it is no collective.
        if rank == 1:
            mesh = sw.DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"), _init_backend=False)
            assert mesh.get_coordinate() == (0, 1) and mesh.size() == 4 and mesh.get_local_rank("tp") == 1
            assert mesh["dp"].mesh.tolist() == [1, 3] and mesh._flatten("all").size() == 4
            for each in (mesh, mesh["dp"], mesh["dp", "tp"], mesh._flatten("all")):
                with pytest.raises(RuntimeError, match="process groups not initialized!"):
                    each.get_group(0)
            tensor = sw.distribute_tensor(torch.arange(6.0), mesh, [sw.Shard(0), sw.Replicate()], src_data_rank=None)
            assert torch.equal((tensor + 1).to_local(), torch.arange(1.0, 4.0))
            for send in (tensor.full_tensor, lambda: tensor.redistribute(placements=[sw.Replicate(), sw.Shard(0)])):
                with pytest.raises(ValueError, match=r"never made \(DeviceMesh\(_init_backend=False\)"):
                    send()
            outside = sw.DeviceMesh("cpu", [0, 2], _init_backend=False)
            assert outside.get_coordinate() is None
        with_groups = sw.DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert sw.ones(5, device_mesh=with_groups, placements=[sw.Shard(0), sw.Replicate()]).sum().item() == 5

    run_ranks(4, body)
