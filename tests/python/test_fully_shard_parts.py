"""Which parts of parameters fully_shard gives ranks: slices that are kept among fewer ranks, other dims, given sizes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from fsdp_models import (
    IDS,
    Model,
    X,
    by_last_dim,
    expect_runs_as_whole,
    expect_same,
    full,
    loss_of,
    mlp,
    rows_of,
    seeded,
    shard_blocks,
    shard_layers,
    steps,
    trained_whole,
)
from torch import nn

import shardwise as sw
from shardwise import Shard
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, ExpertParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

# Resharding to fewer ranks


@pytest.mark.parametrize("n_keeping", [1, 2, 4])
@pytest.mark.parametrize("width", [8, 6, 3])
def test_slices_are_kept_among_fewer_ranks(n_keeping, width):
    given = seeded(Model, width=width)
    dense, _ = trained_whole(given, 2)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh, reshard_after_forward=n_keeping)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for step, ids in enumerate(IDS[:2]):
            loss_of(model, rows_of(ids, rank, 4)).backward()
            with torch.no_grad():  # nothing is kept of it that a step makes old
                model(ids)
            optimizer.step()
            if step == 0:
                optimizer.zero_grad()
        expect_same(model, dense)

    run_ranks(4, body)


def test_a_backward_gathers_what_the_few_ranks_lack():
    given = seeded(Model, width=8, hidden=16, n_blocks=2)
    inner = sum(each.numel() * 4 for each in given.blocks.parameters() if each.dim() > 0)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        received = {}
        for kept in (True, 2, False):
            model = copy.deepcopy(given)
            for block in model.blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=kept)
            fully_shard(model, mesh=mesh)
            loss = loss_of(model, rows_of(IDS[0], rank, 4))
            with sw.CommDebugMode() as comm:
                loss.backward()
            received[kept] = comm.bytes_received()
        assert received[2] - received[False] == inner / 2
        assert received[True] - received[False] == inner * 3 / 4
        model.set_reshard_after_forward(True)
        with sw.CommDebugMode() as comm:
            loss_of(model, IDS[0]).backward()
        assert comm.get_comm_counts()["all_gather"] == 2 + 2  # the outermost group, and both blocks together

    run_ranks(4, body)


@pytest.mark.parametrize("checkpointed", ["", "reentrant", "not reentrant"])
def test_slices_of_replicas_and_of_parameters_beside_them(checkpointed):
    given = seeded(Model, checkpointed=checkpointed)
    dense = copy.deepcopy(given)
    loss_of(dense, IDS[0]).backward()

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
        model = shard_blocks(copy.deepcopy(given), grid, reshard_after_forward=2)
        loss_of(model, rows_of(IDS[0], rank, 8)).backward()
        expect_same(model, dense)
        grid = sw.init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize_module(
            copy.deepcopy(given), grid["tp"], {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        )
        shard_blocks(model, grid["dp"], reshard_after_forward=2)
        loss_of(model, rows_of(IDS[0], grid.get_local_rank("dp"), 4)).backward()
        expect_same(model, dense)

    run_ranks(8, body)


# Shards of other dims


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_parameters_are_sharded_along_given_dims(n_ranks):
    given = seeded(Model)
    dense, _ = trained_whole(given)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        model = shard_blocks(copy.deepcopy(given), mesh, shard_placement_fn=by_last_dim)
        up, norm = model.blocks[0].up, model.blocks[0].norm
        assert up.weight.placements == (Shard(1),) and up.bias.placements == norm.weight.placements == (Shard(0),)
        assert up.weight.to_local().shape == (10, -(-6 // n_ranks) if rank < 6 // -(-6 // n_ranks) else 0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for step, ids in enumerate(IDS):
            loss_of(model, rows_of(ids, rank, n_ranks)).backward()
            optimizer.step()
            if step < 2:
                optimizer.zero_grad()
        expect_same(model, dense)

    run_ranks(n_ranks, body)


def test_parameters_are_sharded_into_given_sizes():
    sizes = {8: [0, 7, 1], 5: [5, 0, 0], 7: [2, 2, 3], 3: [1, 1, 1]}
    expect_runs_as_whole(
        mlp,
        steps(3),
        shard=lambda model, mesh: shard_layers(
            model,
            mesh,
            reshard_after_forward=3,
            shard_placement_fn=lambda parameter: Shard(
                parameter.dim() - 1, sizes=sizes[parameter.shape[parameter.dim() - 1]]
            ),
        ),
    )


@pytest.mark.parametrize("names", [("dp", "tp"), ("tp", "dp")])
def test_dims_of_parameters_beside_tensor_parallelism(names):
    given = seeded(Model, hidden=7)
    dense = copy.deepcopy(given)
    loss_of(dense, IDS[0]).backward()

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        model = parallelize_module(
            copy.deepcopy(given), grid["tp"], {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        )
        shard_blocks(model, grid["dp"], shard_placement_fn=by_last_dim)
        up, down = model.blocks[0].up.weight, model.blocks[0].down.weight
        dp, tp = names.index("dp"), names.index("tp")
        assert (up.placements[dp], up.placements[tp]) == (Shard(1), Shard(0))
        assert down.to_local().shape[0] == 6 and down.to_local().shape[1] <= 2
        loss_of(model, rows_of(IDS[0], grid.get_local_rank("dp"), 2)).backward()
        expect_same(model, dense)

    run_ranks(4, body)


class Experts(nn.Module):
    def __init__(self, n_experts):
        super().__init__()
        self.num_experts = n_experts
        self.weight = nn.Parameter(torch.randn(n_experts, 8, 8))

    def forward(self, x, num_tokens_per_expert):
        return F.grouped_mm(x, self.weight, offs=num_tokens_per_expert.cumsum(0, dtype=torch.int32))


class Mixture(nn.Module):
    def __init__(self, n_experts):
        super().__init__()
        self.router, self.experts, self.out = nn.Linear(8, n_experts), Experts(n_experts), nn.Linear(8, 8)

    def forward(self, x):
        weights, ids = self.router(x).softmax(-1).max(-1)
        order = ids.argsort(stable=True)
        rows = self.experts(x[order], ids.bincount(minlength=self.router.out_features))
        return self.out(torch.zeros_like(x).index_add(0, order, rows) * weights[:, None])


@pytest.mark.parametrize("shared", ["dp", "tp"])
def test_a_slice_that_is_shared_between_meshes(shared):
    """The slice's first root lacks the parameter's dim, or the other way round; the data's dim may have one rank."""

    def body(rank):
        sizes = (1, 4) if shared == "dp" else (2, 2)
        first = sw.init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "x") if shared == "dp" else ("x", "tp"))
        mesh = sw.init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
        assert first[shared] == mesh[shared] and mesh[shared]._get_root_mesh() == first
        model = seeded(lambda: nn.Linear(8, 12))
        dense = copy.deepcopy(model)
        parallelize_module(model, mesh["tp"], ColwiseParallel(use_local_output=False))
        fully_shard(model, mesh=mesh["dp"])
        assert model.weight.device_mesh == mesh
        model(X).full_tensor().sum().backward()
        dense(X).sum().backward()
        torch.testing.assert_close(model.weight.grad.full_tensor(), dense.weight.grad)

    run_ranks(4, body)


