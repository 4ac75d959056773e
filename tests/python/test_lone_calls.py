"""Calls that one rank makes alone, ranks that are gone, forked processes: errors that name both sides, no abort, no wrong value."""

import json
import os
from pathlib import Path

from torchrun import IMPORTED, ForkedProcess

PROGRAM = Path(__file__).with_name("lone_calls_program.py")
PATIENCE = 120


def line_of(comment):
    lines = PROGRAM.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(comment))


def errors_of(part, folder, codes=(0, 0), **variables):
    """What each rank of two wrote; nothing of one that wrote nothing."""
    environment = {**os.environ, "SHARDWISE_CHECK": "0", "SHARDWISE_DUMP_FOLDER": str(folder), **variables}
    started = [ForkedProcess(PROGRAM, part, folder, rank, 2, imported=IMPORTED, env=environment) for rank in range(2)]
    try:
        ended = [(process.wait(PATIENCE), process.stderr.read()) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [code for code, _ in ended] == list(codes), ended
    paths = [folder / f"errors-{rank}" for rank in range(2)]
    return [json.loads(path.read_text()) if path.exists() else [] for path in paths]


def test_a_message_of_another_call_is_an_error_on_both_ranks(tmp_path):
    (lone, lookup, later), (_, other_lookup, other_later) = errors_of("another_call", tmp_path)
    failed = lone if "text" in lone else lookup
    assert failed["type"] == other_lookup["type"] == "DistBackendError", (lone, lookup, other_lookup)
    assert "rank 0 failed in its call" in failed["text"] and "rank 1: call" in failed["text"], failed
    assert "rank 1 failed in its call" in other_lookup["text"] and "aten::embedding" in other_lookup["text"], (
        other_lookup
    )
    for error in (later, other_later):
        assert "takes no more messages, because one failed before: [" in error["text"], error


def test_messages_of_other_lengths_are_an_error_on_both_ranks(tmp_path):
    for rank, errors in enumerate(errors_of("another_length", tmp_path)):
        assert len(errors) == 8
        for moved, later in zip(errors[::2], errors[1::2], strict=True):
            assert f"rank {rank} failed in its call" in moved["text"], moved
            assert "SHARDWISE_CHECK=1 names" in moved["text"], moved
            assert "takes no more messages" in later["text"], later


def test_the_check_tells_one_operator_on_other_tensors_layers_models_and_threads(tmp_path):
    words = [
        "for aten::index.Tensor (Float [4, 3] as [Shard(0)] on (2)",
        "for aten::nonzero (Float [4, 3] as [Shard(0)] on (2)",
        "for aten::embedding (Float [4, 3] as [Shard(0)] on (2), ids Long [2] as [Shard(0)]",
        "ids of lookup 1 of layer 0",
        "gather of group 0: ",
        "[parallelize_module] a layer expects its plain input of shape [2, 2] to be equal on all ranks, but it is not.",
        "in another thread than its first",
    ]
    for errors in errors_of("other_operands", tmp_path, SHARDWISE_CHECK="1"):
        assert len(errors) == len(words)
        for error, expected in zip(errors, words, strict=True):
            assert error.get("type") == "ValueError" and expected in error["text"], (expected, error)


def test_the_check_names_a_lone_call_within_seconds(tmp_path):
    (error,), others = errors_of("nobody_comes", tmp_path, SHARDWISE_CHECK="1", SHARDWISE_CHECK_SECONDS="2")
    assert others == [] and 1.5 < error["seconds"] < 30, error
    text = error["text"]
    assert text.startswith("[check] rank 0 is about to all_reduce 1 element for aten::"), text
    assert f"lone_calls_program.py:{line_of('# the lone mean')} in " in text, text
    assert "but rank 1 has not reached it. Last calls: rank 1: call " in text, text
    assert f"lone_calls_program.py:{line_of('# the sum of all')} in nobody_comes" in text, text
    assert "SHARDWISE_CHECK_SECONDS=2" in text, text


def test_the_check_compares_the_offsets_of_bags(tmp_path):
    for (error,) in errors_of("other_offsets", tmp_path, SHARDWISE_CHECK="1"):
        assert error["type"] == "ValueError", error
        assert error["text"].startswith("[aten::embedding_bag] the ranks have different offsets. Give all ranks"), error


def test_after_a_rank_died_the_first_failure_is_named(tmp_path):
    (first, second), _ = errors_of("killed", tmp_path)
    assert first["type"] == "DistBackendError" and "rank 0 failed in its call" in first["text"], first
    assert "takes no more messages, because one failed before: [all_reduce] rank 0 failed" in second["text"], second


def test_a_forked_process_sends_nothing(tmp_path):
    for results in errors_of("forked", tmp_path):
        ended, error, total = results
        assert ended["value"] == 7
        assert error["type"] == "ValueError" and "this process was forked from a rank" in error["text"], error
        assert total["value"] == 66.0
