"""16 and 64 ranks as processes over Gloo, and 256 as threads: every case of many_ranks.py.

It takes about 190 seconds of CPU time, two thirds of them for the threads, which send a message per pair of ranks for each gather.
"""

import pytest
from many_ranks import assert_is, cases, distributed, numbers, run_cases
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

PROGRAM = "many_ranks_program.py"


@pytest.mark.parametrize("n_ranks", [16, 64])
def test_processes(n_ranks, tmp_path):
    expect_all_well(PROGRAM, n_ranks, "every_case", tmp_path, timeout=170)


def test_threads():
    by_name = cases(256)
    run_ranks(256, lambda rank: run_cases(rank, 256, by_name))


def test_few_keys_are_set_and_read_for_a_mesh(tmp_path):
    expect_all_well(PROGRAM, 16, "store_calls", tmp_path)


def test_different_agreements_are_an_error_of_all_ranks(tmp_path):
    expect_all_well(PROGRAM, 16, "different_agreements", tmp_path)


@pytest.mark.parametrize("part", ["gone_before_an_agreement", "gone_before_a_reduction"])
def test_all_ranks_learn_that_one_has_gone(part, tmp_path):
    expect_all_well(PROGRAM, 16, part, tmp_path)


def test_small_moves_among_many_ranks_are_of_few_messages():
    """They gather all pieces, or reduce them as a whole. Larger ones receive no byte more than they must."""
    n, double = 16, 8

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n,))
        for side, names in (
            (16, ["all_gather", "all_to_all", "all_reduce"]),
            (512, ["all_gather", "all_to_all", "reduce_scatter"]),
        ):
            dense, row = numbers(side, side), side * side // n * double
            received = [15 * row, 15 * row, 15 * row * 2] if side == 16 else [15 * row, 15 * row // n, 15 * row]
            moves = [(Shard(0), Replicate()), (Shard(0), Shard(1)), (Partial(), Shard(0))]
            for (source, target), name, n_bytes in zip(moves, names, received, strict=True):
                tensor = distributed(dense, mesh, [source])
                with sw.debug.CommDebugMode() as comm:
                    moved = tensor.redistribute(placements=[target])
                assert (comm.get_comm_counts(), comm.bytes_received()) == ({name: 1}, n_bytes)
                assert_is(moved, dense)

    run_ranks(n, body)


def test_a_failure_names_rank_and_case():
    def fails():
        raise AssertionError("wrong numbers")

    with pytest.raises(AssertionError, match="wrong numbers") as error:
        run_ranks(2, lambda rank: run_cases(rank, 2, {"well": lambda: None, "a move": fails if rank == 1 else list}))
    assert "rank 1 of 2, a move" in error.value.__notes__
