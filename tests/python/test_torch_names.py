"""torch.distributed's own meshes, groups and functional collectives next to ours, in real processes."""

import pytest
from torchrun import forked_ranks


@pytest.mark.parametrize("part", ["torchs_own", "slices", "given_groups", "only_members", "functional_collectives"])
def test_four_processes(part):
    result = forked_ranks("torch_names_program.py", 4, part, timeout=120)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"{part}-{rank}" for rank in range(4)]
