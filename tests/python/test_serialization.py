"""Pickles, torch.save and checkpoints."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from copies import through_pickle, through_save
from layouts import by_name
from torch import nn

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.device_mesh import rebuild_mesh
from shardwise.dtensor import rebuild_dtensor
from shardwise.testing import run_ranks


def assert_same(a, b):
    assert type(a) is type(b) is DTensor
    assert a.device_mesh is b.device_mesh and a.placements == b.placements
    assert (a.shape, a.stride(), a.dtype, a.requires_grad) == (b.shape, b.stride(), b.dtype, b.requires_grad)
    for piece, other in zip(sw._C.to_pieces(a.detach()), sw._C.to_pieces(b.detach()), strict=True):
        assert torch.equal(piece, other)


@pytest.mark.parametrize("copied", [through_pickle, through_save, copy.deepcopy, copy.copy], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", **by_name)
def test_each_rank_brings_back_its_own_pieces(case, copied):
    def body(rank):
        tensor = case.distributed()
        assert_same(copied(tensor), tensor)
        assert_same(copied(tensor.requires_grad_()), tensor)

    run_ranks(case.n_ranks, body)


def on_mesh(n_ranks=2):
    return sw.init_device_mesh("cpu", (n_ranks,)), [Shard(0)]


def test_a_deep_copy_has_memory_and_gradient_of_its_own():
    def body(rank):
        mesh, placements = on_mesh()
        tensor = sw.ones(4, requires_grad=True, device_mesh=mesh, placements=placements)
        (tensor * 3).sum().backward()
        result = copy.deepcopy(tensor)
        assert torch.equal(result.grad.full_tensor(), tensor.grad.full_tensor())
        with torch.no_grad():
            tensor.add_(1)
            tensor.grad.zero_()
        assert result.full_tensor().tolist() == [1] * 4 and result.grad.full_tensor().tolist() == [3] * 4
        twice = copy.deepcopy([tensor, tensor])
        assert twice[0] is twice[1]
        with pytest.raises(RuntimeError, match="only leaves"):
            copy.deepcopy(tensor * 2)

    run_ranks(2, body)


@pytest.mark.parametrize("copied", [through_pickle, through_save, copy.deepcopy], ids=lambda f: f.__name__)
def test_parameters_stay_parameters(copied):
    def body(rank):
        mesh, placements = on_mesh()
        parameter = nn.Parameter(sw.ones(4, device_mesh=mesh, placements=placements))
        assert isinstance(copied(parameter), nn.Parameter) and isinstance(copied(parameter), DTensor)

    run_ranks(2, body)


def test_a_named_mesh_is_rebuilt_in_the_current_world():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("dp", "tp"))
        data = pickle.dumps(sw.ones(4, device_mesh=mesh, placements=[Shard(0), Replicate()]))
        return data

    pickles = run_ranks(4, body)

    def load(rank):
        tensor = pickle.loads(pickles[rank])
        assert tensor.device_mesh.mesh_dim_names == ("dp", "tp") and tensor.device_mesh.mesh.tolist() == [
            [3, 1],
            [0, 2],
        ]
        assert tensor.full_tensor().tolist() == [1] * 4

    run_ranks(4, load)


def test_a_state_dict_is_saved_and_loaded():
    def body(rank):
        mesh, _ = on_mesh()
        torch.manual_seed(0)
        model = sw.distribute_module(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), mesh)
        loaded = through_save(model.state_dict())
        other = sw.distribute_module(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), mesh)
        with torch.no_grad():
            other[0].weight.zero_()
        other.load_state_dict(loaded)
        assert_same(other[0].weight, model[0].weight)

    run_ranks(2, body)


def saved_on(n_ranks, make):
    """What each rank saves of the tensor that `make` makes there, as torch.save's bytes."""

    def body(rank):
        file = io.BytesIO()
        torch.save({"x": make(rank)}, file)
        return file.getvalue()

    return run_ranks(n_ranks, body)


def loaded_from(file):
    return torch.load(io.BytesIO(file), weights_only=True)["x"]


# placements, the ranks of three that load what rank 0 saved
@pytest.mark.parametrize(
    ("placements", "loading"),
    [
        ([Shard(0)], [0]),
        ([Shard(0, sizes=[3, 0, 3])], [0]),
        ([Replicate()], [0, 1, 2]),
        ([Partial()], [0]),
    ],
    ids=str,
)
def test_what_one_rank_saved_is_loaded_by_another_only_if_both_have_the_same_part(placements, loading):
    def make(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        return sw.ones(6, device_mesh=mesh, placements=[Replicate()]).redistribute(placements=placements)

    file = saved_on(3, make)[0]

    def load(rank):
        if rank in loading:
            assert loaded_from(file).placements == tuple(placements)
            return
        with pytest.raises(
            ValueError,
            match=rf"(?s)\[load\] rank 0 saved its part .* but rank {rank}, which has another part, loads it.*dist.*checkpoint",
        ):
            loaded_from(file)

    run_ranks(3, load)


def test_ranks_of_a_replicated_dim_and_ranks_outside_load_each_others_parts():
    def make(rank):
        mesh = sw.DeviceMesh("cpu", [[0, 1], [2, 3]])
        return sw.ones(6, device_mesh=mesh, placements=[Replicate(), Shard(0)])

    files = saved_on(6, make)

    def load(rank):
        for other in {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3], 4: [4, 5], 5: [4, 5]}[rank]:
            assert loaded_from(files[other]).device_mesh.mesh.tolist() == [[0, 1], [2, 3]]
        for other in {0: [1, 4], 4: [0]}.get(rank, []):
            with pytest.raises(ValueError, match=rf"\[load\] rank {other} saved"):
                loaded_from(files[other])

    run_ranks(6, load)


