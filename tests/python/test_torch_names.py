"""torch.distributed's own meshes, groups and functional collectives next to ours, in real processes."""

import pytest
from torchrun import forked_ranks


def expect_part(part, n_ranks):
    result = forked_ranks("torch_names_program.py", n_ranks, part, timeout=120)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"{part}-{rank}" for rank in range(n_ranks)]


@pytest.mark.parametrize(
    "part",
    [
        "torchs_own",
        "slices",
        "unflattened",
        "lone_groups",
        "all_ranks_make_groups",
        "given_groups",
        "only_members",
        "functional_collectives",
    ],
)
def test_four_processes(part):
    expect_part(part, 4)


@pytest.mark.parametrize("part", ["given_groups_of_some", "groups_of_members", "slices_of_given_groups"])
def test_eight_processes(part):
    expect_part(part, 8)
