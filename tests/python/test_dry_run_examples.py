"""Every example runs in a dry run, to a report; a value that an example reads is named with its line."""

from pathlib import Path

import pytest

from shardwise._dry_run.figures import LINKS, Machine
from shardwise._dry_run.job import Program, run_as
from shardwise._dry_run.report import Report

EXAMPLES = Path(__file__).parents[2] / "examples"
N_RANKS = 4


def line_of(example, text):
    """`example.py:LINE` of the only line of an example that holds `text`."""
    lines = (EXAMPLES / f"{example}.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{example}.py:{number}"


DIFFERENCE = line_of("sentence_embeddings", "difference = ")
ROWS_BY_RANK = line_of("train_word_vectors", ".diff().tolist()")
GRADIENT_GAP = line_of("unmodified_models", "gap = ")

# The arguments, and the value with which the example goes on; None if it reads none.
CASES = {
    "dlrm": (["--folder", "nowhere", "--resume"], 1),  # evaluates alone
    "finetune_hf": (["--steps", "1"], 1),
    "growing_vocabulary": ([], 1),
    "minilm": ([], None),
    "moe": (["--steps", "1"], 1),
    "parallel_mlp": ([], 1),
    "pipeline": ([], 1),
    "sentence_embeddings": ([], {"": 1, DIFFERENCE: 0}),
    "sharded_embedding": ([], 1),
    "torchrec_sharding": ([], 1),
    "train_transformer": (["--steps", "1"], None),
    "train_word_vectors": (["--epochs", "1"], {"": 1, ROWS_BY_RANK: 307}),
    "two_tower": (["--epochs", "1"], 1),
    "unmodified_models": ([], {"": 1, GRADIENT_GAP: 0}),
}


def program(example, value, on_shardwise=False):
    launcher = ("shardwise.compat",) if on_shardwise else ()
    words = (*launcher, str(EXAMPLES / f"{example}.py"), *CASES[example][0])
    return Program(words, N_RANKS, "cpu", value, 8, is_module=on_shardwise)


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("example", CASES)
def test_an_example_runs(example):
    value = CASES[example][1]
    is_of_torch = example == "finetune_hf"  # a program for torch.distributed.tensor; its rank 0 reads what it saved
    if example in ("finetune_hf", "unmodified_models"):
        pytest.importorskip("transformers")
    (figures,) = run_as(program(example, value, is_of_torch), [int(is_of_torch)])
    assert figures.failure == ""
    assert value is not None or not figures.reads
    assert "estimated time" in str(Report([figures], Machine.of(0, 0, LINKS, 8)))


@pytest.mark.parametrize("example", ["train_word_vectors", "growing_vocabulary"])
def test_without_a_value_the_first_read_is_named(example):
    (figures,) = run_as(program(example, None), [0])
    assert f"{example}.py:" in figures.failure
    assert "Give the value that it goes on with: `--value 1`" in figures.failure


def test_an_error_after_reads_names_the_last_one():
    (figures,) = run_as(program("train_word_vectors", 1), [0])
    assert "split_sizes" in figures.failure
    assert ROWS_BY_RANK in figures.failure
    assert "=NUMBER`" in figures.failure


def test_a_program_for_torchs_dtensor_is_told_how_it_runs():
    pytest.importorskip("transformers")
    (figures,) = run_as(program("finetune_hf", 1), [0])
    assert "dry-run ... -m shardwise.compat PROGRAM" in figures.failure


def test_the_last_stage_of_a_pipeline_learns_shapes_from_the_first():
    first, last = run_as(program("pipeline", 1), [0, 3])
    assert (first.failure, last.failure) == ("", "")
    sent, received = (
        [
            (each.span.dtype, each.span.bytes_sent + each.span.bytes_received)
            for each in figures.communications
            if each.span.collective == way
        ]
        for figures, way in ((first, "send"), (last, "recv"))
    )
    assert len(sent) == len(received) > 0


def test_objects_of_a_rank_that_sends_none_are_an_error(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import torch.distributed as dist\ndist.recv_object_list([None], src=1)\n")
    (figures,) = run_as(Program((str(script),), N_RANKS, "cpu", None, 8), [0])
    assert "program.py:2" in figures.failure
    assert "receives objects of rank 1, which sends none" in figures.failure
