"""Attention of DTensors by torch's fused kernels: memory, exactness, torch's own choices, and the layers that use it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

SHAPE = (2, 4, 24, 8)


def on_ranks(check, n_ranks=4):
    return run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


def parts(dtype=torch.float32, shape=SHAPE):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def laid_out(dense, mesh, placements):
    return [
        sw.distribute_tensor(each, mesh, [placement], src_data_rank=None).requires_grad_()
        for each, placement in zip(dense, placements, strict=True)
    ]


def kept_bytes(leaves, **options):
    """What the graph of one forward holds of this rank's memory, each tensor once."""
    kept = {}

    def pack(tensor):
        local = tensor.to_local() if isinstance(tensor, sw.DTensor) else tensor
        kept[local.data_ptr()] = local.numel() * local.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.scaled_dot_product_attention(*leaves, **options)
    return sum(kept.values())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("n_ranks", "placements"),
    [(1, [Replicate()] * 3), (4, [Replicate()] * 3), (4, [Shard(1)] * 3), (2, [Shard(0)] * 3)],
    ids=["one rank", "replicas", "heads", "batch"],
)
def test_a_graph_keeps_what_torchs_keeps_of_the_piece(n_ranks, placements, is_causal):
    def check(mesh):
        leaves = laid_out(parts(), mesh, placements)
        local = [leaf.detach().to_local().clone().requires_grad_() for leaf in leaves]
        assert kept_bytes(leaves, is_causal=is_causal) == kept_bytes(local, is_causal=is_causal)

    on_ranks(check, n_ranks)


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_of_sharded_queries_is_linear_in_their_number(is_causal):
    def check(mesh):
        leaves = laid_out(parts(), mesh, [Shard(2), Replicate(), Replicate()])
        rows = torch.Size(SHAPE).numel() * 4 // 4
        assert kept_bytes(leaves, is_causal=is_causal) == 2 * rows + 2 * 4 * rows + rows // SHAPE[-1]

    on_ranks(check)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_half_precision_is_as_exact_as_dense(dim):
    shape = (4, 4, 300, 16)
    exact = [each.double().requires_grad_() for each in parts(torch.bfloat16, shape)]
    seed = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()

    def run(leaves, grad):
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    wanted = run(exact, seed.double())

    def errors(results):
        return [(a.double() - b).norm() / b.norm() for a, b in zip(results, wanted, strict=True)]

    dense = errors(run([each.requires_grad_() for each in parts(torch.bfloat16, shape)], seed))

    def check(mesh):
        of_keys = Replicate() if dim == 2 else Shard(dim)
        leaves = laid_out(parts(torch.bfloat16, shape), mesh, [Shard(dim), of_keys, of_keys])
        grad = sw.distribute_tensor(seed, mesh, [Shard(dim)], src_data_rank=None)
        ours = errors([each.full_tensor() for each in run(leaves, grad)])
        for error, reference in zip(ours, dense, strict=True):
            assert error < 1.15 * reference

    on_ranks(check)


def test_the_kernel_is_the_one_that_torch_allows():
    def check(mesh):
        leaves = laid_out(parts(), mesh, [Shard(2), Replicate(), Replicate()])
        assert "FlashAttention" in F.scaled_dot_product_attention(*leaves).grad_fn.name()
        assert torch._fused_sdp_choice(*leaves) == SDPBackend.FLASH_ATTENTION.value
        assert torch._fused_sdp_choice(*leaves, dropout_p=0.1) == SDPBackend.MATH.value

    on_ranks(check)
    with sdpa_kernel(SDPBackend.MATH):

        def check(mesh):
            leaves = laid_out(parts(), mesh, [Shard(2), Replicate(), Replicate()])
            assert "FlashAttention" not in F.scaled_dot_product_attention(*leaves).grad_fn.name()

        on_ranks(check)


def second_order(leaves):
    out = F.scaled_dot_product_attention(*leaves)
    (grad,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    return torch.autograd.grad(grad.square().sum(), leaves)


def test_derivatives_of_second_order_are_torchs():
    """torch has none of its fused kernels; sdpa_kernel gives those of the products and the softmax."""
    dense = [each.requires_grad_() for each in parts(torch.float64)]
    with pytest.raises(RuntimeError, match="flash_attention_for_cpu_backward is not implemented") as of_dense:
        second_order(dense)

    def check(mesh):
        with pytest.raises(RuntimeError) as ours:
            second_order(laid_out(parts(torch.float64), mesh, [Shard(2), Replicate(), Replicate()]))
        assert str(ours.value) == str(of_dense.value)

    on_ranks(check)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = second_order(dense)

        def check(mesh):
            ours = second_order(laid_out(parts(torch.float64), mesh, [Shard(2), Shard(1), Replicate()]))
            for a, b in zip(ours, wanted, strict=True):
                torch.testing.assert_close(a.full_tensor(), b)

        on_ranks(check)


MASKS = {
    "of bools": lambda n: torch.rand(n, n, generator=torch.Generator().manual_seed(3)) > 0.3,
    "of terms": lambda n: torch.randn(1, 1, n, n, generator=torch.Generator().manual_seed(3)),
    "of keys": lambda n: (torch.arange(n) % 5 != 1).view(1, 1, 1, n),
}


class Masked(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask, self.factor = mask, nn.Parameter(torch.ones(()))

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query * self.factor, key, value, attn_mask=self.mask)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1), Shard(2)])
@pytest.mark.parametrize("name", MASKS)
def test_a_plain_mask_in_a_forward_is_a_replica(name, placement):
    mask = MASKS[name](SHAPE[2])
    expected = F.scaled_dot_product_attention(*parts(), attn_mask=mask)

    def check(mesh):
        module = sw.distribute_module(Masked(mask), mesh)
        of_keys = Replicate() if placement == Shard(2) else placement
        out = module(*laid_out(parts(), mesh, [placement, of_keys, of_keys]))
        assert out.placements == (placement,)
        torch.testing.assert_close(out.full_tensor(), expected)

    on_ranks(check)


