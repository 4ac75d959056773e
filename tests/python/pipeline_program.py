"""Run by test_pipeline.py under torchrun: stages of a pipeline on submeshes, against the whole model in one process."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.microbatch import (
    TensorChunkSpec,
    _Replicate,
    _split_tensor,
    merge_chunks,
    split_args_kwargs_into_chunks,
)
from torchrun import run_parts

import shardwise as sw
from shardwise import Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, WIDE, N_PARTS = 6, 11, 6
CPU = torch.device("cpu")
Shards = Callable[[nn.Module, sw.DeviceMesh], None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


def whole_model(n_blocks: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (
        nn.Sequential(*(Block() for _ in range(n_blocks))),
        torch.randn(2, 12, WIDTH),  # of two steps
        torch.randn(2, 12, WIDTH),
    )


def loss_of(output, target):
    whole = output.full_tensor() if isinstance(output, sw.DTensor) else output
    return (whole - target).square().mean()


def trained_whole(model: nn.Module, inputs, targets) -> tuple[nn.Module, list[float]]:
    model, losses = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch, target in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = loss_of(model(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def expect_same(stage: nn.Module, dense: nn.Module) -> None:
    for (name, ours), theirs in zip(stage.named_parameters(), dense.parameters(), strict=True):
        for value, expected in ((ours.detach(), theirs.detach()), (ours.grad, theirs.grad)):
            full = value.full_tensor() if isinstance(value, sw.DTensor) else value
            torch.testing.assert_close(full, expected, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def train(
    make_schedule: Callable[..., Any], stages: list[PipelineStage], inputs: Any, targets: Any, n_parts: int = N_PARTS
) -> list[float]:
    """Two steps; the losses on the rank of the last stage."""
    schedule = make_schedule(stages if len(stages) > 1 else stages[0], n_parts, loss_fn=loss_of)
    optimizer = torch.optim.SGD([each for stage in stages for each in stage.submod.parameters()], lr=0.1)
    result = []
    for batch, target in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        arguments = [batch] if any(stage.is_first for stage in stages) else []
        options = {"target": target, "losses": losses} if any(stage.is_last for stage in stages) else {}
        schedule.step(*arguments, **options)
        optimizer.step()
        if losses:
            result.append(torch.stack(losses).mean().item())
    return result


def expect_trains_as_whole(
    mesh: sw.DeviceMesh, shard: Shards, n_blocks: int, schedules: Sequence[Any] = (ScheduleGPipe, Schedule1F1B)
) -> None:
    """Blocks in a row, as many per stage as there are."""
    model, inputs, targets = whole_model(n_blocks)
    dense, expected = trained_whole(model, inputs, targets)
    number, n_stages = mesh.get_local_rank("pp"), mesh.size(0)
    share = slice(number * n_blocks // n_stages, (number + 1) * n_blocks // n_stages)
    for make_schedule in schedules:
        blocks = copy.deepcopy(model)[share]
        shard(blocks, mesh)
        stage = PipelineStage(blocks, number, n_stages, CPU, group=mesh.get_group("pp"))
        losses = train(make_schedule, [stage], inputs, targets)
        assert bool(losses) == (number == n_stages - 1)
        torch.testing.assert_close(losses, expected[: len(losses)], rtol=1e-4, atol=1e-6)
        expect_same(blocks, dense[share])


def by_features(blocks, mesh):
    plan = {"*.up": ColwiseParallel(use_local_output=False), "*.down": RowwiseParallel(use_local_output=False)}
    parallelize_module(blocks, mesh["tp"], plan)


def by_given_sizes(blocks, mesh):
    """Ten features on the one rank, and one on the other."""
    sizes = [WIDE - mesh["tp"].size() + 1, *[1] * (mesh["tp"].size() - 1)]

    def shard(name, module, tp):
        if name.endswith(("up", "down")):
            dim = int(name.endswith("down"))
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), tp, [Shard(dim, sizes=sizes)]))

    sw.distribute_module(blocks, mesh["tp"], shard)


def two_by_two(folder):
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    for shard in (by_features, by_given_sizes):
        expect_trains_as_whole(mesh, shard, n_blocks=4)
        expect_trains_as_whole(mesh, shard, n_blocks=3)  # one and two


def three_by_one(folder):
    mesh = sw.init_device_mesh("cpu", (3, 1), mesh_dim_names=("pp", "tp"))
    for shard in (by_features, by_given_sizes):
        expect_trains_as_whole(mesh, shard, n_blocks=4)  # one, one and two


class Uneven(nn.Module):
    """Its activations are given on as DTensors with all rows on rank 0 of a stage but one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        result = torch.tanh(self.layer(hidden))
        if not isinstance(result, sw.DTensor):
            return result
        n_rows = len(result)
        return result.redistribute(placements=[Shard(0, sizes=[n_rows - 1, 1])])


