"""Dry runs of the examples and of published models send, hold and lay out what the same programs do on four real ranks."""

import json
from collections import Counter
from pathlib import Path

import pytest
from torchrun import IMPORTED, forked_ranks

from shardwise._dry_run.job import Program, run_as

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
N_RANKS = 4

ASIDE = 1 << 10  # bytes of tensors that a run has besides those of the program: seeds, and workspaces of kernels

# A program and its arguments; operators whose messages depend on values that a dry run does not have.
CASES = {
    "parallel_mlp": ([EXAMPLES / "parallel_mlp.py"], {}),
    "train_transformer": ([EXAMPLES / "train_transformer.py", "--steps", "1"], {}),
    "sharded_embedding": ([EXAMPLES / "sharded_embedding.py"], {"aten::embedding_renorm_"}),
    "moe": ([EXAMPLES / "moe.py", "--steps", "1"], {"dispatch_tokens", "combine_tokens", "", "forward"}),
    "two_tower": (
        [EXAMPLES / "two_tower.py", "--epochs", "1"],
        {"DistributedEmbedding", "DistributedEmbedding_backward"},
    ),
    "llama": ([HERE / "truth_models.py", "llama"], {}),
    "qwen": ([HERE / "truth_models.py", "qwen"], {}),
    "dlrm": ([HERE / "truth_models.py", "dlrm"], {}),
}


def totals(messages, by_values):
    """The number and the bytes of the messages by collective and operator. Only the operator is known if values decide."""
    found = Counter()
    for collective, op, sent, received in messages:
        if op in by_values:
            found[op] = 1
        elif collective not in ("connect", "share memory"):  # of the first call over a backend
            found[collective, op, "messages"] += 1
            found[collective, op, "sent"] += sent
            found[collective, op, "received"] += received
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_of_a_program_sends_holds_and_lays_out_what_the_program_does(case, tmp_path):
    command, by_values = CASES[case]
    if case in ("llama", "qwen"):
        pytest.importorskip("transformers")
    real, dry = tmp_path / "real", tmp_path / "dry"
    real.mkdir()
    dry.mkdir()
    finished = forked_ranks("truth_program.py", N_RANKS, real, case, *command, imported=IMPORTED)
    assert finished.returncode == 0, finished.stderr
    words = tuple(map(str, (HERE / "truth_program.py", dry, case, *command)))
    for figures in run_as(Program(words, N_RANKS, "cpu", 1, 8), range(N_RANKS)):
        assert figures.failure == ""
        of_real, of_dry = (json.loads((folder / f"{case}-{figures.rank}.json").read_text()) for folder in (real, dry))
        assert of_dry["layouts"] == of_real["layouts"]
        spans = [each.span for each in figures.communications]
        planned = [(each.collective, each.op, each.bytes_sent, each.bytes_received) for each in spans]
        assert totals(planned, by_values) == totals(of_real["sent"], by_values)
        peak, (least, most) = max(figures.bytes_over_time), of_real["peak"]
        assert peak == pytest.approx(min(max(peak, least), most), rel=0.03, abs=ASIDE)
