"""Answers are remembered from call to call: of a second call that differs in what they depend on, they are others."""

import threading

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import DTensor, Partial, Shard
from shardwise.testing import run_ranks


@torch.library.custom_op("remembered_test::resized", mutates_args=())
def resized(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.new_ones(int(len(x) * scale), x.shape[1]) * scale


@resized.register_fake
def _(x, scale):
    return x.new_empty(int(len(x) * scale), x.shape[1])


def test_the_values_of_a_padding():
    def body(rank):
        x = DTensor.from_local(torch.arange(3.0) + rank, sw.init_device_mesh("cpu", (2,)), [Partial()])
        dense = x.full_tensor()
        for value in (0.0, 1.0, 0.0):
            padded = F.pad(x, (1, 1), value=value)
            assert padded.placements[0].is_partial() == (value == 0)
            torch.testing.assert_close(padded.full_tensor(), F.pad(dense, (1, 1), value=value))

    run_ranks(2, body)


def test_the_bounds_of_a_histogram():
    dense = torch.tensor([0.0, 1, 1, 2, 7, 7, 7, 8])

    def body(rank):
        x = sw.distribute_tensor(dense, sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        for bounds in ((0, 8), (0, 0), (2, 5)):
            torch.testing.assert_close(x.histc(4, *bounds).full_tensor(), dense.histc(4, *bounds))

    run_ranks(2, body)


def test_the_shape_that_a_number_gives():
    sw.register_rule("remembered_test::resized", lambda shapes: "ij->kj", whole="i")
    dense = torch.ones(4, 6)

    def body(rank):
        x = sw.distribute_tensor(dense, sw.init_device_mesh("cpu", (2,)), [Shard(1)])
        for scale in (0.5, 1.0, 2.0):
            y = torch.ops.remembered_test.resized(x, scale)
            assert y.placements == (Shard(1),)
            torch.testing.assert_close(y.full_tensor(), resized(dense, scale))

    run_ranks(2, body)


@torch.library.custom_op("remembered_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


@scaled.register_fake
def _(x, scale):
    return torch.empty_like(x)


def test_numbers_of_many_values_drive_out_no_other_answers():
    sw.register_rule("remembered_test::scaled", lambda shapes: "ij->ij")

    def body(rank):
        x = sw.distribute_tensor(torch.ones(4, 2), sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        x.sin()
        before = sw.cache_counters().size
        with torch.no_grad():
            for i in range(600):
                y = torch.ops.remembered_test.scaled(x, i / 8)
                assert y.placements == (Shard(0),) and y.to_local()[0, 0] == i / 8
        assert sw.cache_counters().size <= before + 256
        misses = sw.cache_counters().misses
        x.sin()
        assert sw.cache_counters().misses == misses

    run_ranks(2, body)


def test_the_default_dtype():
    together = threading.Barrier(2, timeout=60)
    dense = torch.arange(5)

    def body(rank):
        x = sw.distribute_tensor(dense, sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        for dtype in (torch.float32, torch.float64):
            together.wait()
            torch.set_default_dtype(dtype)
            together.wait()
            for ours, expected in ((x * 0.5, dense * 0.5), (x.exp(), dense.exp())):
                assert ours.dtype == ours.to_local().dtype == dtype
                torch.testing.assert_close(ours.full_tensor(), expected)

    try:
        run_ranks(2, body)
    finally:
        torch.set_default_dtype(torch.float32)


REFUSED = {
    "power": (torch.int64, lambda x, number: x**number, 2, -1, "negative integer powers"),
    "fill": (torch.uint8, lambda x, number: x.fill_(number), 3, 300, "overflow"),
    "fill of floats": (torch.float32, lambda x, number: x.fill_(number), 3.0, 1e300, "overflow"),
    "added": (torch.int8, lambda x, number: x.add(x, alpha=number), 3, 300, "overflow"),
    "celu": (torch.float32, lambda x, number: F.celu(x, number), 0.5, 0.0, "[Zz]ero|ZeroDivision"),
    "softshrink": (torch.float32, lambda x, number: F.softshrink(x, number), 0.5, -0.5, "lambda must be"),
}


@pytest.mark.parametrize(("dtype", "call", "good", "bad", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_numbers_are_refused_on_ranks_without_elements_too(dtype, call, good, bad, words):
    def body(rank):
        x = sw.distribute_tensor(torch.ones(2, dtype=dtype), sw.init_device_mesh("cpu", (4,)), [Shard(0)])
        for number in (good, good + 1, good):
            assert (call(x, number).full_tensor() == call(torch.ones(2, dtype=dtype), number)).all()
        with pytest.raises(RuntimeError, match=words):
            call(x, bad)

    run_ranks(4, body)
