"""One program on each device: over Gloo on CPUs everywhere, over NCCL where there is a GPU, which its ranks may share."""

import pytest
import torch
from torchrun import forked_ranks, torchrun

PARTS = [
    "layouts",
    "moves",
    "operators",
    "fused_attention",
    "lookups",
    "distributed_embedding",
    "fully_sharded",
    "tensor_parallel",
    "compiled",
    "lone_calls",
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_four_processes_give_the_dense_results(device, part, tmp_path):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    launch = torchrun if device == "cuda" else forked_ranks  # a forked process cannot use CUDA that its parent has used
    result = launch("device_program.py", 4, device, part, tmp_path, timeout=240)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"{part}-{rank}" for rank in range(4)]
