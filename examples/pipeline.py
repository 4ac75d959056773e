"""A pipeline of two stages, each tensor-parallel on its own two ranks. Gradients equal those of one process.

torch.distributed.pipelining sends activations forward and gradients back, with the schedules GPipe and 1F1B and four micro-batches. The
mesh is (pp=2, tp=2). The parameters of a stage, and the activations that it sends, are DTensors on its row of the mesh: each rank sends its
piece to the rank with the same coordinate in the other row. A wide layer has 37 features: one rank has 19 of them, the other 18.

    $ torchrun --nproc-per-node 4 examples/pipeline.py
    the mesh (pp=2, tp=2): stage 0 on ranks 0, 1 and stage 1 on ranks 2, 3
    ScheduleGPipe: loss 2.2622, dense 2.2622; gradients equal
    Schedule1F1B: loss 2.2622, dense 2.2622; gradients equal
"""

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import shardwise as sw
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, WIDE = 16, 37
BLOCKS, PARTS, BATCH = 4, 4, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    whole = output.full_tensor() if isinstance(output, sw.DTensor) else output
    return (whole - target).square().mean()


def main() -> None:
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    number = mesh.get_local_rank("pp")
    torch.manual_seed(0)
    whole = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    inputs, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    dense = copy.deepcopy(whole)
    wanted = squared_error(dense(inputs), target)
    wanted.backward()
    if dist.get_rank() == 0:
        rows = [f"stage {i} on ranks {a}, {b}" for i, (a, b) in enumerate(mesh.mesh.tolist())]
        print(f"the mesh (pp=2, tp=2): {' and '.join(rows)}", flush=True)
    for schedule in (ScheduleGPipe, Schedule1F1B):
        share = slice(number * BLOCKS // 2, (number + 1) * BLOCKS // 2)
        plan = {"*.up": ColwiseParallel(use_local_output=False), "*.down": RowwiseParallel(use_local_output=False)}
        blocks = parallelize_module(copy.deepcopy(whole)[share], mesh["tp"], plan)
        stage = PipelineStage(blocks, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
        pipeline = schedule(stage, PARTS, loss_fn=squared_error)
        losses: list[Tensor] = []
        if number == 0:
            pipeline.step(inputs)
        else:
            pipeline.step(target=target, losses=losses)
        farthest = torch.zeros(())
        for parameter, reference in zip(blocks.parameters(), dense[share].parameters(), strict=True):
            grad = parameter.grad.full_tensor() if isinstance(parameter.grad, sw.DTensor) else parameter.grad
            farthest = torch.maximum(farthest, (grad - reference.grad).abs().max())
        dist.all_reduce(farthest, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 2:
            loss = torch.stack(losses).mean()
            alike = "equal" if farthest < 1e-6 else f"apart by {farthest:.1e}"
            print(f"{schedule.__name__}: loss {loss:.4f}, dense {wanted:.4f}; gradients {alike}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
