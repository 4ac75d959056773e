"""Compiled programs that are called with batches of several lengths. Ranks are processes."""

import pytest
from torchrun import expect_all_well

PARTS = "styles,styles_that_divide_lengths,lookups,written_rows,sizes_that_are_needed,local_tensors,ranks_outside,returned_views_and_writes,marks"


@pytest.mark.parametrize("parts", [PARTS, "operators"])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_one_graph_serves_all_lengths_that_no_rank_divides(tmp_path, n_ranks, parts):
    expect_all_well("compiled_sizes_program.py", n_ranks, parts, tmp_path, timeout=600)


@pytest.mark.parametrize(
    "parts",
    [
        "attention,draws,losses",
        "parts_and_joins",
        "uneven_heads,bags,llama",
        "choices",
        "bounds_of_positions,sums_of_products",
    ],
)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_lengths_of_tokens_have_one_graph(tmp_path, n_ranks, parts):
    expect_all_well("compiled_lengths_program.py", n_ranks, parts, tmp_path, timeout=600)


def test_meshes_of_two_dims(tmp_path):
    expect_all_well("compiled_sizes_program.py", 4, "two_mesh_dims", tmp_path, timeout=600)
