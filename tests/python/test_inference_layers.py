"""nn.MultiheadAttention and nn.TransformerEncoderLayer at inference, where torch calls operators that stand for whole layers."""

import contextlib
import copy

import pytest
import torch
from test_attention import on_ranks, shard_heads
from torch import nn

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

LENGTH, WIDTH, HEADS = 6, 16, 4
RAGGED = Shard(0, sizes=[1, 0, 3, 1])
PAIRS = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PADDING = torch.arange(LENGTH).expand(5, LENGTH) >= torch.tensor([6, 4, 1, 5, 6])[:, None]
BY_HEADS = torch.rand(5 * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2)) > 0.7
BY_HEADS[..., 0] = False  # a key that everybody sees

MASKS = {
    "no mask": {},
    "pairs": {"attn_mask": PAIRS},
    "keys": {"key_padding_mask": PADDING},
    "pairs and keys": {"attn_mask": PAIRS, "key_padding_mask": PADDING},
    "heads": {"attn_mask": BY_HEADS},
}
WEIGHTS = {
    "no weights": {"need_weights": False},
    "mean weights": {"need_weights": True},
    "weights": {"need_weights": True, "average_attn_weights": False},
}
LAYERS = {
    "relu": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True),
    "gelu": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 32, activation="gelu", batch_first=True),
    "norm first": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 32, norm_first=True, batch_first=True),
}
LAYOUTS = {
    "replicas": (None, Replicate()),
    "batches": (None, Shard(0)),
    "ragged batches": (None, RAGGED),
    "positions": (None, Shard(1)),
    "heads": (shard_heads, Replicate()),
    "heads, features": (shard_heads, Shard(2)),
    "heads, batches": (shard_heads, Shard(0)),
}


def source(n_batches=5):
    return torch.randn(n_batches, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def made(make):
    torch.manual_seed(0)
    layer = make().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.5, 0.5)
    return layer


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def placed(layer, mesh, partition):
    """The layer with distributed parameters and without hooks, with which torch would not take an encoder layer's fast path."""
    layer = copy.deepcopy(layer)
    for name, module in layer.named_modules():
        (partition or replicate)(name, module, mesh)
    return layer


def replicate(_, module, mesh):
    for key, parameter in list(module.named_parameters(recurse=False)):
        whole = sw.distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
        setattr(module, key, nn.Parameter(whole))


def check_layer(layer, call, layout, mode=torch.no_grad, n_batches=5):
    """`call(layer, x)` on ranks gives what it gives dense; returns the bytes that rank 0 received."""
    partition, placement = LAYOUTS[layout]
    with mode():
        expected = as_tuple(call(layer, source(n_batches)))

    def check(mesh):
        is_attention = isinstance(layer, nn.MultiheadAttention)
        ours = (sw.distribute_module if is_attention else placed)(copy.deepcopy(layer), mesh, partition)
        x = sw.distribute_tensor(source(n_batches), mesh, [placement], src_data_rank=None)
        results = []
        with mode():
            operators = sw.explain(lambda: results.extend(as_tuple(call(ours, x))))
        for result, wanted in zip(results, expected, strict=True):
            assert (result is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(result.full_tensor(), wanted)
                assert result.stride() == wanted.stride()
        return sum(operator.bytes_received for operator in operators)

    return on_ranks(check)[0]


@contextlib.contextmanager
def slow_paths():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_attention_is_dense(weights, mask, layout):
    layer = made(lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    n_bytes = check_layer(layer, lambda layer, x: layer(x, x, x, **MASKS[mask], **WEIGHTS[weights]), layout)
    if "batches" in layout and "heads" not in layout:
        assert n_bytes == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", LAYERS)
def test_encoder_layers_are_dense(name, mask, layout):
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    masks = {names[key]: value for key, value in MASKS[mask].items()}
    n_bytes = check_layer(made(LAYERS[name]), lambda layer, x: layer(x, **masks), layout, torch.inference_mode)
    if "batches" in layout and "heads" not in layout:
        assert n_bytes == 0


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "ragged batches"])
@pytest.mark.parametrize("name", ["attention", *LAYERS])
def test_messages_are_not_more_than_the_slow_paths(name, layout):
    if name == "attention":
        layer = made(lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))

        def call(layer, x):
            return layer(x, x, x, need_weights=False)[0]
    else:
        layer = made(LAYERS[name])

        def call(layer, x):
            return layer(x)

    n_bytes = check_layer(layer, call, layout, n_batches=4)
    with slow_paths():
        assert n_bytes <= check_layer(layer, call, layout, n_batches=4)


@pytest.mark.filterwarnings("ignore")
def test_the_operators_of_torchs_fast_paths_are_dense():
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(4, 6, 16)
    names = (
        *("self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight", "self_attn.out_proj.bias"),
        *("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"),
        *("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"),
    )
    weights = [dict(layer.named_parameters())[name].detach() for name in names]

    def encode(x, weights):
        return torch._transformer_encoder_layer_fwd(
            x, 16, 4, *weights[:4], False, False, 1e-5, *weights[4:8], *weights[8:], None, None
        )

    def attend(x, weights):
        return torch._native_multi_head_attention(x, x, x, 16, 4, *weights[:4], None, False, True, None)[0]

    def check(mesh):
        for placement in (Replicate(), Shard(0)):
            given = sw.distribute_tensor(x, mesh, [placement], src_data_rank=None)
            for of_weights in (Replicate(), Shard(0)):
                placed = [sw.distribute_tensor(each, mesh, [of_weights], src_data_rank=None) for each in weights]
                for function in (encode, attend):
                    torch.testing.assert_close(function(given, placed).full_tensor(), function(x, weights))

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0, sizes=[1, 4]), Shard(0, sizes=[0, 5]), Replicate()], ids=str)
@pytest.mark.parametrize("mask", ["no mask", "pairs", "keys"])
def test_ranks_outside_the_mesh_choose_the_same_way(mask, placement):
    encoder = made(LAYERS["relu"])
    attention = made(lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}

    def body(rank):
        mesh = sw.DeviceMesh("cpu", [2, 0])
        x = sw.distribute_tensor(source(), mesh, [placement], src_data_rank=None)
        ours, results = [placed(layer, mesh, None) for layer in (encoder, attention)], []
        masks = {
            key: sw.distribute_tensor(value, mesh, [Replicate()], src_data_rank=None)
            for key, value in MASKS[mask].items()
        }

        def call():
            results.append(ours[0](x, **{names[key]: value for key, value in masks.items()}))
            results.extend(ours[1](x, x, x, average_attn_weights=False, **masks))

        with torch.inference_mode():
            operators = [operator.op for operator in sw.explain(call)]
        layouts = [(each.placements, each.shape, each.stride(), each.dtype) for each in results]
        return operators, layouts

    found = run_ranks(3, body)
    assert found[0] == found[1] == found[2]
