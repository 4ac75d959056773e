"""Pickles, torch.save and checkpoints."""

import copy
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from copies import through_pickle, through_save
from layouts import by_name
from torch import nn

import shardwise as sw
from shardwise import DTensor, Replicate, Shard
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


def test_what_is_not_one_of_ours_stays_forbidden_to_weights_only():
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        through_save(test_a_state_dict_is_saved_and_loaded)


@pytest.mark.parametrize("case", **by_name)
def test_checkpoints_know_where_the_pieces_stand(case):
    def body(rank):
        tensor = case.distributed()
        if any(placement.is_partial() for placement in case.placements):
            with pytest.raises(ValueError, match=r"\[checkpoint\] a tensor placed as .*Partial"):
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
