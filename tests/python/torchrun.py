"""Starts the programs of this folder as ranks that are processes."""

import subprocess
import sys
from pathlib import Path


def torchrun(program, n_ranks, part, folder, *, timeout=180):
    """The finished process of `torchrun program part folder`; prints of ranks may run into each other."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    command = [*launcher, str(Path(__file__).with_name(program)), part, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def expect_all_well(program, n_ranks, part, folder, **options):
    result = torchrun(program, n_ranks, part, folder, **options)
    assert result.returncode == 0, result.stderr
    for rank in range(n_ranks):
        assert f"{part}-{rank}" in result.stdout, result.stdout
