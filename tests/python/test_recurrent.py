"""nn.RNN, nn.GRU and nn.LSTM where at most batches are sharded: each rank runs torch's own layer on its batches."""

import copy

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

LENGTH, BATCH, FEATURES, HIDDEN = 4, 5, 3, 6
LAYERS = {
    "tanh": ("aten::rnn_tanh", lambda: nn.RNN(FEATURES, HIDDEN, bidirectional=True)),
    "relu": ("aten::rnn_relu", lambda: nn.RNN(FEATURES, HIDDEN, num_layers=2, nonlinearity="relu", batch_first=True)),
    "GRU": ("aten::gru", lambda: nn.GRU(FEATURES, HIDDEN, batch_first=True)),
    "deep GRU": ("aten::gru", lambda: nn.GRU(FEATURES, HIDDEN, num_layers=3, bidirectional=True, bias=False)),
    "LSTM": ("aten::lstm", lambda: nn.LSTM(FEATURES, HIDDEN)),
    "deep LSTM": (
        "aten::lstm",
        lambda: nn.LSTM(FEATURES, HIDDEN, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5).eval(),
    ),
    "projections": ("aten::lstm", lambda: nn.LSTM(FEATURES, HIDDEN, num_layers=2, proj_size=2, batch_first=True)),
}
# mesh, and the placements of tensors whose batches are dim `dim`
LAYOUTS = {
    "one rank": ((1,), lambda dim: [Shard(dim)]),
    "whole": ((3,), lambda dim: [Replicate()]),
    "uneven": ((3,), lambda dim: [Shard(dim)]),
    "empty": ((3,), lambda dim: [Shard(dim, sizes=[0, 4, 1])]),
    "replicas": ((2, 2), lambda dim: [Replicate(), Shard(dim)]),
    "nested": ((2, 2), lambda dim: [Shard(dim), Shard(dim)]),
}


def made(make):
    """A layer in float64, an input, and initial states: one, or an LSTM's two."""
    torch.manual_seed(0)
    layer = make().double()
    shape = (BATCH, LENGTH, FEATURES) if layer.batch_first else (LENGTH, BATCH, FEATURES)
    n = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or HIDDEN, HIDDEN][: 2 if isinstance(layer, nn.LSTM) else 1]
    return layer, torch.randn(shape).double(), [torch.randn(n, BATCH, width).double() for width in widths]


def called(layer, x, states):
    """The output and the last states."""
    out, last = layer(x, states[0] if len(states) == 1 else tuple(states))
    return [out, *(last if isinstance(last, tuple) else (last,))]


def backward(results):
    sum(result.sin().sum() for result in results).backward()


