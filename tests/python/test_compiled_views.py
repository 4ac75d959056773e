"""Compiled programs with views of DTensors, against the programs as they are written. Ranks are processes."""

import pytest
from torchrun import expect_all_well

VIEWS = (
    "returned_views_of_inputs",
    "returned_views_have_a_history",
    "returned_views_of_intermediates",
    "used_views",
    "written_views",
    "many_views",
    "views_and_local_tensors",
    "writes_to_inputs",
)
PROGRAMS = ("outputs_with_other_gradient_layouts", "mesh_methods", "dynamic_sizes", "norms_under_tensor_parallelism")


def parts(names, backend):
    return ",".join(f"{name}.{backend}" for name in names)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_views_are_those_of_the_program_as_it_is_written(tmp_path, backend):
    expect_all_well("compiled_views_program.py", 2, parts(VIEWS, backend), tmp_path, timeout=600)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_programs_with_methods_of_meshes_marks_and_norms(tmp_path, backend):
    expect_all_well("compiled_views_program.py", 2, parts(PROGRAMS, backend), tmp_path, timeout=600)


def test_inductor_and_a_compiled_backward(tmp_path):
    names = f"{parts(('returned_views_of_inputs', 'writes_to_inputs'), 'inductor')},compiled_backward.aot_eager"
    expect_all_well("compiled_views_program.py", 2, names, tmp_path, timeout=600)


def test_compat_compiles_programs_of_dtensors(tmp_path):
    """torch's C++ must not take our class for the one that it looks up by name."""
    names = parts(("writes_to_inputs", "mesh_methods"), "aot_eager")
    expect_all_well("compiled_views_program.py", 2, names, tmp_path, timeout=600, on_shardwise=True)
