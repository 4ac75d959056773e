"""Run by test_meta_init.py under torchrun: meta_program.py PARTS FOLDER, see run_parts()."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torchrun import run_parts

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.debug import CommDebugMode


class Model(nn.Module):
    """A tied head, a norm with buffers, and a parameter whose shards some ranks lack."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight


def sharded(model, mesh, placement):
    """Weights as `placement`; the others are replicas."""

    def partition(name, module, mesh):
        if name in ("words", "hidden"):
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [placement]))

    return sw.distribute_module(model, mesh, partition)


def on_meta(placement):
    with torch.device("meta"):
        model = Model()
    return sharded(model, sw.init_device_mesh("cpu", (dist.get_world_size(),)), placement)


def draw(model):
    torch.manual_seed(5)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def expect(model, values):
    state = model.state_dict()
    assert state.keys() == values.keys()
    assert model.head.weight is model.words.weight
    for name, value in state.items():
        assert isinstance(value, sw.DTensor) and not value.is_meta, name
        torch.testing.assert_close(value.full_tensor(), values[name], rtol=0, atol=0)


def full_values(folder):
    return torch.load(os.path.join(folder, "full.pt"))


def save(folder):
    """Drawn after to_empty(), the values are those of a model that was built directly."""
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    built = sharded(Model(), mesh, Shard(0))
    draw(built)
    full = get_model_state_dict(built, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 1:  # alone
        x = sw.distribute_tensor(torch.empty(10, 3, device="meta"), mesh, [Shard(0)], src_data_rank=None)
        with CommDebugMode() as comm:
            (x @ x.t()).sum().redistribute(placements=[Replicate()])
        assert comm.get_total_counts() > 0
    late = on_meta(Shard(1))
    late.to_empty(device="cpu")
    draw(late)
    expect(late, full)
    dcp.save({"model": built.state_dict()}, checkpoint_id=os.path.join(folder, "checkpoint"))
    if dist.get_rank() == 0:
        torch.save(full, os.path.join(folder, "full.pt"))


def load(folder):
    """Checkpoints and full state dicts go into a model on meta, and into one that just got its memory."""
    full = full_values(folder)
    checkpoint = os.path.join(folder, "checkpoint")
    for placement in (Shard(0), Shard(1)):
        model = on_meta(placement)
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=checkpoint)
        model.load_state_dict(state["model"], assign=True)
        model.head.weight = model.words.weight  # as in torch: what is assigned comes name by name
        expect(model, full)
        assert model.words.weight.placements == (placement,)

        model = on_meta(placement)
        model.to_empty(device="cpu")
        dcp.load({"model": model.state_dict()}, checkpoint_id=checkpoint)
        expect(model, full)


def full_state_dicts(folder):
    full = full_values(folder)
    for options in (
        StateDictOptions(full_state_dict=True),
        StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    ):
        model = on_meta(Shard(0))
        given = dict(full) if dist.get_rank() == 0 or not options.broadcast_from_rank0 else {}
        set_model_state_dict(model, given, options=options)
        model.head.weight = model.words.weight
        expect(model, full)


if __name__ == "__main__":
    run_parts({"save": save, "load": load, "full_state_dicts": full_state_dicts})
