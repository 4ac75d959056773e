"""fully_shard: the same losses, gradients and parameters as the whole model on the whole batch."""

import copy

import pytest
import torch
from fsdp_models import (
    IDS,
    Block,
    First,
    Model,
    Tied,
    expect_same,
    full,
    loss_of,
    rows_of,
    seeded,
    shard_blocks,
    trained_whole,
)
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks


def mean_over(mesh, value):
    """The mean of the ranks' numbers."""
    return sw.DTensor.from_local(torch.tensor([value]), mesh, [Shard(0)] * mesh.ndim).mean().item()


def train(model, mesh, index, n_ranks, n_steps=3):
    """Steps on this rank's rows; the mean losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step, ids in enumerate(IDS[:n_steps]):
        loss = loss_of(model, rows_of(ids, index, n_ranks))
        loss.backward()
        optimizer.step()
        losses.append(mean_over(mesh, loss.item()))
        if step < n_steps - 1:
            optimizer.zero_grad()
    return losses


def expect_trains_as_whole(make, shard, n_ranks=4, **sizes):
    given = seeded(make, **sizes)
    dense, expected = trained_whole(given)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,), mesh_dim_names=("dp",))
        model = shard(copy.deepcopy(given), mesh)
        losses = train(model, mesh, mesh.get_rank(), n_ranks)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        expect_same(model, dense)

    run_ranks(n_ranks, body)


@pytest.mark.parametrize(
    "sizes", [{"width": 8, "hidden": 16}, {}, {"width": 3, "hidden": 2}], ids=["even", "uneven", "tiny"]
)
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_trains_as_the_whole_model(n_ranks, sizes):
    expect_trains_as_whole(Model, shard_blocks, n_ranks, **sizes)


@pytest.mark.parametrize("reshard", [True, False, None])
def test_resharding_changes_nothing(reshard):
    expect_trains_as_whole(Model, lambda model, mesh: shard_blocks(model, mesh, reshard_after_forward=reshard))


def test_one_group_for_all():
    expect_trains_as_whole(Model, lambda model, mesh: fully_shard(model, mesh=mesh))


def test_tied_parameters_stay_one():
    def shard(model, mesh):
        model = shard_blocks(model, mesh)
        assert model.head.weight is model.words.weight
        return model

    expect_trains_as_whole(Tied, shard)


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("reshard", [True, False])
def test_checkpointed_activations(kind, reshard):
    expect_trains_as_whole(
        Model, lambda model, mesh: shard_blocks(model, mesh, reshard_after_forward=reshard), checkpointed=kind
    )


@pytest.mark.parametrize("inner", [True, False], ids=["checkpoint within", "checkpoint around"])
def test_checkpoints_within_units(inner):
    class Checkpointed(Block):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    def make():
        model = Model()
        for block in model.blocks:
            block.__class__ = Checkpointed if inner else Block
        return model

    expect_trains_as_whole(make, shard_blocks)


def test_parameters_are_shards_of_any_size():
    given = seeded(Model)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        up = model.blocks[0].up
        assert isinstance(up, nn.Linear) and isinstance(model, FSDPModule) and type(model).__name__ == "FSDPModel"
        assert up.weight.placements == up.bias.placements == (Shard(0),)
        assert up.weight.to_local().shape[0] == (3, 3, 3, 1)[mesh.get_rank()]
        assert model.blocks[0].scale.placements == (Replicate(),)
        assert type(model.blocks).__name__ == "ModuleList" and len(model.blocks[:2]) == 2
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(full(parameter.detach()), given.get_parameter(name).detach(), rtol=0, atol=0)

    run_ranks(4, body)


def test_bytes_are_at_the_bound():
    given = seeded(Model, width=8, hidden=16)
    n_bytes = sum(each.numel() * each.element_size() for each in given.parameters() if each.dim() > 0)
    inner = sum(each.numel() * each.element_size() for each in given.blocks.parameters() if each.dim() > 0)
    n_scalars = 3

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        ids = rows_of(IDS[0], mesh.get_rank(), 4)
        with sw.CommDebugMode() as forward:
            loss = loss_of(model, ids)
        with sw.CommDebugMode() as backward:
            loss.backward()
        assert dict(forward.get_comm_counts()) == {"all_gather": 4}  # one per group
        assert dict(backward.get_comm_counts()) == {"all_gather": 1, "reduce_scatter": 4}  # the outermost stays
        own = [
            sum(each.to_local().numel() * 4 for each in of.parameters() if each.dim() > 0)
            for of in (model, model.blocks)
        ]
        assert forward.bytes_received() == n_bytes - own[0]
        n_flags = sum(each.requires_grad for each in model.parameters())  # a byte: there is a gradient
        assert backward.bytes_received() == inner - own[1] + 3 * own[0] + 3 * (4 * n_scalars + n_flags)

    run_ranks(4, body)


def test_several_backwards_of_one_forward():
    given = seeded(Model)
    dense = copy.deepcopy(given)
    (2 * loss_of(dense, IDS[0])).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        loss = loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4))
        loss.backward(retain_graph=True)
        loss.backward()
        expect_same(model, dense)

    run_ranks(4, body)


def test_half_precision():
    given = seeded(Model, width=16, hidden=32)
    dense, expected = trained_whole(given, 2)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = shard_blocks(copy.deepcopy(given), mesh, mp_policy=policy)
        seen = []
        model.blocks[1].up.register_forward_hook(
            lambda module, args, output: seen.append((args[0].dtype, module.weight.dtype, output.dtype))
        )
        losses = train(model, mesh, mesh.get_rank(), 4, 2)
        assert set(seen) == {(torch.bfloat16,) * 3}
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-2, atol=2e-2)
        for (_, parameter), (_, whole) in zip(model.named_parameters(), dense.named_parameters(), strict=True):
            assert parameter.dtype == parameter.grad.dtype == torch.float32
            torch.testing.assert_close(full(parameter.grad), whole.grad, rtol=0.2, atol=2e-2)
        output = fully_shard(
            nn.Linear(4, 4), mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32)
        )
        assert output(torch.ones(2, 4)).dtype == torch.float32
        with sw.CommDebugMode() as comm:  # halves travel, and are added in float32
            model.zero_grad()
            loss_of(model, IDS[0][:2]).backward()
        whole = sum(each.numel() for each in given.parameters())
        assert comm.bytes_received() < 2 * whole * (0.75 + 0.75 + 0.85)

    run_ranks(4, body)


def test_replicas_of_shards():
    given = seeded(Model)
    dense, expected = trained_whole(given)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = shard_blocks(copy.deepcopy(given), mesh)
        assert model.head.weight.placements == (Replicate(), Shard(0))
        losses = train(model, mesh, mesh.get_rank(), 4)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        expect_same(model, dense)

    run_ranks(4, body)


PLAN = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}


@pytest.mark.parametrize("names", [("dp", "tp"), ("tp", "dp")])
@pytest.mark.parametrize("hidden", [12, 10, 3])
def test_beside_tensor_parallelism(names, hidden):
    given = seeded(Model, hidden=hidden)
    dense, expected = trained_whole(given)

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        model = parallelize_module(copy.deepcopy(given), grid["tp"], PLAN)
        model = shard_blocks(model, grid["dp"])
        up = model.blocks[0].up.weight
        assert up.device_mesh == grid and up.numel() == given.blocks[0].up.weight.numel()
        assert up.to_local().shape[0] <= -(-hidden // 4) + 1
        losses = train(model, grid["dp"], grid.get_local_rank("dp"), 2)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        expect_same(model, dense)

    run_ranks(4, body)


def test_replicas_of_shards_beside_tensor_parallelism():
    given = seeded(Model)
    dense, expected = trained_whole(given, 2)

    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
        model = parallelize_module(copy.deepcopy(given), grid["tp"], PLAN)
        data = grid["replicate", "shard"]
        model = shard_blocks(model, data)
        index = 2 * grid.get_local_rank("replicate") + grid.get_local_rank("shard")
        losses = train(model, data, index, 4, 2)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        expect_same(model, dense)

    run_ranks(8, body)


class Twice(nn.Module):
    """One block is called twice, one on some steps only, and the output is nested."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(6, 10), Block(6, 10)])

    def forward(self, x, uses_second):
        x = self.blocks[0](self.blocks[0](x))
        if uses_second:
            x = self.blocks[1](x)
        return {"out": (x, [2 * x]), "n": 3}


