"""Checkpoints in a dry run: nothing is written, and a rank's bytes are those that it writes and reads in a run."""

import json
from pathlib import Path

import pytest
from torchrun import IMPORTED, forked_ranks

from shardwise._dry_run.job import Program, run_as
from shardwise._dry_run.report import checkpoints

N_RANKS = 4
PROGRAM = Path(__file__).parent / "dry_run_checkpoint.py"
TENSOR_BYTES = 4 * (9 * 5 + 8 * 6)


def accesses_of(folder, *words):
    """For each rank, the save, the load and torch.save()."""
    program = Program((str(PROGRAM), str(folder), *words), N_RANKS, "cpu", None, 8)
    found = run_as(program, range(N_RANKS))
    assert [each.failure for each in found] == [""] * N_RANKS
    return [each.files for each in found], found


def test_nothing_is_written_and_each_element_counts_once(tmp_path):
    found, figures = accesses_of(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
    saves, loads, others = zip(*found, strict=True)
    assert {(each.verb, each.is_there) for each in saves + others} == {("save", True)}
    assert {(each.verb, each.is_there) for each in loads} == {("load", False)}
    n_bytes_of_step = sum(each.n_bytes for each in saves) - TENSOR_BYTES
    assert 0 < n_bytes_of_step < 4096
    assert "(not there)" in checkpoints(figures[0])


def test_a_load_reads_what_it_does_in_a_run(tmp_path):
    folder = tmp_path / "saved"
    finished = forked_ranks(PROGRAM.name, N_RANKS, folder, "ours", imported=IMPORTED)
    assert finished.returncode == 0, finished.stderr
    (Path(f"{folder}.pt")).unlink()
    found, _ = accesses_of(folder, "ours")
    for rank, (_, load, _) in enumerate(found):
        assert load.is_there
        n_bytes_read, n_bytes_of_step = json.loads(Path(f"{folder}-{rank}.json").read_text())
        assert load.n_bytes == n_bytes_read + n_bytes_of_step


def test_a_checkpoint_of_other_sizes_is_an_error(tmp_path):
    folder = tmp_path / "saved"
    finished = forked_ranks(PROGRAM.name, N_RANKS, folder, "ours", imported=IMPORTED)
    assert finished.returncode == 0, finished.stderr
    (figures,) = run_as(Program((str(PROGRAM), str(folder), "ours", "other"), N_RANKS, "cpu", None, 8), [0])
    assert "rows" in figures.failure


@pytest.mark.parametrize("rank", [0, 3])
def test_a_file_that_was_saved_is_not_there_and_the_error_says_so(tmp_path, rank):
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.save({'x': torch.ones(3)}, 'x.pt')\ntorch.load('x.pt')\n")
    (figures,) = run_as(Program((str(program),), N_RANKS, "cpu", None, 8), [rank])
    assert "A dry run writes no checkpoint, and so not x.pt" in figures.failure
