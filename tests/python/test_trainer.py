"""transformers' Trainer and accelerate train a model with our tensors, as they train the whole one."""

import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import expect_all_well

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

PROGRAM = "trainer_program.py"


def test_losses_and_weights_are_those_of_one_rank(tmp_path):
    alone = [sys.executable, str(Path(__file__).with_name(PROGRAM)), "dense", str(tmp_path)]
    subprocess.run(alone, capture_output=True, text=True, timeout=300, check=True)
    expect_all_well(PROGRAM, 2, "trainer,accelerate,unequal", tmp_path)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    expect_all_well(PROGRAM, 2, "resumed,states", tmp_path)