def test_calls_of_other_numbers():
    given = seeded(Twice)
    x = torch.rand(4, 8, 6, generator=torch.Generator().manual_seed(2))

    def run(model, part):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            out = model(part(x[step]), step % 2 == 1)
            (out["out"][0].square().mean() + out["out"][1][0].mean()).backward()
            if step < 3:
                optimizer.step()

    dense = copy.deepcopy(given)
    run(dense, lambda rows: rows)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        run(model, lambda rows: rows_of(rows, mesh.get_rank(), 4))
        expect_same(model, dense)
        assert all(each.grad is not None for each in model.parameters())
        model.zero_grad()
        model(x[0][:2], False)["out"][0].sum().backward()
        assert all(each.grad is None for each in model.blocks[1].parameters())

    run_ranks(4, body)


def test_without_gradients():
    given = seeded(Model)
    expected = given(IDS[0]).detach()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        with torch.inference_mode():
            torch.testing.assert_close(model(IDS[0]), expected)
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(IDS[0]), expected)
        model.train()
        loss_of(model, IDS[0]).backward()
        dense = copy.deepcopy(given)
        loss_of(dense, IDS[0]).backward()
        expect_same(model, dense)

    run_ranks(4, body)


def test_frozen_parameters():
    given = seeded(Model)
    for name, parameter in given.named_parameters():
        parameter.requires_grad_("norm" in name or "blocks.1.up" in name)
    dense = copy.deepcopy(given)
    loss_of(dense, IDS[0]).backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(given), mesh)
        loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4)).backward()
        expect_same(model, dense)

    run_ranks(4, body)