def test_a_plain_mask_of_terms_is_an_error_elsewhere():
    def check(mesh):
        leaves = laid_out(parts(), mesh, [Shard(0)] * 3)
        with pytest.raises(ValueError, match=r"\[aten::scaled_dot_product_attention\] got a torch.Tensor of shape"):
            F.scaled_dot_product_attention(*leaves, attn_mask=MASKS["of terms"](SHAPE[2]))
        with pytest.raises(ValueError, match=r"\[aten::scaled_dot_product_attention\] got a torch.Tensor of shape"):
            F.scaled_dot_product_attention(leaves[0], *parts()[1:])

    on_ranks(check)


def test_results_are_ordered_in_memory_as_torchs():
    dense = torch.ones(2, 24, 4, 8).transpose(1, 2)

    def check(mesh):
        ours = sw.distribute_tensor(dense, mesh, [Shard(1)], src_data_rank=None)
        out = F.scaled_dot_product_attention(ours, ours, ours)
        assert out.stride() == F.scaled_dot_product_attention(dense, dense, dense).stride()
        assert out.transpose(1, 2).view(2, 24, 32).placements == (Shard(2),)

    on_ranks(check)


def test_a_partial_gradient_is_reduced():
    dense = [each.requires_grad_() for each in parts()]
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*dense, is_causal=True).sum(), dense)

    def check(mesh):
        leaves = laid_out(parts(), mesh, [Shard(2), Replicate(), Replicate()])
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        ones = torch.full(SHAPE, 0.25)
        grad = sw.DTensor.from_local(ones, mesh, [Partial()], run_check=False)
        for a, b in zip(torch.autograd.grad(out, leaves, grad), wanted, strict=True):
            torch.testing.assert_close(a.full_tensor(), b)

    on_ranks(check)


def shard_heads(name, module, mesh):
    """The projections of heads by their outputs, the one behind them by its inputs."""
    dims = {"in_proj_weight": 0, "in_proj_bias": 0, "linear1.weight": 0, "linear1.bias": 0, "linear2.weight": 1}
    for key, parameter in list(module.named_parameters(recurse=False)):
        full = f"{name}.{key}" if name else key
        dim = next(
            (dim for words, dim in dims.items() if full.endswith(words)), 1 if "out_proj.weight" in full else None
        )
        placement = Replicate() if dim is None else Shard(dim)
        placed = sw.distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
        setattr(module, key, nn.Parameter(placed))


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(16, 4, batch_first=True),
    "attention, sequence first": lambda: nn.MultiheadAttention(16, 4),
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
    "encoder layer, norm first": lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", norm_first=True),
    "decoder layer": lambda: nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True),
}


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("partition", [None, shard_heads], ids=["replicas", "heads"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_dense(name, partition, is_training):
    torch.manual_seed(0)
    dense, x = LAYERS[name]().train(is_training), torch.randn(4, 6, 16)
    given = {"attention": 3, "decoder layer": 2}.get(name.split(",")[0], 1)

    def run(layer, x):
        with torch.set_grad_enabled(is_training):
            out = layer(*[x] * given)
        out, weights = out if isinstance(out, tuple) else (out, None)
        if is_training:
            out.square().sum().backward()
        return out, weights

    kept = copy.deepcopy(dense)
    expected = run(dense, x)

    def check(mesh):
        for placement in (Replicate(), Shard(0), Shard(1)):
            ours = sw.distribute_module(copy.deepcopy(kept), mesh, partition)
            results = run(ours, sw.distribute_tensor(x, mesh, [placement], src_data_rank=None))
            for result, wanted in zip(results, expected, strict=True):
                if wanted is not None:
                    torch.testing.assert_close(result.full_tensor(), wanted.detach(), rtol=1e-4, atol=1e-5)
            if is_training:
                for parameter, reference in zip(ours.parameters(), dense.parameters(), strict=True):
                    torch.testing.assert_close(parameter.grad.full_tensor(), reference.grad, rtol=1e-4, atol=1e-4)

    on_ranks(check)


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


def test_dropout_is_the_same_for_every_layout():
    def check(mesh):
        results = []
        for placements in ([Replicate()] * 3, [Shard(1)] * 3, [Shard(2), Replicate(), Replicate()]):
            torch.manual_seed(5)
            leaves = laid_out(parts(), mesh, placements)
            results.append(F.scaled_dot_product_attention(*leaves, dropout_p=0.5).full_tensor())
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(results[2], results[0])
        assert not torch.equal(results[0], F.scaled_dot_product_attention(*parts()))

    on_ranks(check)


def test_one_rank_without_queries_heads_or_batch():
    dense = [each.requires_grad_() for each in parts()]
    expected = F.scaled_dot_product_attention(*dense, is_causal=True)
    wanted = torch.autograd.grad(expected.sum(), dense)

    def check(mesh):
        for dim, sizes in ((0, [0, 2, 0, 0]), (1, [3, 0, 1, 0]), (2, [0, 20, 1, 3])):
            placement = Shard(dim, sizes=sizes)
            of_keys = Replicate() if dim == 2 else placement
            leaves = laid_out(parts(), mesh, [placement, of_keys, of_keys])
            out = F.scaled_dot_product_attention(*leaves, is_causal=True)
            assert out.placements == (placement,)
            torch.testing.assert_close(out.full_tensor(), expected.detach())
            for a, b in zip(torch.autograd.grad(out.sum(), leaves), wanted, strict=True):
                torch.testing.assert_close(a.full_tensor(), b)

    on_ranks(check)
