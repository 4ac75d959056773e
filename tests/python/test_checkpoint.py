"""Tables through torch.distributed.checkpoint and ShardedTensor (T7), on real processes."""

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from shardwise import LocalShardsWrapper

PROGRAM = Path(__file__).with_name("wrapper_program.py")


def torchrun(n_ranks, part, folder):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    result = subprocess.run(
        [*launcher, str(PROGRAM), part, str(folder)], capture_output=True, text=True, timeout=180, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(part) == n_ranks  # lines of ranks may run into each other


def test_t7_saved_by_four_ranks_and_loaded_by_two_with_other_shards(tmp_path):
    torchrun(4, "save", tmp_path)
    torchrun(2, "load", tmp_path)


def test_t7_sharded_tensors_there_and_back(tmp_path):
    torchrun(4, "sharded_tensor", tmp_path)


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