@pytest.mark.parametrize("names", [("pp", "dp", "cp", "tp"), ("tp", "dp", "cp", "pp")])
def test_a_flattened_mesh_beside_tensor_parallelism(names):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", [1 if name == "pp" else 2 for name in names], mesh_dim_names=names)
        model = seeded(lambda: nn.Linear(8, 12))
        dense = copy.deepcopy(model)
        parallelize_module(model, mesh["tp"], ColwiseParallel(use_local_output=False))
        fully_shard(model, mesh=mesh["dp", "cp"]._flatten("all"))
        assert model.weight.device_mesh.mesh_dim_names == (("all", "tp") if names[0] == "pp" else ("tp", "all"))
        model(X).full_tensor().sum().backward()
        dense(X).sum().backward()
        torch.testing.assert_close(model.weight.grad.full_tensor(), dense.weight.grad)
        assert pickle.loads(pickle.dumps(model.weight.device_mesh)) == model.weight.device_mesh

    run_ranks(8, body)


@pytest.mark.parametrize(("n_experts", "n_ranks", "dim"), [(4, 2, 0), (3, 2, 0), (6, 4, 1)])
def test_experts_that_are_sharded_further(n_experts, n_ranks, dim):
    """Six experts on four ranks are parts of given sizes along dim 0: the data's ranks split another dim."""
    given, x = seeded(lambda: Mixture(n_experts)), X.repeat(2, 1)
    dense = copy.deepcopy(given)
    dense(x).square().mean().backward()

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, n_ranks), mesh_dim_names=("dp", "ep"))
        model = parallelize_module(copy.deepcopy(given), grid["ep"], {"experts": ExpertParallel()})
        fully_shard(model.experts, mesh=grid["dp"])
        model.experts.set_gradient_divide_factor(2 * n_ranks)  # tokens are of all ranks, and losses means of them
        fully_shard(model, mesh=grid["dp"])
        model(x.chunk(2 * n_ranks)[rank]).square().mean().backward()
        assert model.experts.weight.placements[0].dim == dim
        torch.testing.assert_close(full(model.experts.weight.grad), dense.experts.weight.grad, rtol=1e-4, atol=1e-5)

    run_ranks(2 * n_ranks, body)


@pytest.mark.parametrize(("shape", "dim"), [((6, 1, 8), 2), ((6, 2, 8), 1), ((6, 1, 1), 1), ((6,), 0)])
def test_the_split_of_experts_that_are_divided_into_given_sizes(shape, dim):
    """Dim 0 has no default: the other dim that gives the most ranks a part is split."""

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        placement = Shard(0, sizes=[4, 2])
        weight = sw.distribute_tensor(torch.ones(shape), grid["ep"], [placement], src_data_rank=None)
        assert sw._C.default_split(weight, grid["dp"]) == Shard(dim)
        assert sw._C.default_split(torch.ones(1, 8), grid["dp"]) == Shard(0)

    run_ranks(4, body)
