"""Meshes that end, in real processes: their groups, threads, files and memory; and what several threads make."""

from torchrun import expect_all_well

PROGRAM = "mesh_lifetime_program.py"


def test_groups_of_meshes_that_nobody_has_any_more_leave_no_threads_and_files(tmp_path):
    expect_all_well(PROGRAM, 2, "given_groups", tmp_path, timeout=200)


def test_several_threads_of_a_rank_make_the_meshes_that_other_ranks_make_in_another_order(tmp_path):
    expect_all_well(PROGRAM, 4, "several_threads", tmp_path, timeout=200)


def test_meshes_and_shapes_without_end_leave_no_memory(tmp_path):
    expect_all_well(PROGRAM, 1, "without_end", tmp_path, timeout=300)
