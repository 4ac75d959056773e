"""Partials and changes of dtype: terms pass where the result's dtype holds them and their sum as they are, else they are reduced first."""

import pytest
import torch

import shardwise as sw
from shardwise import DTensor, Partial, RaggedShard
from shardwise.testing import run_ranks

FLOAT8, HALF, BFLOAT16, FLOAT, DOUBLE = torch.float8_e4m3fn, torch.half, torch.bfloat16, torch.float32, torch.float64
CASES = [
    # what, dtype of the terms, the terms of two ranks, whether they pass
    (lambda x: x.sum(dtype=torch.int64), FLOAT, (0.5, 0.5), False),  # 1, not 0 + 0
    (lambda x: x.long(), FLOAT, (0.5, 0.5), False),
    (lambda x: x.sum(), torch.int8, (100, 100), False),  # wraps around
    (lambda x: x.long(), torch.int8, (100, 100), False),
    (lambda x: x / 2, torch.int8, (100, 100), False),
    (lambda x: x.float(), torch.bool, (True, True), False),  # the sum of bools is "any"
    (lambda x: x * 0.5, torch.bool, (True, True), False),
    (lambda x: x + x.float(), torch.bool, (True, True), False),
    (lambda x: x.half(), FLOAT, (70000.0, -60000.0), False),
    (lambda x: x.sum(dtype=HALF), FLOAT, (70000.0, -60000.0), False),
    (lambda x: x.float(), DOUBLE, (1e39, -1e39), False),
    (lambda x: x.bfloat16(), FLOAT, (2.0**17, -(2.0**16)), True),
    (lambda x: x.float(), HALF, (1.0, 2.0), True),
    (lambda x: x.double().sum(), BFLOAT16, (1.0, 2.0), True),
    (lambda x: x.cfloat(), FLOAT, (1.0, 2.0), True),
    (lambda x: x.to(FLOAT8).float(), FLOAT, (300.0, -190.0), False),  # 112, not 288 - 192
    (lambda x: x.float(), FLOAT8, (1.5, 17.0), False),  # 18, not 1.5 + 17
    (lambda x: torch.empty_like(x, dtype=FLOAT8).copy_(x).float(), FLOAT, (300.0, -190.0), False),
    (lambda x: x * 2, torch.int8, (100, 100), True),
    (lambda x: x.to(torch.int8, copy=True), torch.int8, (100, 100), True),
    (lambda x: x.sum() / 2, FLOAT, (1.0, 2.0), True),
]


@pytest.mark.parametrize(("call", "dtype", "terms", "passes"), CASES)
def test_the_dense_result(call, dtype, terms, passes):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = DTensor.from_local(torch.tensor([terms[rank]], dtype=dtype), mesh, [Partial()])
        result, expected = call(x), call(x.full_tensor())
        assert result.placements[0].is_partial() == passes
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.full_tensor(), expected)

    run_ranks(2, body)


@pytest.mark.filterwarnings("ignore:.*add_.Tensor. has no sharding rule for these layouts")
def test_in_place_the_written_tensor_keeps_its_layout():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = DTensor.from_local(torch.ones(1), mesh, [Partial()])
        x.add_(DTensor.from_local(torch.ones(1, dtype=torch.bool), mesh, [Partial()]))
        assert x.placements == (Partial(),)
        torch.testing.assert_close(x.full_tensor(), torch.tensor([3.0]))

    run_ranks(2, body)


def test_terms_in_pieces():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        placements = [Partial(), RaggedShard((0,), (3, 1))]
        n = 3 if rank % 2 == 0 else 1
        x = DTensor.from_local(torch.ones(n, dtype=torch.bool), mesh, placements, shape=(4,))
        torch.testing.assert_close(x.float().full_tensor(), torch.ones(4))
        y = DTensor.from_local(torch.ones(n), mesh, placements, shape=(4,))
        assert y.bfloat16().placements == y.placements
        torch.testing.assert_close(y.bfloat16().full_tensor(), torch.full((4,), 2, dtype=BFLOAT16))

    run_ranks(4, body)
