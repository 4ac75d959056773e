"""fully_shard after exceptions and interrupts, and what it refuses."""

import copy

import pytest
import torch
from fsdp_models import Block, First, Tied, expect_same, rows_of, seeded, shard_blocks
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.fsdp import fully_shard, share_comm_ctx
from shardwise.testing import run_ranks


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(6, 10), Block(6, 10)])
        self.fails_in = ""

    def forward(self, x):
        x = self.blocks[0](x)
        if self.fails_in == "forward":
            raise RuntimeError("on purpose")

        def fail(grad):
            if self.fails_in == "backward":
                raise RuntimeError("on purpose")

        x.register_hook(fail)
        return self.blocks[1](x)


def problem_that_fails():
    """A model, its rows, and a copy that has the dense gradients."""
    given = seeded(Failing)
    x = torch.rand(8, 6, generator=torch.Generator().manual_seed(2))
    dense = copy.deepcopy(given)
    dense(x).square().mean().backward()
    return given, x, dense


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_state_after_exceptions(where):
    given, x, dense = problem_that_fails()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        mine = rows_of(x, mesh.get_rank(), 4)
        model(mine).square().mean().backward()
        model.zero_grad()
        model.fails_in = where
        with pytest.raises(RuntimeError, match="on purpose"):
            model(mine).square().mean().backward()
        model.fails_in = ""
        model.zero_grad()
        if where == "backward":  # which the next forward would do
            model.reset_iter_state()
        assert all(isinstance(each, sw.DTensor) for each in model.parameters())
        model(mine).square().mean().backward()
        expect_same(model, dense)

    run_ranks(4, body)


@pytest.mark.parametrize("forward", ["of another forward", "of the same forward"])
def test_a_backward_after_one_that_failed(forward):
    given, x, dense = problem_that_fails()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        losses = [model(rows_of(x, mesh.get_rank(), 4)).square().mean() for _ in range(2)]
        model.fails_in = "backward"
        with pytest.raises(RuntimeError, match="on purpose"):
            losses[0].backward(retain_graph=True)
        model.fails_in = ""
        model.zero_grad()
        losses[forward == "of another forward"].backward()
        expect_same(model, dense)

    run_ranks(4, body, timeout=60)


