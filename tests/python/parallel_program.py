"""Run by test_parallel.py under torchrun: parallel_program.py save|load|draw FOLDER, on any number of ranks."""

import resource
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from shardwise.parallel import ColumnParallelLinear, ParallelEmbedding, RowParallelLinear


def layers(stride: int) -> nn.Sequential:
    return nn.Sequential(
        ParallelEmbedding(11, 7),
        ColumnParallelLinear(7, 10, gather_output=False, stride=stride),
        RowParallelLinear(10, 7, input_is_parallel=True, stride=stride),
    )


def draw() -> None:
    """A table of 128 MiB, of which a rank never has much more than its part."""
    torch.zeros(10).normal_()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    table = ParallelEmbedding(1 << 17, 256)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < table.weight.to_local().nbytes + (16 << 20), grown


def main(part: str, folder: str) -> None:
    dist.init_process_group("gloo")
    if part == "draw":
        draw()
    else:
        checkpoint(part, folder)
    sys.stdout.write(f"{part}-{dist.get_rank()}\n")
    dist.destroy_process_group()


def checkpoint(part: str, folder: str) -> None:
    torch.manual_seed(0)
    saved = layers(stride=2)  # the same values on any number of ranks
    if part == "save":
        dcp.save(saved.state_dict(), checkpoint_id=folder)
    else:
        torch.manual_seed(1)
        other = layers(stride=1)
        state = other.state_dict()
        dcp.load(state, checkpoint_id=folder)
        other.load_state_dict(state)
        for ours, theirs in zip(other.parameters(), saved.parameters(), strict=True):
            assert torch.equal(ours.full_tensor(), theirs.full_tensor())
        ids = torch.tensor([1, 10, 3])
        torch.testing.assert_close(other(ids), saved(ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
