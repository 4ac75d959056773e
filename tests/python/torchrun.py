"""Ranks that are processes: starting the programs of this folder, and what such a program does."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


def torchrun(program, n_ranks, parts, folder, *, timeout=300, on_shardwise=False):
    """The finished process of `torchrun program parts folder`, or of `torchrun -m shardwise.compat program parts folder`."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    launcher += ["-m", "shardwise.compat"] if on_shardwise else []
    command = [*launcher, str(Path(__file__).with_name(program)), parts, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def expect_all_well(program, n_ranks, parts, folder, **options):
    result = torchrun(program, n_ranks, parts, folder, **options)
    assert result.returncode == 0, result.stderr
    for rank in range(n_ranks):
        assert f"{parts}-{rank}" in result.stdout, result.stdout


def run_parts(functions):
    """The program's side: calls the functions named by the first argument ("one,two") with the folder, and prints PARTS-RANK."""
    parts, folder = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for part in parts.split(","):
        functions[part](folder)
        dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"{parts}-{os.environ['RANK']}\n")