def distributed(layer, mesh):
    """The layer with replicated parameters, and without hooks."""
    layer = copy.deepcopy(layer)
    for name, parameter in list(layer.named_parameters()):
        whole = sw.distribute_tensor(parameter.detach(), mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
        setattr(layer, name, nn.Parameter(whole))
    return layer


@pytest.mark.parametrize("has_whole_states", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_each_rank_runs_torchs_layer_on_its_batches(name, layout, has_whole_states):
    op, make = LAYERS[name]
    shape, placements_of = LAYOUTS[layout]
    layer, x, states = made(make)
    batch_dim = 0 if layer.batch_first else 1
    leaves = [each.clone().requires_grad_() for each in (x, *states)]
    expected = called(layer, leaves[0], leaves[1:])
    backward(expected)
    wanted = [leaf.grad for leaf in (*leaves, *layer.parameters())]

    def check(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        ours = distributed(layer, mesh)
        of_input, of_states = placements_of(batch_dim), placements_of(1)
        given = [Replicate()] * mesh.ndim if has_whole_states else of_states
        inputs = [sw.distribute_tensor(x, mesh, of_input, src_data_rank=None).requires_grad_()]
        inputs += [sw.distribute_tensor(s, mesh, given, src_data_rank=None).requires_grad_() for s in states]
        results = []
        operators = sw.explain(lambda: results.extend(called(ours, inputs[0], inputs[1:])))
        assert [operator.op for operator in operators] == [op]
        assert operators[0].bytes_received == 0
        for i, (result, dense) in enumerate(zip(results, expected, strict=True)):
            torch.testing.assert_close(result.full_tensor(), dense.detach())
            assert result.stride() == dense.stride()
            assert list(result.placements) == (of_states if i else of_input)
        backward(results)
        for leaf, grad in zip((*inputs, *ours.parameters()), wanted, strict=True):
            torch.testing.assert_close(leaf.grad.full_tensor(), grad)
            assert leaf.grad.placements == leaf.placements
        with torch.inference_mode():
            again = called(ours, inputs[0].detach(), [each.detach() for each in inputs[1:]])
        torch.testing.assert_close(again[0].full_tensor(), expected[0].detach())

    run_ranks(mesh_size(shape), check)


def mesh_size(shape):
    return torch.Size(shape).numel()


def test_gradients_of_weights_are_partial_where_batches_are_sharded():
    layer, x, states = made(LAYERS["LSTM"][1])

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        ours = distributed(layer, mesh)
        weights = {name: 2 * weight for name, weight in ours.named_parameters()}
        placements = [Replicate(), Shard(1)]
        x_, *states_ = (sw.distribute_tensor(each, mesh, placements, src_data_rank=None) for each in (x, *states))
        out, _ = torch.func.functional_call(ours, weights, (x_, tuple(states_)))
        for grad in torch.autograd.grad(out.sum(), list(weights.values())):
            assert list(grad.placements) == [Replicate(), Partial()]

    run_ranks(4, check)


@pytest.mark.filterwarnings("ignore:.*has no sharding rule")
@pytest.mark.parametrize("case", ["features", "hidden", "dropout", "weights", "terms", "states alone"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_other_calls_run_as_their_operators(kind, case):
    dropout = 0.5 if case == "dropout" else 0
    layer, x, states = made(lambda: kind(FEATURES, HIDDEN, num_layers=2, dropout=dropout))
    expected = called(layer, x, states)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ours = distributed(layer, mesh)
        of_input = {"features": Shard(2), "terms": Partial(), "states alone": Replicate()}.get(case, Shard(1))
        of_states = {"hidden": Shard(2), "terms": Replicate()}.get(case, Shard(1))
        if case == "weights":
            sharded = sw.distribute_tensor(layer.weight_hh_l0.detach(), mesh, [Shard(0)], src_data_rank=None)
            ours.weight_hh_l0 = nn.Parameter(sharded)
        given = sw.distribute_tensor(x, mesh, [of_input], src_data_rank=None)
        results = []
        placed = [sw.distribute_tensor(each, mesh, [of_states], src_data_rank=None) for each in states]
        operators = sw.explain(lambda: results.extend(called(ours, given, placed)))
        assert "aten::linear" in [operator.op for operator in operators] or kind is nn.LSTM
        if case != "dropout":
            for result, dense in zip(results, expected, strict=True):
                torch.testing.assert_close(result.full_tensor(), dense.detach())

    run_ranks(2, check)


def test_a_state_of_another_batch_is_torchs_error_on_all_ranks():
    layer, x, states = made(LAYERS["GRU"][1])
    errors = [None] * 2

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        ours = distributed(layer, mesh)
        given = sw.distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
        state = sw.distribute_tensor(torch.cat([states[0], states[0][:, :1]], 1), mesh, [Shard(1)], src_data_rank=None)
        weights = list(ours.parameters())
        with pytest.raises(RuntimeError) as caught:
            torch.gru(given, state, weights, True, 1, 0.0, False, False, True)
        errors[rank] = str(caught.value)
        assert torch.equal(given.full_tensor(), x)

    run_ranks(2, check)
    assert errors[0] == errors[1]


def test_a_rank_outside_the_mesh_and_a_second_derivative():
    layer, x, states = made(LAYERS["GRU"][1])

    def penalty(layer, x, states):
        (grad,) = torch.autograd.grad(called(layer, x, states)[0].sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), x)
        return second

    wanted = penalty(layer, x.requires_grad_(), states)

    def check(rank):
        mesh = sw.DeviceMesh("cpu", [2, 0])
        ours = distributed(layer, mesh)
        given, state = (sw.distribute_tensor(each.detach(), mesh, [p], src_data_rank=None)
                        for each, p in ((x, Shard(0)), (states[0], Shard(1))))  # fmt: skip
        result = called(ours, given, [state])[0]
        assert list(result.placements) == [Shard(0)]
        assert result.stride() == (HIDDEN, BATCH * HIDDEN, 1)
        second = penalty(ours, given.requires_grad_(), [state])
        if mesh.get_coordinate() is not None:
            torch.testing.assert_close(second.full_tensor(), wanted)

    run_ranks(3, check)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_all_ranks_get_the_same_layout_and_dtype(kind):
    """A rank outside the mesh, and under autocast one without batches: a later move needs equal ones."""
    torch.manual_seed(0)
    layer, x = kind(FEATURES, HIDDEN), torch.randn(LENGTH, 1, FEATURES)
    found = [None] * 3

    def check(rank):
        pair, whole = sw.DeviceMesh("cpu", [0, 1]), sw.init_device_mesh("cpu", (3,))
        results = []
        for mesh, autocasts in ((pair, False), (whole, False), (whole, True)):
            ours = distributed(layer, mesh)
            given = sw.distribute_tensor(x, mesh, [Shard(1)], src_data_rank=None)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts), sw.implicit_replication():
                results.append(ours(given)[0].detach())
        found[rank] = [(each.placements, each.dtype) for each in results]
        moved = results[0].redistribute(whole, [Replicate()]).to_local()
        torch.testing.assert_close(moved, layer(x)[0].detach())
        torch.testing.assert_close(results[2].full_tensor().float(), layer(x)[0].detach(), rtol=0.05, atol=0.05)

    run_ranks(3, check)
    assert found[0] == found[1] == found[2]
