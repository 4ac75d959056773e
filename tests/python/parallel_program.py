"""Run by test_parallel.py under torchrun: parallel_program.py save|load FOLDER, on any number of ranks."""

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


def main(part: str, folder: str) -> None:
    dist.init_process_group("gloo")
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
    print(part)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
