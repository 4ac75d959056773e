"""Under torch.device("meta"), and tensors that go there: distributed ones stay distributed, their pieces have no memory."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks


def on_ranks(check, n_ranks=3):
    run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


def test_meshes_are_made_under_any_default_device():
    def check(mesh):
        with torch.device("meta"):
            assert sw.init_device_mesh("cpu", (3,)) == mesh
            grid = sw.DeviceMesh("cpu", [[2, 0], [1, 3]][:1])
        assert grid.mesh.tolist() == [[2, 0]]
        assert sw.ones(4, device_mesh=mesh, placements=[Shard(0)]).sum().item() == 4

    on_ranks(check)


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_what_goes_to_meta_keeps_its_layout(dtype):
    def check(mesh):
        for placement in (Shard(0), Shard(1, sizes=[2, 0, 3]), Replicate()):
            x = sw.distribute_tensor(torch.ones(4, 5), mesh, [placement]).requires_grad_()
            for guard in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with guard():
                    there = x.to("meta", dtype)
                assert isinstance(there, sw.DTensor) and there.device.type == "meta"
                assert (there.placements, there.shape, there.stride()) == ((placement,), x.shape, x.stride())
                assert there.dtype == (dtype or x.dtype) and there.to_local().shape == x.to_local().shape
            assert type(torch.ones(2).to("meta")) is torch.Tensor

    on_ranks(check)


def test_modules_go_to_meta_and_come_back_empty():
    def check(mesh):
        def shard(name, module, mesh):
            if isinstance(module, nn.Linear):
                weight = sw.distribute_tensor(module.weight.detach(), mesh, [Shard(0)])
                module.weight = nn.Parameter(weight)

        model = sw.distribute_module(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), mesh, shard)
        layouts = {name: tensor.placements for name, tensor in model.state_dict().items()}
        model.to("meta")
        for name, tensor in model.state_dict().items():
            assert isinstance(tensor, sw.DTensor) and tensor.is_meta and tensor.placements == layouts[name], name
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
        model.to_empty(device="cpu")
        for name, tensor in model.state_dict().items():
            assert tensor.device.type == "cpu" and tensor.placements == layouts[name], name
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            nn.Linear(2, 2, device="meta").to("cpu")
        model[0].reset_parameters()
        assert model[0].weight.full_tensor().abs().sum() > 0

    on_ranks(check)
