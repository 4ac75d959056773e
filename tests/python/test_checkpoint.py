"""Checkpoints: torch.distributed.checkpoint, safetensors and save_pretrained with our tensors, and tables as ShardedTensor (T7)."""

import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torchrun import expect_all_well, forked_ranks

import shardwise as sw
from shardwise import LocalShardsWrapper, Replicate, Shard
from shardwise.testing import run_ranks


def test_t7_saved_by_four_ranks_and_loaded_by_two_with_other_shards(tmp_path):
    expect_all_well("wrapper_program.py", 4, "save,sharded_tensor", tmp_path)
    expect_all_well("wrapper_program.py", 2, "load", tmp_path)


@pytest.mark.parametrize(
    "parts", ["state_dicts,other_model", "replaced,read_bytes", "async_save,hugging_face,save_pretrained"]
)
def test_four_processes(parts, tmp_path):
    expect_all_well("checkpoint_program.py", 4, parts, tmp_path)


def test_saved_by_four_ranks_and_loaded_by_others_and_as_torchs_dtensors(tmp_path):
    expect_all_well("checkpoint_program.py", 4, "save", tmp_path)
    expect_all_well("checkpoint_program.py", 2, "load", tmp_path)
    expect_all_well("checkpoint_program.py", 1, "load", tmp_path)


def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path):
    result = forked_ranks("checkpoint_program.py", 4, "killed", tmp_path)
    assert result.returncode != 0 and "SIGKILL" in result.stderr and "killed-" not in result.stdout
    assert any(len(path.name) > 20 for path in tmp_path.glob("*.distcp"))
    expect_all_well("checkpoint_program.py", 4, "after_the_kill", tmp_path)


def test_a_wrapper_alone_is_saved_piece_by_piece(tmp_path):
    table = torch.arange(12.0).reshape(6, 2)
    dcp.save(
        {"w": LocalShardsWrapper([table[:2].clone(), table[2:].clone()], [(0, 0), (2, 0)])},
        checkpoint_id=tmp_path,
        no_dist=True,
    )
    other = LocalShardsWrapper([torch.zeros(5, 2), torch.zeros(1, 2)], [(1, 0), (0, 0)])
    dcp.load({"w": other}, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(other.shards[0], table[1:]) and torch.equal(other.shards[1], table[:1])


@pytest.mark.parametrize("shape", [(0, 3), (5, 3)])
def test_a_layout_with_empty_pieces_loads(shape, tmp_path):
    dense = torch.arange(15.0).view(5, 3)[: shape[0]]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        dcp.save({"w": sw.distribute_tensor(dense, mesh, [Replicate()])}, checkpoint_id=tmp_path, no_dist=True)

    run_ranks(1, body)

    def load(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for placement in (Shard(0, sizes=[0, shape[0], 0]), Shard(1, sizes=[1, 0, 2]), Shard(0), Replicate()):
            loaded = sw.zeros(*shape, device_mesh=mesh, placements=[placement])
            dcp.load({"w": loaded}, checkpoint_id=tmp_path, no_dist=True)
            assert torch.equal(loaded.full_tensor(), dense)

    run_ranks(3, load)


def test_a_full_state_dict_of_thread_ranks():
    dense = nn.Linear(3, 5)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        model = nn.Linear(3, 5)
        model.load_state_dict(dense.state_dict())
        rows = Shard(0, sizes=[4, 0, 1])
        sw.distribute_module(model, mesh, lambda name, module, mesh: module.register_parameter(
            "weight", nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [rows])))
        )  # fmt: skip
        options = StateDictOptions(full_state_dict=True)
        full = get_model_state_dict(model, options=options)
        assert type(full["weight"]) is torch.Tensor and torch.equal(full["weight"], dense.weight)
        assert torch.equal(full["bias"], dense.bias)
        with torch.no_grad():
            model.weight.zero_()
        set_model_state_dict(model, full, options=options)
        assert model.weight.placements == (rows,) and torch.equal(model.weight.full_tensor(), dense.weight)
        with pytest.raises(RuntimeError, match="size mismatch for weight"):
            set_model_state_dict(model, {**full, "weight": torch.ones(2, 3)}, options=options)

    run_ranks(3, body)


def test_tensors_that_lie_in_the_same_memory_share_a_full_one_only_where_they_are_equal():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        local = torch.tensor([[1 + 2j, 3 - 1j]]) + rank
        x = sw.DTensor.from_local(local, mesh["dp"], [Shard(0)])
        tensors = {
            "x": x,
            "conjugate": x.conj(),
            "tied": x.detach(),
            "of other ranks": sw.DTensor.from_local(local, mesh["tp"], [Shard(0)]),
        }
        model = nn.Module()
        for name, tensor in tensors.items():
            model.register_buffer(name, tensor)
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        for name, tensor in tensors.items():
            assert torch.equal(full[name], tensor.full_tensor()), name
        assert full["tied"].data_ptr() == full["x"].data_ptr()

    run_ranks(4, body)


IMPORTED_LATER = """
import sys
import shardwise as sw
from shardwise.testing import run_ranks

assert not [name for name in sys.modules if name.startswith("torch.distributed.checkpoint")]

def body(rank):
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = sw.distribute_module(torch.nn.Linear(2, 2), sw.init_device_mesh("cpu", (2,)))
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert all(type(tensor) is torch.Tensor for tensor in full.values())

run_ranks(2, body)
"""


def test_functions_that_are_imported_after_shardwise_know_its_tensors():
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED_LATER], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