class Keeping(nn.Module):
    """What the first layer gives is kept, and gives gradients without the output."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.fails_in = ""

    def forward(self, x):
        def fail(place):
            def hook(grad):
                if self.fails_in == place:
                    raise RuntimeError("on purpose")

            return hook

        self.kept = self.layers[0](x)
        y = self.layers[1](self.kept)
        self.kept.register_hook(fail("after a gradient"))
        y.register_hook(fail("before all gradients"))
        return 2 * y


@pytest.mark.parametrize("place", ["before all gradients", "after a gradient"])
def test_a_backward_that_comes_by_no_output_after_one_that_failed(place):
    given, x = seeded(Keeping), torch.rand(4, 6, generator=torch.Generator().manual_seed(2))
    dense = copy.deepcopy(given)
    dense(x)
    dense.kept.square().mean().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = fully_shard(copy.deepcopy(given), mesh=mesh, reshard_after_forward=False)
        loss = model(rows_of(x, rank, 2)).sum()
        model.fails_in = place
        with pytest.raises(RuntimeError, match="on purpose"):
            loss.backward(retain_graph=True)
        model.fails_in = ""
        model.kept.square().mean().backward()
        expect_same(model, dense)

    run_ranks(2, body, timeout=60)


def test_reset_after_an_interrupted_forward():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model, x = First(), torch.ones(2, 6)
        fully_shard(list(model.ways), mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            model(x)
        model.is_interrupted = False
        model.reset_iter_state()
        for _ in range(2):
            loss = model(x).sum()
            with sw.CommDebugMode() as comm:
                loss.backward()
            assert dict(comm.get_comm_counts()) == {"all_gather": 1, "reduce_scatter": 1}
        with torch.no_grad():
            model(x)
        assert all(isinstance(each, sw.DTensor) for each in model.parameters())

    run_ranks(2, body)


def test_what_is_refused():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        cube = sw.init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("a", "b", "c"))
        grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        model = fully_shard(nn.Linear(4, 4), mesh=mesh)
        replicas = fully_shard(nn.Linear(4, 4), mesh=grid)
        cases = [
            (lambda: fully_shard(model, mesh=mesh), AssertionError, "fully sharded already"),
            (lambda: fully_shard(nn.Linear(2, 2), mesh=cube), ValueError, "has 3 dims"),
            (lambda: fully_shard(nn.ModuleList([nn.Linear(2, 2)]), mesh=mesh), ValueError, "has no forward"),
            (lambda: fully_shard("model", mesh=mesh), TypeError, "no nn.Module"),
            (lambda: fully_shard([], mesh=mesh), ValueError, "has no modules"),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward=3),
                ValueError,
                r"no multiple of it\. Give one of \[1, 2\]",
            ),
            (lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward=0), ValueError, "no multiple"),
            (lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward="2"), ValueError, "of type str"),
            (lambda: fully_shard(nn.Linear(2, 2), mesh="cpu"), TypeError, "'cpu' is no mesh"),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, shard_after=True),
                TypeError,
                "unexpected keyword argument",
            ),
            (lambda: share_comm_ctx([model, nn.ReLU()]), ValueError, "ReLU is not fully sharded"),
            (lambda: model.set_custom_all_gather(print), NotImplementedError, "one exchange"),
            (lambda: model.set_custom_reduce_scatter(print), NotImplementedError, r"or use set_all_reduce_hook\(\)"),
            (lambda: model.set_symm_mem_for_comm(), NotImplementedError, r'set_symm_mem_for_comm\("NCCL"\)'),
            (lambda: model.set_reduce_scatter_max_input_buffers(True), TypeError, "is of type bool"),
            (lambda: model.set_reduce_scatter_max_input_buffers(0), ValueError, "is not positive"),
            (lambda: replicas.set_all_reduce_hook(print, stream=object()), ValueError, "Leave the stream out"),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: Shard(1)),
                IndexError,
                r"bias is to be placed as Shard\(1\): it has the shape \[2\]",
            ),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: Replicate()),
                ValueError,
                "is no Shard",
            ),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: 1),
                ValueError,
                "returned int for weight",
            ),
            (
                lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, mp_policy=torch.bfloat16),
                TypeError,
                "MixedPrecisionPolicy",
            ),
            (lambda: fully_shard(nn.Linear(2, 2), mesh=mesh, offload_policy=3), TypeError, "OffloadPolicy"),
            (lambda: model.set_modules_to_forward_prefetch([nn.ReLU()]), ValueError, "not fully sharded"),
            (lambda: model.set_reshard_after_forward(2), ValueError, "is no bool"),
            (lambda: copy.deepcopy(model), AssertionError, "cannot be copied"),
        ]
        for call, kind, words in cases:
            with pytest.raises(kind, match=words):
                call()

        outer = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        fully_shard(outer, mesh=mesh)
        with pytest.raises(ValueError, match="inner and shared modules first"):
            fully_shard(outer[0], mesh=mesh)
        tied = seeded(Tied)
        fully_shard(tied.head, mesh=mesh)
        with pytest.raises(ValueError, match="is shared with Linear"):
            fully_shard(tied, mesh=mesh)
        on_all = sw.distribute_module(nn.Linear(2, 2), mesh)
        with pytest.raises(ValueError, match=r"already placed as"):
            fully_shard(on_all, mesh=mesh)
        elsewhere = sw.distribute_module(nn.Linear(2, 2), grid["tp"])
        with pytest.raises(ValueError, match="must be slices of one mesh"):
            fully_shard(elsewhere, mesh=sw.init_device_mesh("cpu", (2,)))
        batch = sw.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        with pytest.raises(ValueError, match="got a DTensor"):
            model(batch)
        torch.testing.assert_close(model(torch.ones(2, 4)).shape, torch.Size([2, 4]))

    run_ranks(2, body)
