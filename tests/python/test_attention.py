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


def test_causal_dropout_of_sharded_queries_sends_nothing_and_sees_no_later_key():
    n = SHAPE[2]
    values = torch.eye(n).expand(*SHAPE[:2], n, n)  # so results are the weights

    def check(mesh):
        of_values = sw.distribute_tensor(values, mesh, [Replicate()], src_data_rank=None)
        query, key, _ = laid_out(parts(), mesh, [Shard(2), Replicate(), Replicate()])
        with sw.CommDebugMode() as comm:
            out = F.scaled_dot_product_attention(query, key, of_values, dropout_p=0.5, is_causal=True)
        assert comm.bytes_received() == 0
        weights = out.full_tensor().detach()
        assert out.placements == (Shard(2),)
        assert not weights.triu(1).any()
        expected = F.scaled_dot_product_attention(*parts()[:2], values, is_causal=True)
        kept = weights != 0
        torch.testing.assert_close(weights[kept], 2 * expected[kept])
        assert 0.4 < kept.sum() / (expected != 0).sum() < 0.6

    on_ranks(check)


class EfficientOnCpu:
    """torch's memory-efficient kernel for GPUs, stated for the CPU by its definition. With dropout every third key is dropped."""

    def __enter__(self):
        self.library = torch.library.Library("aten", "IMPL")
        name = "_scaled_dot_product_efficient_attention"
        self.library.impl(name, self.forward, "CPU")
        self.library.impl(f"{name}_backward", self.backward, "CPU")

    def __exit__(self, *_):
        self.library._destroy()

    @staticmethod
    def weights(query, key, bias, dropout_p, is_causal, scale):
        """Scores, their softmax, and by how much dropout multiplies it."""
        scores = query @ key.mT * (scale or query.shape[-1] ** -0.5)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        if bias is not None:
            scores = scores + bias
        is_kept = torch.arange(key.shape[2]) % 3 != 0 if dropout_p > 0 else torch.ones(key.shape[2])
        return scores, scores.softmax(-1), is_kept / (1 - dropout_p)

    @classmethod
    def forward(cls, query, key, value, bias, _compute, dropout_p=0.0, is_causal=False, *, scale=None):
        scores, weights, factor = cls.weights(query, key, bias, dropout_p, is_causal, scale)
        sums = F.pad(scores.logsumexp(-1), (0, -query.shape[2] % 32))
        return weights * factor @ value, sums, torch.tensor(7), torch.tensor(0)

    @classmethod
    def backward(
        cls, grad, query, key, value, bias, out, sums, _seed, _offset, p, _wanted, is_causal=False, *, scale=None
    ):
        scores, _, factor = cls.weights(query, key, bias, p, is_causal, scale)
        weights = (scores - sums[..., : query.shape[2], None]).exp()  # of all keys, of which these may be a part
        of_weights = grad @ value.mT * factor
        of_scores = weights * (of_weights - (grad * out).sum(-1, keepdim=True))
        of_products = of_scores * (scale or query.shape[-1] ** -0.5)
        return of_products @ key, of_products.mT @ query, (weights * factor).mT @ grad, of_scores


@pytest.mark.parametrize("dropout_p", [0.0, 0.5], ids=["", "dropout"])
@pytest.mark.parametrize("mask_shape", [None, (24, 24), (1, 1, 1, 24), (2, 1, 24, 1)], ids=str)
def test_later_queries_of_a_causal_call_see_their_keys_and_their_mask(mask_shape, dropout_p):
    query, key, value = parts()
    mask = None if mask_shape is None else torch.randn(mask_shape, generator=torch.Generator().manual_seed(4))
    grad = parts()[1]
    backend = SDPBackend.EFFICIENT_ATTENTION.value

    def run(begin, end):
        rows = slice(begin, end)
        own = mask[..., rows, :] if mask is not None and mask.shape[-2] > 1 else mask
        scalars = (dropout_p, dropout_p > 0, True, True, None, backend)
        out, sums, random = torch.ops.shardwise.fused_attention(
            query[:, :, rows], key, value, own, *scalars, 3, begin, 0
        )
        grads = torch.ops.shardwise.fused_attention_backward(
            grad[:, :, rows], query[:, :, rows], key, value, out, sums, random, own,
            dropout_p, True, None, backend, mask is not None, begin,
        )  # fmt: skip
        return [out, sums, grads[0]], [*grads[1:3], *([grads[3]] if mask is not None else [])]

    with EfficientOnCpu():
        by_row, summed = run(0, 24)
        ranges = [(0, 5), (5, 6), (6, 24)]
        ours = [run(*each) for each in ranges]
    for i, wanted in enumerate(by_row):
        torch.testing.assert_close(torch.cat([rows[i] for rows, _ in ours], 2), wanted)
    for i, wanted in enumerate(summed):
        terms = [sums[i] for _, sums in ours]
        has_rows = i == 2 and mask_shape[-2] > 1
        torch.testing.assert_close(torch.cat(terms, -2) if has_rows else sum(terms), wanted)


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
