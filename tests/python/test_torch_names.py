"""torch.distributed's own meshes, groups and functional collectives next to ours, in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("torch_names_program.py")


@pytest.mark.parametrize("part", ["torchs_own", "slices", "given_groups", "only_members", "functional_collectives"])
def test_four_processes(part):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    result = subprocess.run([*launcher, str(PROGRAM), part], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"{part}-{rank}" for rank in range(4)]
