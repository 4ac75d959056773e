"""Run by test_import_effects.py under torchrun: torchs_own_program.py none|import|mesh|rank_0 FOLDER.

Programs of torch's own tensors, with what they give, how many collectives each group has made, and how many groups there are. Before them Shardwise
is not imported at all, imported, imported and used, or imported on rank 0 alone.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

MODE, FOLDER = sys.argv[1:]


def digest(*tensors):
    return [
        each.full_tensor().double().sum().item() if isinstance(each, DTensor) else each.double().sum().item()
        for each in tensors
    ]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def trained(layers, batch):
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
    for _ in range(2):
        layers(batch).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    return layers


def dtensor(mesh):
    with CommDebugMode() as counts:
        x = distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(0)])
        y = (x @ x.T).redistribute(mesh, [Replicate()])
    return [*digest(x, y), counts.get_total_counts()]


def fsdp(mesh):
    layers = model()
    fully_shard(layers, mesh=mesh)
    trained(layers, torch.ones(3, 6))
    return digest(*layers.parameters())


def data_parallel(mesh):
    return digest(*trained(DistributedDataParallel(model()), torch.ones(3, 6)).parameters())


def pipeline(mesh):
    rank = dist.get_rank()
    stage = PipelineStage(model()[2 * rank : 2 * rank + 2 - rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().sum())
    losses = []
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.ones(4, 6))
        else:
            schedule.step(target=torch.zeros(4, 4), losses=losses)
    return digest(*(each.grad for each in stage.submod.parameters()), *losses[-1:])


def checkpoint(mesh):
    layers = model()
    fully_shard(layers, mesh=mesh)
    state = layers.state_dict()
    dcp.save({"model": state}, checkpoint_id=f"{FOLDER}/saved")
    dcp.load({"model": state}, checkpoint_id=f"{FOLDER}/saved")
    return digest(*state.values())


def async_save(mesh):
    state = {"x": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    dcp.async_save(state, checkpoint_id=f"{FOLDER}/async").result()
    return digest(*state.values())


def compile(mesh):
    x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    return digest(torch.compile(lambda x: x.sin() + x.sum(), backend="aot_eager")(x))


def groups():
    """How many collectives each has made, by its ranks and its place among those."""
    return [each._get_sequence_number_for_group() for each in c10d._world.pg_map]


def begin_shardwise():
    if MODE == "none" or (MODE == "rank_0" and dist.get_rank() != 0):
        return None
    import shardwise as sw

    if MODE != "mesh":
        return None
    mesh = sw.init_device_mesh("cpu", (2,))
    return sw.ones(6, device_mesh=mesh, placements=[sw.Shard(0)])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    ours = begin_shardwise()
    mesh = init_device_mesh("cpu", (2,))
    report = {}
    for part in (dtensor, fsdp, data_parallel, pipeline, checkpoint, async_save, compile):
        n_groups, calls = len(groups()), groups()
        values = part(mesh)
        now = groups()
        made = [after - before for after, before in zip(now, calls, strict=False)]
        report[part.__name__] = [values, sorted(made), len(now) - n_groups]
        if ours is not None:
            assert (ours + 1).sum().item() == 12
    with open(f"{FOLDER}/report-{os.environ['RANK']}.json", "w") as file:
        json.dump(report, file)
    dist.barrier()
    dist.destroy_process_group()
