"""quantile and nanquantile, along shards and across them, against torch's."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

LAYOUTS = {
    "rows": [Replicate(), Shard(0)],
    "uneven columns": [Shard(1, sizes=[6, 0]), Replicate()],
    "nested": [Shard(0), Shard(0)],
    "grid": [Shard(1), Shard(0, sizes=[0, 7])],
    "terms": [Partial(), Shard(1)],
}
ON_WHOLE = {"without a dim": {}, "kept": {"keepdim": True}}
ALONG = {"rows": {"dim": 0}, "columns, kept": {"dim": -1, "keepdim": True}}


def values(n_nans):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, dtype=torch.double, generator=generator)
    x.view(-1)[torch.randperm(42, generator=generator)[:n_nans]] = torch.nan
    return x


@pytest.mark.parametrize("options", [{**ON_WHOLE, **ALONG}[name] for name in (*ON_WHOLE, *ALONG)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_dense_result_and_gradient(layout, options):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        several = torch.tensor([0.0, 0.31, 1.0], dtype=torch.double)
        for function, n_nans in ((torch.quantile, 0), (torch.quantile, 3), (torch.nanquantile, 20)):
            for interpolation in ("linear", "lower", "higher", "nearest", "midpoint"):
                for q in (0.4, several):
                    dense = values(n_nans).requires_grad_()
                    x = sw.distribute_tensor(dense.detach(), mesh, LAYOUTS[layout]).requires_grad_()
                    ours_q = q if isinstance(q, float) else sw.distribute_tensor(q, mesh)
                    ours = function(x, ours_q, interpolation=interpolation, **options)
                    theirs = function(dense, q, interpolation=interpolation, **options)
                    torch.testing.assert_close(ours.full_tensor(), theirs, equal_nan=True)
                    ours.nansum().backward()
                    theirs.nansum().backward()
                    torch.testing.assert_close(x.grad.full_tensor(), dense.grad, equal_nan=True)

    run_ranks(4, body)


def test_of_numbers_and_of_one_dim():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        number = torch.tensor(3.5)
        for dense, placement in ((number, Replicate()), (torch.arange(9.0), Shard(0, sizes=[9, 0]))):
            x = sw.distribute_tensor(dense, mesh, [placement])
            for dim in (None, 0):
                assert torch.equal(x.quantile(0.3, dim=dim).full_tensor(), dense.quantile(0.3, dim=dim))
                assert x.nanquantile(0.3, dim=dim, keepdim=True).shape == dense.quantile(0.3, dim, keepdim=True).shape

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(4, 0), 0.5), "must be non-empty"),
        ((torch.ones(4, 2), 1.5), r"must be in the range \[0, 1\] but got 1.5"),
        ((torch.ones(4, 2), torch.tensor([0.5, -1.0])), r"must be in the range \[0, 1\]"),
        ((torch.ones(4, 2), torch.tensor([[0.5]])), "q must be a scalar or 1D tensor"),
        ((torch.ones(4, 2).long(), 0.5), "must be either float or double"),
        ((torch.ones(4, 2), 0.5, 2), "Dimension out of range"),
    ],
)
def test_wrong_arguments_are_refused_as_by_torch(arguments, message):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x, q, *dim = arguments
        with pytest.raises((RuntimeError, IndexError), match=message):
            torch.quantile(x, q, *dim)
        q = sw.distribute_tensor(q, mesh) if isinstance(q, torch.Tensor) else q
        with pytest.raises((RuntimeError, IndexError), match=message):
            torch.quantile(sw.distribute_tensor(x, mesh, [Shard(0)]), q, *dim)

    run_ranks(2, body)


@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile])
def test_plain_operands_of_several_elements_are_refused_by_name_before_anything_is_sent(function):
    def body(rank):
        dense, q = torch.arange(8.0).view(4, 2), torch.tensor([0.25, 0.5])
        x = sw.distribute_tensor(dense, sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        distributed_q = sw.distribute_tensor(q, x.device_mesh)
        with sw.CommDebugMode() as sent:
            with pytest.raises(ValueError, match=rf"\[aten::{function.__name__}\] got a torch.Tensor of shape \[2\]"):
                function(x, q, dim=0)
            with pytest.raises(
                ValueError, match=rf"\[aten::{function.__name__}\] got a torch.Tensor of shape \[4, 2\]"
            ):
                function(dense, distributed_q, dim=0)
        assert sent.get_total_counts() == 0
        assert torch.equal(function(x, torch.tensor(0.5), dim=0).full_tensor(), function(dense, 0.5, dim=0))
        with sw.implicit_replication():
            assert torch.equal(function(x, q, dim=0).full_tensor(), function(dense, q, dim=0))

    run_ranks(2, body)
