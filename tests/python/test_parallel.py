"""Model-parallel layers from Python: nn.Modules whose parameters are DTensors. Their arithmetic is tested in C++."""

import copy
import io

import pytest
import torch
from torch import nn
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.parallel import (
    ColumnParallelLinear,
    ParallelEmbedding,
    RowParallelLinear,
    VocabParallelCrossEntropy,
    mp_copy,
    mp_gather,
    mp_reduce,
    mp_scatter,
)
from shardwise.testing import run_ranks

PROGRAM = "parallel_program.py"


def mlp(**options) -> nn.Sequential:
    return nn.Sequential(
        ParallelEmbedding(11, 7, padding_idx=2, **options),
        ColumnParallelLinear(7, 10, gather_output=False, **options),
        nn.GELU(),
        RowParallelLinear(10, 7, input_is_parallel=True, **options),
    )


def dense_of(layers: nn.Sequential) -> nn.Sequential:
    """torch.nn's layers of the same values."""
    table, up, _, down = layers
    dense = nn.Sequential(nn.Embedding(11, 7, padding_idx=2), nn.Linear(7, 10), nn.GELU(), nn.Linear(10, 7))
    with torch.no_grad():
        dense[0].weight.copy_(table.get_master_weight())
        for ours, theirs in ((up, dense[1]), (down, dense[3])):
            theirs.weight.copy_(ours.get_master_weight())
            theirs.bias.copy_(ours.get_master_bias())
    return dense


@pytest.mark.parametrize("placement", [None, Replicate(), Shard(0)], ids=str)
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_m6_the_mlp_trains_as_nn_sequential_does(n_ranks, placement):
    ids = torch.tensor([[1, 2, 10, 4, 2], [0, 0, 5, 6, 9]])

    def body(rank):
        torch.manual_seed(0)
        layers = mlp()
        dense = dense_of(layers)
        given = ids if placement is None else sw.distribute_tensor(ids, layers[0].mesh, [placement])
        for model, x in ((layers, given), (dense, ids)):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                y = model(x)
                y.square().sum().backward()
                optimizer.step()
        assert isinstance(layers(given), sw.DTensor) == (placement is not None)
        for ours, theirs in zip(layers.parameters(), dense.parameters()):
            torch.testing.assert_close(ours.full_tensor(), theirs.detach())

    run_ranks(n_ranks, body)


def test_m2_a_table_sharded_by_rows_that_gathers_nothing_gives_terms_to_be_reduced():
    def body(rank):
        table = ParallelEmbedding(10, 3, dim=0, gather_output=False)
        ids = torch.tensor([1, 9, 3])
        torch.testing.assert_close(sw.parallel.mp_reduce(table(ids)), table.weight.full_tensor()[ids])

    run_ranks(4, body)


def test_m3_one_all_reduce_each_way():
    def body(rank):
        up = ColumnParallelLinear(8, 32, gather_output=False)
        down = RowParallelLinear(32, 8, input_is_parallel=True)
        x = torch.ones(4, 8, requires_grad=True)
        with sw.CommDebugMode() as forward:
            y = down(torch.relu(up(x)))
        with sw.CommDebugMode() as backward:
            y.sum().backward()
        return forward.get_comm_counts(), backward.get_comm_counts()

    assert run_ranks(4, body) == [({"all_reduce": 1}, {"all_reduce": 1})] * 4


INITS = ["xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal", "uniform", "zeros", "ones"]


@pytest.mark.parametrize("init_type", [*INITS, nn.init.trunc_normal_, lambda w: nn.init.normal_(w, std=0.02)])
def test_m4_weights_are_one_master_bit_for_bit_on_any_number_of_ranks(init_type):
    def body(rank):
        torch.manual_seed(5)
        layers = [
            ColumnParallelLinear(5, 9, init_type=init_type),
            ColumnParallelLinear(5, 9, init_type=init_type, stride=3),
            RowParallelLinear(9, 5, init_type=init_type),
            ParallelEmbedding(9, 5, init_type=init_type),
            ParallelEmbedding(9, 5, init_type=init_type, dim=0),
        ]
        return [layer.get_master_weight() for layer in layers]

    first = run_ranks(1, body)[0]
    for n_ranks in (2, 3, 4):
        for weights in run_ranks(n_ranks, body):
            assert all(map(torch.equal, weights, first))


def test_m4_ranks_have_parts():
    def body(rank):
        layer = ColumnParallelLinear(64, 100, bias=False, stride=2)
        pieces = layer.weight.to_local()
        return sum(piece.numel() for piece in pieces.local_shards())

    assert sum(run_ranks(4, body)) == 6400


def test_masters_are_given_and_taken_whole():
    def body(rank):
        w, b = torch.arange(12.0).view(4, 3), torch.arange(4.0)
        for stride in (1, 2):
            up = ColumnParallelLinear(3, 4, stride=stride, master_weight=w, master_bias=b)
            assert torch.equal(up.get_master_weight(), w) and torch.equal(up.get_master_bias(), b)
            torch.testing.assert_close(up(torch.ones(2, 3)), torch.ones(2, 3) @ w.T + b)
        down = RowParallelLinear(3, 4, bias=False)
        down.set_master_weight(sw.distribute_tensor(w, down.mesh, [Shard(0)]))
        assert torch.equal(down.get_master_weight(), w) and down.get_master_bias() is None
        with pytest.raises(ValueError, match="no bias to set"):
            down.set_master_bias(b)
        with pytest.raises(ValueError, match=r"master is of shape \[3\], the parameter of \[4, 3\]"):
            down.set_master_weight(torch.ones(3))
        table = ParallelEmbedding(4, 3, master_weight=w)
        assert torch.equal(table(torch.tensor([3, 1])), w[[3, 1]])

    run_ranks(3, body)


