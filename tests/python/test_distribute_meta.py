"""Tensors without values are laid out without memory and without a message."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

PLACEMENTS = [Shard(0), Shard(1, sizes=[0, 3, 1]), Replicate(), Partial()]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=repr)
def test_pieces_have_the_sizes_of_the_layout(placement):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        whole = torch.empty(5, 4, device="meta", requires_grad=True)
        with sw.CommDebugMode() as comm:
            tensor = sw.distribute_tensor(whole, mesh, [placement], src_data_rank=None)
        dense = sw.distribute_tensor(torch.ones(5, 4), mesh, [placement])
        assert comm.get_total_counts() == 0 and tensor.is_meta and tensor.requires_grad and tensor.is_leaf
        assert tensor.placements == (placement,) and tensor.stride() == (4, 1)
        assert tensor.to_local().is_meta and tensor.to_local().shape == dense.to_local().shape
        assert sw.DTensor.from_local(tensor.to_local().detach(), mesh, [placement], shape=(5, 4), stride=(4, 1)).is_meta
        real = torch.empty_like(tensor, device="cpu").fill_(2)
        assert torch.equal(real.full_tensor(), torch.full((5, 4), 2.0))

    run_ranks(3, body)


def test_a_module_is_sharded_before_it_has_memory():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        assert all(parameter.is_meta for parameter in model.parameters())
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        torch.testing.assert_close(model(torch.ones(1, 4)), torch.full((1, 3), 0.5 + 0.5 * 6 * 2.5))

    run_ranks(2, body)
