"""Checkpoints of DTensors whose local tensors are of a class: each inner tensor is saved under its own name, and loads under other placements."""

import pytest
import torch
from scaled import Joined, rows, scaled
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.checkpoint import inner_tensors
from shardwise.testing import run_ranks


def test_inner_tensors_are_sharded_where_a_slice_cuts_them():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = rows(6, block=2)
        x = sw.distribute_tensor(whole, mesh, [Shard(0, sizes=[4, 2])])
        state = inner_tensors({"model": {"x": x, "bias": torch.ones(2)}, "step": 3, "list": [x]})
        inner = state["model"]["x"]
        assert state["step"] == 3 and list(inner) == ["numbers", "scales", "table", "context=2"]
        assert inner["numbers"].placements == (Shard(0, sizes=[4, 2]),) and inner["numbers"].shape == (6, 4)
        assert inner["scales"].placements == (Shard(0),) and torch.equal(inner["scales"].full_tensor(), whole.scales)
        assert inner["table"].placements == (Replicate(),)
        assert inner["numbers"].to_local().data_ptr() == x.to_local().numbers.data_ptr()
        columns = inner_tensors(sw.distribute_tensor(whole, mesh, [Shard(1)]))
        assert columns["numbers"].placements == (Shard(1),) and columns["scales"].placements == (Replicate(),)
        assert set(state["list"][0]) == set(inner)

    run_ranks(2, body)


def test_a_rank_without_rows_learns_it_from_the_others():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.distribute_tensor(rows(4, block=2), mesh, [Shard(0, sizes=[2, 0, 2])])
        inner = inner_tensors(x)
        assert inner["scales"].placements == (Shard(0, sizes=[1, 0, 1]),)
        assert inner["table"].placements == (Replicate(),)

    run_ranks(3, body)


def test_on_a_grid_each_dim_is_cut_for_itself():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        inner = inner_tensors(sw.distribute_tensor(rows(4), mesh, [Shard(0), Shard(1)]))
        assert inner["numbers"].placements == (Shard(0), Shard(1))
        assert inner["scales"].placements == (Shard(0), Replicate())
        nested = inner_tensors(sw.distribute_tensor(rows(8, block=2), mesh, [Shard(0), Shard(0)]))
        assert nested["scales"].placements == (Shard(0), Shard(0))

    run_ranks(4, body)


def test_what_a_checkpoint_cannot_keep_is_an_error_on_all_ranks():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        own = rows(4)
        own.table = own.table + rank
        with pytest.raises(
            ValueError, match=r"\[inner_tensors\] ranks 0 and 1 have different values in inner tensor table of a Rows"
        ):
            inner_tensors(sw.DTensor.from_local(own, mesh, [Shard(0)]))
        x = sw.DTensor.from_local(rows(2 if rank == 0 else 4, block=1 + rank), mesh, [Shard(0, sizes=[2, 4])])
        with pytest.raises(
            ValueError,
            match=r"\[inner_tensors\] on rank 1, \d indices of inner tensor scales of a Rows belong to 4 indices",
        ):
            inner_tensors(x)
        sized = sw.distribute_tensor(Joined(scaled(4).numbers, 0.5), mesh, [Shard(0)])
        with pytest.raises(
            NotImplementedError, match=r"\[inner_tensors\] a slice along dim 0 changes the context that a Joined"
        ):
            inner_tensors(sized)
        with pytest.raises(ValueError, match="holds terms of a sum"):
            inner_tensors(sw.DTensor.from_local(scaled(4), mesh, [Partial()]))

    run_ranks(2, body)


@pytest.mark.parametrize("on_shardwise", [True, False], ids=["compat", "one import"])
def test_they_are_saved_and_loaded_under_other_placements(tmp_path, on_shardwise):
    expect_all_well("local_class_program.py", 3, "checkpoints", tmp_path, on_shardwise=on_shardwise)