def test_files_without_a_rank_load_as_they_did():
    def body(rank):
        mesh = rebuild_mesh("cpu", torch.tensor([0, 1], dtype=torch.int32), [])
        assert mesh == sw.init_device_mesh("cpu", (2,))
        x = rebuild_dtensor([torch.ones(2)], mesh, (Shard(0),), (4,), (1,), torch.float32, 0, False, {})
        assert x.full_tensor().tolist() == [1] * 4

    run_ranks(2, body)


def test_a_process_that_is_no_rank_loads_tensors_and_meshes_without_groups(monkeypatch):
    """Although torchrun's variables are there: nothing initialises a process group."""

    def make(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mesh["dp", "tp"]._flatten("all")
        x = sw.distribute_tensor(torch.arange(8.0), mesh, [Replicate(), Shard(0)])
        return [x, mesh["tp"], mesh["all"], sw.distribute_tensor(torch.arange(4.0), mesh["all"], [Shard(0)])]

    files = run_ranks(4, lambda rank: pickle.dumps(make(rank)))
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    x, tp, flat, y = pickle.loads(files[3])
    again = pickle.loads(files[3])
    assert not dist.is_initialized()
    mesh = x.device_mesh
    assert again[0].device_mesh == mesh and again[1] == tp and again[2] == flat
    assert (mesh.shape, mesh.mesh_dim_names, mesh.get_rank(), mesh.get_coordinate()) == (
        (2, 2),
        ("dp", "tp"),
        3,
        (1, 1),
    )
    assert tp.mesh.tolist() == [2, 3] and mesh["tp"] == tp and mesh["dp", "tp"]._flatten("all") == flat
    assert x.to_local().tolist() == [4, 5, 6, 7] and (x * 2).to_local().tolist() == [8, 10, 12, 14]
    assert y.to_local().tolist() == [3] and "Shard(0)" in repr(y)
    for send in (x.full_tensor, y.full_tensor, lambda: x.sum().item()):
        with pytest.raises(
            ValueError, match=r"was destroyed or never made .* a mesh that was sent to a process that is no rank"
        ):
            send()
    with pytest.raises(RuntimeError, match="process groups not initialized"):
        tp.get_group()
    first = pickle.loads(files[0])[0]  # of another rank: another mesh, whose rank this is
    assert first.to_local().tolist() == [0, 1, 2, 3] and first.device_mesh.get_rank() == 0
    back = pickle.dumps([x, tp, flat, y])
    assert not dist.is_initialized()

    def load(rank):
        made = make(rank)
        if rank == 3:
            assert pickle.loads(back)[1:3] == made[1:3]
            assert_same(pickle.loads(back)[0], made[0])

    run_ranks(4, load)


def test_what_is_not_one_of_ours_stays_forbidden_to_weights_only():
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        through_save(test_a_state_dict_is_saved_and_loaded)


@pytest.mark.parametrize("case", **by_name)
def test_checkpoints_know_where_the_pieces_stand(case):
    def body(rank):
        tensor = case.distributed()
        if any(placement.is_partial() for placement in case.placements):
            with pytest.raises(ValueError, match=r"\[checkpoint\] .* a tensor placed as .*Partial"):
                tensor.__create_chunk_list__()
            return
        items = tensor.__create_write_items__("table", tensor)
        for item in items:
            chunk = item.tensor_data.chunk
            box = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            assert torch.equal(tensor.__get_tensor_shard__(item.index), case.dense()[box])
        return sum(item.tensor_data.chunk.sizes.numel() for item in items)

    run_ranks(case.n_ranks, body)


def test_a_checkpoint_of_one_rank_reloads_under_another_layout(tmp_path):
    def body(rank):
        mesh, placements = on_mesh(n_ranks=1)
        torch.manual_seed(1)
        saved = sw.rand(6, 4, device_mesh=mesh, placements=placements)
        dcp.save({"table": saved}, checkpoint_id=tmp_path, no_dist=True)
        loaded = sw.zeros(6, 4, device_mesh=mesh, placements=[Shard(1)])
        dcp.load({"table": loaded}, checkpoint_id=tmp_path, no_dist=True)
        assert torch.equal(loaded.full_tensor(), saved.full_tensor())

    run_ranks(1, body)
