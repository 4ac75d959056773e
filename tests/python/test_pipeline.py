"""Stages of torch.distributed.pipelining whose parameters are DTensors on submeshes: losses, gradients and steps of the whole model."""

import pytest
from torchrun import expect_all_well


@pytest.mark.parametrize(
    ("part", "n_ranks"),
    [
        ("two_by_two", 4),
        ("three_by_one", 3),
        ("activations_of_given_sizes", 4),
        ("several_stages_per_rank", 4),
        ("fully_sharded_stages", 4),
        ("without_backward", 4),
    ],
)
def test_stages_train_as_the_whole_model(part, n_ranks, tmp_path):
    expect_all_well("pipeline_program.py", n_ranks, part, tmp_path)


def test_batches_are_split_along_the_dim_of_their_spec(tmp_path):
    expect_all_well("pipeline_program.py", 2, "batches_split_along_another_dim,values_without_dims", tmp_path)