def test_values_loaded_and_clipped():
    given, other = seeded(Model), Model()
    dense = copy.deepcopy(other)
    loss_of(dense, IDS[0]).backward()
    norm = nn.utils.clip_grad_norm_(dense.parameters(), 0.1)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for assign in (False, True):
            model = shard_blocks(copy.deepcopy(given), mesh)
            with torch.no_grad():
                model(IDS[0])  # the outermost group stays gathered
            state = model.state_dict()
            assert all(isinstance(each, sw.DTensor) for each in state.values())
            loaded = {
                key: sw.distribute_tensor(value, mesh, state[key].placements)
                for key, value in other.state_dict().items()
            }
            model.load_state_dict(loaded, assign=assign)
            loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4)).backward()
            total = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            torch.testing.assert_close(full(total), norm)
            expect_same(model, dense)

    run_ranks(4, body)


def test_a_step_is_seen_by_what_stayed_gathered():
    given = seeded(Model)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = shard_blocks(copy.deepcopy(given), mesh, reshard_after_forward=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss_of(model, IDS[0]).backward()
        with torch.no_grad():
            before = model(IDS[0])
        optimizer.step()
        with torch.no_grad():
            after = model(IDS[0])
        dense = copy.deepcopy(given)
        loss_of(dense, IDS[0]).backward()
        torch.optim.SGD(dense.parameters(), lr=0.5).step()
        torch.testing.assert_close(before, given(IDS[0]).detach())
        torch.testing.assert_close(after, dense(IDS[0]).detach())
        optimizer.step()
        torch.optim.SGD(dense.parameters(), lr=0.5).step()
        model.unshard()
        torch.testing.assert_close(model.head.weight, dense.head.weight)

    run_ranks(2, body)


def test_meta_parameters_get_values_later():
    given = seeded(Model)
    with torch.device("meta"):
        empty = Model()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = shard_blocks(copy.deepcopy(empty), mesh)
        with pytest.raises(ValueError, match="is on meta and has no values yet"):
            model(IDS[0])
        model.to_empty(device="cpu")
        model.load_state_dict(
            {
                key: sw.distribute_tensor(value, mesh, model.get_parameter(key).placements)
                for key, value in given.state_dict().items()
            }
        )
        torch.testing.assert_close(model(IDS[0]), given(IDS[0]))

    run_ranks(4, body)


def test_an_embedding_is_left_out():
    given = seeded(Model)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        model = copy.deepcopy(given)
        words = model.words.weight
        model = shard_blocks(model, mesh, ignored_params={words})
        assert model.words.weight is words
        loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4)).backward()
        assert words.grad is not None and not isinstance(words.grad, sw.DTensor)

    run_ranks(4, body)


