"""Random programs of up to 20 operators, with writes in place, views and autograd, give on DTensors what they give on tensors. Programs of views also
lie in memory as theirs do, and agree on bases, versions and inference tensors.

A failure prints the shortest program that still fails. `python tests/python/search_programs.py` looks at other seeds.
"""

import pytest
from program_judge import judge, shrink, to_source
from program_writer import programs, programs_of_views

N_PROGRAMS = 1000
N_OF_VIEWS = 500
BATCH = 50


def expect_same(first, batch):
    found = [(first + i, batch[i], difference) for i, difference in enumerate(judge(batch)) if difference]
    if found:
        seed, program, difference = found[0]
        short, what = shrink(program, difference)
        seeds = [other for other, _, _ in found]
        pytest.fail(f"seed {seed} of {seeds}: {what.text}\n\n{to_source(short)}", pytrace=False)


@pytest.mark.parametrize("first", range(0, N_PROGRAMS, BATCH))
def test_random_programs_are_those_of_tensors(first):
    expect_same(first, list(programs(range(first, first + BATCH))))


@pytest.mark.parametrize("first", range(0, N_OF_VIEWS, BATCH))
def test_random_programs_of_views_are_those_of_tensors(first):
    expect_same(first, list(programs_of_views(range(first, first + BATCH))))
