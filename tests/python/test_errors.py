"""The caller's mistakes: exception type, words, and that every rank raises and stays in step."""

import subprocess
import sys
from pathlib import Path

import error_catalogue
import pytest
from error_catalogue import INTERNALS, PAGE, alike, is_stale, is_well_formed, message_of, provoke, sections

CASES = [
    pytest.param(section.SETUP, case, id=f"{name}: {case.title}")
    for name, section in sections()
    for case in section.CASES
]


@pytest.mark.parametrize("setup, case", CASES)
def test_every_rank_gets_the_error(setup, case):
    outcomes = provoke(setup, case)
    errors = [error for error, _ in outcomes]
    assert [type(error) for error in errors] == [case.error] * 2, errors
    messages = [message_of(error) for error in errors]
    assert case.is_of_rank or len(set(map(alike, messages))) == 1, messages
    for message in messages:
        assert is_well_formed(message) != case.in_torchs_words, message
        assert INTERNALS.search(message) is None or case.in_torchs_words, message
    assert all(in_step for _, in_step in outcomes)


def test_two_processes_get_the_errors():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = Path(error_catalogue.__file__).with_name("error_program.py")
    finished = subprocess.run([*launcher, program], capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "all cases ran\n"


def test_titles_differ():
    for name, section in sections():
        titles = [case.title for case in section.CASES]
        assert len(titles) == len(set(titles)), name


def test_the_page_is_written_anew():
    """python tests/python/error_catalogue.py writes it."""
    assert not is_stale(PAGE.read_text(), error_catalogue.page())