def test_other_methods_gather_too():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x)

        def doubled(self, x):
            return 2 * super().forward(x)

    given = seeded(lambda: Two(6, 5))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = fully_shard(copy.deepcopy(given), mesh=mesh)
        register_fsdp_forward_method(model, "doubled")
        register_fsdp_forward_method(nn.Linear(2, 2), "whatever")
        x = torch.ones(3, 6)
        y = model.doubled(x)
        torch.testing.assert_close(y, given.doubled(x))
        y.sum().backward()
        dense = copy.deepcopy(given)
        dense.doubled(x).sum().backward()
        expect_same(model, dense)
        with pytest.raises(ValueError, match="has no method tripled"):
            register_fsdp_forward_method(model, "tripled")

    run_ranks(4, body)


def test_small_groups_that_follow_each_other_are_gathered_together():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, n, bias=False) for n in (8, 8, 3000, 2000, 5000, 8))

        def forward(self, x):
            return sum(layer(x).square().mean() for layer in self.layers)

    given = seeded(Sum)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = copy.deepcopy(given)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = torch.ones(3, 8)
        n_gathers, n_bytes = [], []
        for _ in range(2):
            model.zero_grad()
            with sw.CommDebugMode() as forward:
                loss = model(x)
            with sw.CommDebugMode() as backward:
                loss.backward()
            n_gathers += [each.get_comm_counts()["all_gather"] for each in (forward, backward)]
            n_bytes += [each.bytes_received() for each in (forward, backward)]
        # 8, 8 and 3000 rows have less than 128 KiB together; 5000 rows have more. The first forward does not know which group comes next.
        assert n_gathers == [6, 4, 4, 4]
        assert n_bytes[:2] == n_bytes[2:]
        dense = copy.deepcopy(given)
        dense(x).backward()
        expect_same(model, dense)

    run_ranks(2, body)


def test_two_modules_in_one_group():
    given = seeded(Model)
    dense, expected = trained_whole(given)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = copy.deepcopy(given)
        fully_shard([model.norm, model.head], mesh=mesh)
        shard_blocks(model, mesh)
        with sw.CommDebugMode() as comm, torch.no_grad():
            loss_of(model, rows_of(IDS[0], mesh.get_rank(), 4))
        assert dict(comm.get_comm_counts()) == {"all_gather": 5}
        losses = train(model, mesh, mesh.get_rank(), 4)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        expect_same(model, dense)

    run_ranks(4, body)


def test_a_group_of_which_one_module_ran_stays_gathered():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = First()
        fully_shard(list(model.ways), mesh=mesh, reshard_after_forward=False)
        fully_shard(model, mesh=mesh)
        loss = model(torch.ones(2, 6)).sum()
        with sw.CommDebugMode() as comm:
            loss.backward()
        assert dict(comm.get_comm_counts()) == {"reduce_scatter": 1}

    run_ranks(2, body)
