"""The ids and the experts' loads that a dry run plans for: spread evenly, by Zipf's law, or by a histogram."""

import numpy
import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise._dry_run.job import Program, run_all
from shardwise.parallel import dispatch_tokens

N_RANKS = 4


def different(weights, n):
    """The expected number of different rows among `n` ids, by row."""
    return -numpy.expm1(n * numpy.log1p(-weights / weights.sum()))


def zipf(exponent, n_rows):
    return numpy.arange(1, n_rows + 1, dtype=float) ** -exponent


def requested(rank, ids, n_rows, n_ids):
    """The numbers of rows that rank `rank` is asked for by the other ranks, and asks them for, in a lookup in a table sharded by rows."""
    with sw.dry_run(N_RANKS, rank, device_type="cpu", ids=ids) as run:
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        table = sw.zeros(n_rows, 64, device_mesh=mesh, placements=[sw.Shard(0)])
        of_rank = sw.zeros(N_RANKS * n_ids, device_mesh=mesh, placements=[sw.Shard(0)], dtype=torch.int64)
        F.embedding(of_rank, table)
    _counts, asked, _rows = (each.span for each in run.figures.communications if each.span.op == "aten::embedding")
    assert f"ids and choices of experts are a model: {ids}" in str(run)
    return asked.bytes_received // 4, asked.bytes_sent // 4  # ids are int32


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("exponent", [0, 0.5, 1, 1.05, 2.5])
def test_a_lookup_by_zipfs_law_asks_for_the_expected_number_of_rows(rank, exponent):
    n_rows, n_ids = 1_000_000, 20_000
    by_row = different(zipf(exponent, n_rows), n_ids)
    own = by_row[rank * n_rows // N_RANKS : (rank + 1) * n_rows // N_RANKS].sum()
    asked, asks = requested(rank, f"zipf:{exponent}", n_rows, n_ids)
    assert asked == pytest.approx(3 * own, rel=1e-4, abs=3)
    assert asks == pytest.approx(by_row.sum() - own, rel=1e-4, abs=3)


def test_a_lookup_by_a_histogram_asks_for_the_expected_number_of_rows(tmp_path):
    file = tmp_path / "loads.txt"
    file.write_text("5, 0\n1e1 2.5\n")
    n_rows, n_ids = 40_002, 3000
    of_range = (numpy.arange(n_rows) * 4 // n_rows)[:, None] == numpy.arange(4)
    by_row = different(of_range @ numpy.array([5, 0, 10, 2.5]), n_ids)
    for rank in range(N_RANKS):
        asked, _ = requested(rank, str(file), n_rows, n_ids)
        own = by_row[10_001 * rank : 10_001 * (rank + 1)]  # the last rank has 9,999
        assert asked == pytest.approx(3 * own.sum(), abs=3)


def test_ids_that_are_spread_evenly_are_all_different():
    assert requested(1, "uniform", 40_000, 4000) == (3 * 1000, 3000)


def layer_of_tables(rank, ids, n_rows, n_ids):
    with sw.dry_run(N_RANKS, rank, device_type="cpu", ids=ids) as run:
        layer = sw.DistributedEmbedding([sw.TableConfig("t", n_rows, 16)], row_slice_threshold=1)
        layer([torch.zeros(n_ids, dtype=torch.int64)])
    return run


@pytest.mark.parametrize("rank", [0, 3])
def test_a_layer_of_tables_asks_for_the_same_rows(rank):
    n_rows, n_ids = 40_000, 3000
    run = layer_of_tables(rank, "zipf:1.2", n_rows, n_ids)
    by_row = different(zipf(1.2, n_rows), n_ids)
    own = by_row[rank * n_rows // N_RANKS : (rank + 1) * n_rows // N_RANKS].sum()
    *_, rows = (each.span for each in run.figures.communications if each.span.op == "DistributedEmbedding")
    assert rows.bytes_sent / (16 * 4) == pytest.approx(3 * own, abs=6)


@pytest.mark.parametrize(("ids", "loads"), [("uniform", [1 / 4] * 4), ("zipf:1", zipf(1, 8).reshape(4, 2).sum(1))])
def test_experts_get_their_shares_of_the_tokens(ids, loads):
    n_tokens, n_choices = 1024, 2
    weights = numpy.array(loads) / sum(loads)
    for rank in range(N_RANKS):
        with sw.dry_run(N_RANKS, rank, device_type="cpu", ids=ids):
            mesh = sw.init_device_mesh("cpu", (N_RANKS,))
            experts = sw.zeros(8, 16, 16, device_mesh=mesh, placements=[sw.Shard(0)])
            chosen = torch.zeros(n_tokens, n_choices, dtype=torch.int64)
            routed = dispatch_tokens(torch.zeros(n_tokens, 16), chosen, experts=experts)
            n_rows = routed.rows.to_local().shape[0]
        assert n_rows == pytest.approx(N_RANKS * n_tokens * n_choices * weights[rank], abs=8)


def test_an_expert_has_at_most_one_choice_of_each_token():
    with sw.dry_run(N_RANKS, 0, device_type="cpu", ids="zipf:4"):
        mesh = sw.init_device_mesh("cpu", (N_RANKS,))
        experts = sw.zeros(4, 2, 2, device_mesh=mesh, placements=[sw.Shard(0)])
        routed = dispatch_tokens(torch.zeros(100, 2), torch.zeros(100, 2, dtype=torch.int64), experts=experts)
        assert routed.rows.to_local().shape[0] == N_RANKS * 100


@pytest.mark.parametrize(("ids", "n_sets"), [("uniform", 1), ("zipf:1", 4)])
def test_ranks_with_other_rows_are_alike_if_ids_are_spread_evenly(tmp_path, ids, n_sets):
    script = tmp_path / "program.py"
    script.write_text(
        """
import torch, shardwise as sw
mesh = sw.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
table = sw.zeros(80000, 64, device_mesh=mesh["tp"], placements=[sw.Shard(0)])
weight = sw.zeros(800, 8, device_mesh=mesh["tp"], placements=[sw.Shard(0)])
ids = sw.zeros(6400, device_mesh=mesh["tp"], placements=[sw.Shard(0)], dtype=torch.int64)
torch.nn.functional.embedding(ids, table)
"""
    )
    model = sw.dry_run(8, ids=ids)._ids
    found = run_all(Program((str(script),), 8, "cuda", None, 8, model))
    assert [each.failure for each in found] == [""] * n_sets
    assert {each.ids for each in found} == {ids}


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("zipf:x", "'x' is no number of 0 or more.*zipf:1.05"),
        ("zipf:", "'' is no number"),
        ("zipf:-1", "'-1' is no number"),
        ("zipf:inf", "'inf' is no number"),
        ("zipf:nan", "'nan' is no number"),
        ("zipf", "no such file.*zipf:EXPONENT"),
        ("nothing.txt", "'nothing.txt', and there is no such file"),
    ],
)
def test_a_model_of_ids_that_is_none_is_refused(ids, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        sw.dry_run(4, ids=ids)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no numbers"),
        (" \n", "no numbers"),
        ("0 0", "only zeros"),
        ("1 -2", "'-2'"),
        ("1 x", "'x'"),
        ("1 nan", "'nan'"),
    ],
)
def test_a_histogram_that_is_none_is_refused(tmp_path, text, words):
    file = tmp_path / "loads.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        sw.dry_run(4, ids=str(file))


def test_a_histogram_with_more_numbers_than_rows_is_refused(tmp_path):
    file = tmp_path / "loads.txt"
    file.write_text("1 " * 11)
    with pytest.raises(ValueError, match=r"histogram of ids has 11 numbers.* has 10"):
        layer_of_tables(0, str(file), 10, 3)
