"""Some architectures of tests/zoo, which `scripts/test --all` runs as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

ZOO = Path(__file__).parents[1] / "zoo" / "zoo.py"
# With local attention, a state space, convolutions, sounds, a mixture of experts and a tensor-parallel plan.
SOME = ["longformer", "mamba2", "convnextv2", "wav2vec2", "deberta-v2", "nllb-moe", "qwen3_moe"]


def test_some_architectures_sharded_are_dense():
    pytest.importorskip("transformers")
    command = [sys.executable, str(ZOO), "--names", *SOME]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "7 architectures: 16 results are equal dense, 0 unexpected failures" in result.stdout