def test_meta_weights_are_skipped_and_materialise_as_parts():
    def body(rank):
        def draw(tensor):
            raise AssertionError("drawn")

        with torch.device("meta"):
            layers = mlp(init_type=draw)
        assert all(parameter.is_meta for parameter in layers.parameters())
        assert layers[1].weight.shape == (10, 7)
        layers.to_empty(device="cpu")
        for layer in (layers[0], layers[1], layers[3]):
            layer.init_type = "normal"
            layer.reset_parameters()
        assert layers[1].weight.placements == (Shard(0),) and layers[1].weight.requires_grad

    def fresh(rank):
        torch.manual_seed(1)
        return [parameter.full_tensor() for parameter in mlp().parameters()]

    def materialised(rank):
        torch.manual_seed(1)
        layers = mlp(device="meta").to_empty(device="cpu")
        for layer in (layers[0], layers[1], layers[3]):
            layer.reset_parameters()
        return [parameter.full_tensor() for parameter in layers.parameters()]

    run_ranks(3, body)
    assert all(map(torch.equal, run_ranks(3, fresh)[0], run_ranks(2, materialised)[0]))


def test_modules_are_ordinary_ones():
    def body(rank):
        layers = mlp()
        names = ["0.weight", "1.weight", "1.bias", "3.weight", "3.bias"]
        assert list(layers.state_dict()) == names
        assert all(type(value) is sw.DTensor for value in layers.state_dict().values())
        assert all(isinstance(p, nn.Parameter) and isinstance(p, sw.DTensor) for p in layers.parameters())
        other = copy.deepcopy(layers)
        other.load_state_dict(mlp().state_dict())
        file = io.BytesIO()
        torch.save(layers.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))
        for ours, theirs in zip(layers.parameters(), other.parameters()):
            assert torch.equal(ours.full_tensor(), theirs.full_tensor())
        assert layers.double()[1].weight.dtype == torch.float64
        assert layers(torch.tensor([1])).dtype == torch.float64
        assert repr(layers[1]) == "ColumnParallelLinear(in_features=7, out_features=10, bias=True)"

    run_ranks(2, body)


def test_the_mesh_is_given_named_active_or_the_world():
    def body(rank):
        grid = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert ColumnParallelLinear(3, 5, mesh=grid, mesh_dim="tp").weight.placements == (Replicate(), Shard(0))
        assert RowParallelLinear(3, 5, mesh=grid["tp"], stride=3).weight.device_mesh.shape == (2,)
        assert ColumnParallelLinear(3, 5).weight.device_mesh.shape == (4,)
        with grid["dp"]:
            assert ParallelEmbedding(3, 5).weight.device_mesh == grid["dp"]
            assert mp_gather(torch.ones(2), mesh_dim=-1).shape == (4,)
        with pytest.raises(KeyError, match="no mesh dim is called"):
            ColumnParallelLinear(3, 5, mesh=grid, mesh_dim="pp")
        with pytest.raises(ValueError, match="device 'cuda' is not the mesh's"):
            ColumnParallelLinear(3, 5, mesh=grid, device="cuda")

    run_ranks(4, body)


def test_m1_the_moves_have_each_others_backward():
    def body(rank):
        x = torch.arange(7.0, requires_grad=True)
        y = mp_gather(mp_scatter(mp_copy(x)) * (rank + 1))
        y.sum().backward()
        expected = torch.tensor(
            [1.0, 1, 1, 2, 2, 2, 3]
        )  # copies' gradients are parts here: mp_copy adds them up 3 times
        assert torch.equal(x.grad, 3 * expected)
        assert torch.equal(mp_reduce(torch.full((2,), rank + 1.0), reduce_op="max"), torch.full((2,), 3.0))
        with pytest.raises(ValueError, match="sum"):
            mp_reduce(x, reduce_op="mean of all")

    run_ranks(3, body)


def test_autocast_computes_in_half():
    def body(rank):
        layers = mlp()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layers(torch.tensor([[1, 2, 3]]))
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert layers[1].weight.grad.dtype == torch.float32

    run_ranks(2, body)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_vocab_parallel_cross_entropy_of_images(reduction):
    torch.manual_seed(0)
    logits, target = torch.randn(2, 7, 3), torch.randint(7, (2, 3))
    expected = nn.functional.cross_entropy(logits, target, reduction=reduction, label_smoothing=0.1)

    def body(rank):
        part = logits.chunk(3, dim=1)[rank]
        loss = VocabParallelCrossEntropy(reduction=reduction, label_smoothing=0.1)
        torch.testing.assert_close(loss(part, target), expected)
        mesh = sw.init_device_mesh("cpu", (3,))
        ours = loss(sw.distribute_tensor(logits, mesh, [Shard(1)]), sw.distribute_tensor(target, mesh))
        torch.testing.assert_close(ours.full_tensor(), expected)
        with pytest.raises(ValueError, match='"average" is no reduction'):
            VocabParallelCrossEntropy(reduction="average")(part, target)

    run_ranks(3, body)


def test_m4_no_process_materialises_the_master(tmp_path):
    expect_all_well(PROGRAM, 4, "draw", tmp_path)


def test_state_dicts_are_saved_by_four_processes_and_loaded_by_three_and_one(tmp_path):
    expect_all_well(PROGRAM, 4, "save", tmp_path)
    expect_all_well(PROGRAM, 3, "load", tmp_path)
    expect_all_well(PROGRAM, 1, "load", tmp_path)