def activations_of_given_sizes(folder):
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    torch.manual_seed(0)
    model, (_, inputs, targets) = nn.Sequential(Uneven(), Uneven()), whole_model(0)
    dense, expected = trained_whole(model, inputs, targets)
    number = mesh.get_local_rank("pp")
    given = [sw.distribute_tensor(each, mesh["tp"], [Shard(0)]) for each in inputs]
    for make_schedule in (ScheduleGPipe, Schedule1F1B):
        blocks = sw.distribute_module(copy.deepcopy(model)[number : number + 1], mesh["tp"])
        stage = PipelineStage(blocks, number, 2, CPU, group=mesh.get_group("pp"))
        losses = train(make_schedule, [stage], given, targets, 3)
        torch.testing.assert_close(losses, expected[: len(losses)], rtol=1e-4, atol=1e-6)
        expect_same(blocks, dense[number : number + 1])


def several_stages_per_rank(folder):
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    model, inputs, targets = whole_model(4)
    dense, expected = trained_whole(model, inputs, targets)
    numbers = [mesh.get_local_rank("pp"), mesh.get_local_rank("pp") + 2]
    blocks = [copy.deepcopy(model)[number : number + 1] for number in numbers]
    stages = []
    for number, block in zip(numbers, blocks, strict=True):
        by_features(block, mesh)
        stages.append(PipelineStage(block, number, 4, CPU, group=mesh.get_group("pp")))
    losses = train(ScheduleInterleaved1F1B, stages, inputs, targets)
    torch.testing.assert_close(losses, expected[: len(losses)], rtol=1e-4, atol=1e-6)
    for number, block in zip(numbers, blocks, strict=True):
        expect_same(block, dense[number : number + 1])


def fully_sharded_stages(folder):
    """Each of two ranks runs its own half of the batch through the stages, whose parameters they share."""
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    model, inputs, targets = whole_model(4)
    dense, expected = trained_whole(model, inputs, targets)
    number, own = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    share = slice(2 * number, 2 * number + 2)
    for make_schedule in (ScheduleGPipe, Schedule1F1B):
        for reshards in (True, False):
            blocks = copy.deepcopy(model)[share]
            for block in blocks:
                sw.fully_shard(block, mesh=mesh["dp"], reshard_after_forward=reshards)
            sw.fully_shard(blocks, mesh=mesh["dp"])
            stage = PipelineStage(blocks, number, 2, CPU, group=mesh.get_group("pp"))
            losses = train(make_schedule, [stage], inputs.chunk(2, 1)[own], targets.chunk(2, 1)[own], 3)
            if losses:
                mean = torch.tensor(losses)
                dist.all_reduce(mean, group=mesh.get_group("dp"))
                torch.testing.assert_close((mean / 2).tolist(), expected, rtol=1e-4, atol=1e-6)
            expect_same(blocks, dense[share])


def without_backward(folder):
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    model, inputs, _ = whole_model(2)
    number = mesh.get_local_rank("pp")
    blocks = copy.deepcopy(model)[number : number + 1]
    by_features(blocks, mesh)
    stage = PipelineStage(blocks, number, 2, CPU, group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(stage, N_PARTS)
    with torch.no_grad():
        for batch in inputs:
            output = schedule.step(*([batch] if number == 0 else []))
            if number == 1:
                full = output.full_tensor() if isinstance(output, sw.DTensor) else output
                torch.testing.assert_close(full, model(batch), rtol=1e-4, atol=1e-6)
    layers = nn.Sequential(Uneven(), Uneven())
    blocks = sw.distribute_module(copy.deepcopy(layers)[number : number + 1], mesh["tp"])
    schedule = ScheduleGPipe(PipelineStage(blocks, number, 2, CPU, group=mesh.get_group("pp")), 3)
    batch = sw.distribute_tensor(inputs[0], mesh["tp"], [Shard(0)])
    with torch.no_grad():
        output = schedule.step(*([batch] if number == 0 else []))
        if number == 1:
            assert output.placements == (Shard(0),)
            torch.testing.assert_close(output.full_tensor(), layers(inputs[0]), rtol=1e-4, atol=1e-6)


def batches_split_along_another_dim(folder):
    mesh = sw.init_device_mesh("cpu", (2,))
    dense = torch.arange(16.0).view(2, 8)
    batch = sw.distribute_tensor(dense, mesh, [Shard(1)])
    given, _ = split_args_kwargs_into_chunks((batch,), None, 4, (TensorChunkSpec(1),))
    for (part,), expected in zip(given, torch.tensor_split(dense, 4, 1), strict=True):
        assert torch.equal(part.full_tensor(), expected)
    narrow = sw.distribute_tensor(torch.ones(8, 3), mesh, [Shard(1)])
    try:
        _split_tensor(narrow, TensorChunkSpec(1), 4)
    except AssertionError as error:
        assert "Tensor size 3 is smaller" in str(error)
    else:
        raise RuntimeError("three columns were split into four parts")


def values_without_dims(folder):
    """They are errors of torch's, as plain ones are."""
    mesh = sw.init_device_mesh("cpu", (2,))
    plain = torch.tensor(1.0)
    for value in (plain, sw.distribute_tensor(plain, mesh, [sw.Replicate()])):
        for call in (
            lambda value=value: merge_chunks([value, value], None),
            lambda value=value: _split_tensor(value, TensorChunkSpec(0), 2),
        ):
            try:
                call()
            except (RuntimeError, IndexError):
                continue
            raise RuntimeError("a tensor without dims was split or merged")
    kept = merge_chunks([value, value], _Replicate())
    assert torch.equal(kept.full_tensor(), plain)


if __name__ == "__main__":
    run_parts(globals())
