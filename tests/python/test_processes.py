"""What only real processes show: groups of torch.distributed, the end of the interpreter, torch's own meshes."""

import os
import subprocess
import sys

import pytest
from torchrun import forked_python, forked_ranks

PROGRAM = "gloo_program.py"


@pytest.mark.parametrize(
    "part",
    [
        "layouts",
        "groups",
        "torch_meshes",
        "new_world",
        "saved_meshes",
        "left_open",
        "moves",
        "read_alone",
        "mixed_pieces",
        "waits_at_different_places",
        "torch_collectives",
        "torch_data_parallel",
        "replicas_of_tensor_parallel_modules",
        "fully_sharded",
        "random_numbers",
        "checkpoint",
        "training",
    ],
)
def test_four_processes_over_gloo(part, tmp_path):
    result = forked_ranks(PROGRAM, 4, part, tmp_path, timeout=120, whole_end=part == "left_open")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"{part}-{rank}" for rank in range(4)]
    noise = [line for line in result.stderr.splitlines() if line.strip() and not is_expected(line)]
    assert not noise, "\n".join(noise)


@pytest.mark.parametrize("seconds", ["0.5", "0"])
def test_a_rank_that_waits_for_others_names_what_it_waits_for(seconds, tmp_path):
    result = forked_ranks(
        PROGRAM,
        4,
        "waits",
        tmp_path,
        timeout=120,
        env={**os.environ, "SHARDWISE_WAIT_WARNING": seconds, "SHARDWISE_DUMP_FOLDER": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if "has waited" in line]
    if seconds == "0":
        assert not warnings
    else:
        (warning,) = [line for line in warnings if "rank 0 has waited" in line]
        for words in (
            "[all_reduce] rank 0",
            "for the others of the ranks [0, 1, 2, 3], which aten::_local_scalar_dense needs",
            "under `if rank == 0:` is never answered",
        ):
            assert words in warning


def is_expected(line):
    """torchrun's note on threads, torch's on groups left open, ours on operators without a rule."""
    words = ("OMP_NUM_THREADS", "*****", "destroy_process_group", "has no sharding rule", "UserWarning", "run.py")
    return any(word in line for word in words)


ALONE = """
import torch, shardwise as sw
try:
    sw.init_device_mesh("cpu", (1,))
except ValueError as error:
    print(error)
"""


def test_ranks_of_torchs_fake_group_send_zeros():
    """There are no such ranks: a program runs on one process, and its results do not depend on what memory held before."""
    program = (
        "import torch, torch.distributed as dist, shardwise as sw\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', store=FakeStore(), rank=1, world_size=3)\n"
        "mesh = sw.init_device_mesh('cpu', (3,))\n"
        "for n in range(1, 5):\n"
        "    used = [torch.full((n * 4,), 7.0) for _ in range(20)]\n"
        "    del used\n"
        "    x = sw.DTensor.from_local(torch.ones(n, 4), mesh, [sw.Shard(0)])\n"
        "    assert x.full_tensor().sum(1).tolist() == [0.0] * n + [4.0] * n + [0.0] * n\n"
        "    assert x.redistribute(placements=[sw.Shard(1)]).to_local().sum() in (n, 2 * n)\n"
    )
    result = forked_python("-c", program)
    assert result.returncode == 0, result.stderr


def test_without_torchrun_the_error_says_how_to_start():
    result = forked_python("-c", ALONE)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert "[world] no ranks have been started" in result.stdout and "torchrun" in result.stdout


ENDS_IN_THREADS = """
import torch, shardwise as sw
from shardwise.testing import run_ranks
kept = []
def body(rank):
    mesh = sw.init_device_mesh("cpu", (3,))
    x = sw.ones(7, requires_grad=True, device_mesh=mesh, placements=[sw.Shard(0)])
    (x * x).sum().backward()
    kept.append((mesh, x, x.grad))
run_ranks(3, body)
print("done")
"""


def test_tensors_of_thread_ranks_may_outlive_everything():
    command = [sys.executable, "-W", "ignore", "-c", ENDS_IN_THREADS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
