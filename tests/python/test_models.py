"""Layers of torch.nn as they are, their parameters distributed: forward and gradients equal dense."""

import copy

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

# name, layer, shape of its input
LAYERS = [
    ("LSTM", lambda: nn.LSTM(6, 5, num_layers=2), (7, 4, 6)),
    ("GRU, both ways", lambda: nn.GRU(6, 5, bidirectional=True), (7, 4, 6)),
    ("RNN", lambda: nn.RNN(6, 5), (7, 4, 6)),
    ("encoder layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (4, 5, 8)),
    ("encoder layer, eval", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (4, 5, 8)),
    ("group norm", lambda: nn.GroupNorm(2, 6), (4, 6, 5)),
    ("batch norm", lambda: nn.BatchNorm1d(6), (4, 6, 5)),
    ("convolution", lambda: nn.Conv2d(3, 5, 3, padding=1), (2, 3, 6, 7)),
]
# name, placement of an input of `shape` on four ranks
LAYOUTS = {
    "replicated": lambda shape: Replicate(),
    "sharded 0": lambda shape: Shard(0),
    "sharded 1": lambda shape: Shard(1),
    "sharded last": lambda shape: Shard(len(shape) - 1),
    "uneven": lambda shape: Shard(0, sizes=[1, 0, shape[0] - 1, 0]),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("make", "shape"), [layer[1:] for layer in LAYERS], ids=[layer[0] for layer in LAYERS])
def test_a_layer_is_dense(make, shape, layout):
    torch.manual_seed(0)
    dense, x = make(), torch.randn(shape)

    def run(layer, given):
        out = layer(given)
        out = out[0] if isinstance(out, tuple) else out
        out.sin().sum().backward()
        return out

    kept = copy.deepcopy(dense)
    expected = run(dense, x)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        ours = sw.distribute_module(copy.deepcopy(kept), mesh)
        out = run(ours, sw.distribute_tensor(x, mesh, [layout(shape)], src_data_rank=None))
        torch.testing.assert_close(out.full_tensor(), expected.detach())
        for parameter, reference in zip(ours.parameters(), dense.parameters()):
            torch.testing.assert_close(parameter.grad.full_tensor(), reference.grad, rtol=1e-4, atol=1e-5)

    run_ranks(4, check)


def test_an_initial_state_that_is_plain_must_be_the_same_on_all_ranks():
    torch.manual_seed(0)
    dense, x, state = nn.GRU(3, 2), torch.ones(4, 1, 3), torch.ones(1, 1, 2)
    expected = dense(x, state)[0]

    def check(rank):
        layer = sw.distribute_module(copy.deepcopy(dense), sw.init_device_mesh("cpu", (2,)))
        given = sw.distribute_tensor(x, sw.init_device_mesh("cpu", (2,)), [Replicate()], src_data_rank=None)
        with pytest.raises(
            ValueError, match=r"next to a DTensor, as hx, and ranks 0 and 1 called GRU with different args\[1\]"
        ):
            layer(given, state + rank)
        torch.testing.assert_close(layer(given, state)[0].full_tensor(), expected.detach())

    run_ranks(2, check)


def test_outside_a_forward_a_plain_initial_state_is_an_error_whatever_its_values():
    """One that is zero on some ranks alone, and the zeros that the layer makes itself."""
    dense = nn.LSTM(3, 2)
    errors = []

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        layer = copy.deepcopy(dense)
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(sw.distribute_tensor(parameter.detach(), mesh)))
        x = sw.ones(4, 1, 3, device_mesh=mesh)
        own = torch.full((1, 1, 2), float(rank))
        for states in ((own, own), None):
            with pytest.raises(ValueError, match=r"as hx, which torch.nn's layers make .* distribute_module\(layer"):
                layer(x, states)
            errors.append(rank)
        torch.testing.assert_close(
            sw.distribute_module(layer, mesh)(x)[0].full_tensor(), dense(torch.ones(4, 1, 3))[0].detach()
        )

    run_ranks(2, check)
    assert sorted(errors) == [0, 0, 1, 1]
