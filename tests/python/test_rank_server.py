"""Ranks that rank_server.py forks are as interpreters of their own would be."""

import subprocess

import pytest
from torchrun import forked_ranks

FEW = ("json",)  # what the server imports: these programs need no torch


def test_a_rank_finds_modules_where_pythonpath_says(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text("import only_here, os\nprint(only_here.WORD, os.environ['RANK'])")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "only_here.py").write_text("WORD = 'found'")
    missing = forked_ranks(tmp_path / "program.py", 2, imported=FEW)
    assert missing.returncode == 1 and "No module named 'only_here'" in missing.stderr
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "folder"))
    found = forked_ranks(tmp_path / "program.py", 2, imported=FEW)
    assert (found.returncode, sorted(found.stdout.splitlines())) == (0, ["found 0", "found 1"]), found.stderr


def test_a_rank_that_fails_ends_the_others(tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, time\nassert os.environ['RANK'] != '1', 'of rank 1'\ntime.sleep(60)"
    )
    finished = forked_ranks(tmp_path / "program.py", 2, imported=FEW)
    assert finished.returncode == 1 and "of rank 1" in finished.stderr


def test_ranks_that_do_not_end_are_ended(tmp_path):
    (tmp_path / "program.py").write_text("import time\ntime.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        forked_ranks(tmp_path / "program.py", 2, imported=FEW, timeout=1)
