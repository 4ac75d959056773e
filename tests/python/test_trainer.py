"""transformers' Trainer and accelerate train a model with our tensors, as they train the whole one."""

from pathlib import Path

import pytest
from torchrun import IMPORTED, expect_all_well, forked_python

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

PROGRAM = "trainer_program.py"
WITH_TRAINER = (*IMPORTED, "transformers.models.llama.modeling_llama", "transformers.trainer")


def test_losses_and_weights_are_those_of_one_rank(tmp_path):
    alone = forked_python(Path(__file__).with_name(PROGRAM), "dense", tmp_path, imported=WITH_TRAINER)
    assert alone.returncode == 0, alone.stderr
    expect_all_well(PROGRAM, 2, "trainer,accelerate,unequal", tmp_path, imported=WITH_TRAINER)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    expect_all_well(PROGRAM, 2, "resumed,states", tmp_path, imported=WITH_TRAINER)
