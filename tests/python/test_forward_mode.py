"""Forward-mode derivatives: those of the dense operators, tangents laid out in any way; none is dropped."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks


def double(*sizes, seed=0):
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def replicas(tensor, beside):
    return sw.distribute_tensor(tensor, beside.device_mesh) if isinstance(beside, sw.DTensor) else tensor


# Of a [4, 6] tensor; what stands beside it has no tangent.
CALLS = {
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "layer_norm with weight": lambda x: F.layer_norm(x, (6,), replicas(double(6), x), replicas(double(6, seed=1), x)),
    "rms_norm": lambda x: F.rms_norm(x, (6,), replicas(double(6), x)),
    "group_norm": lambda x: F.group_norm(x, 2, replicas(double(6), x)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, replicas(double(6), x), replicas(double(6, seed=1), x), True),
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "linear": lambda x: F.linear(x, replicas(double(3, 6), x), replicas(double(3), x)),
    "linear, of a batch": lambda x: F.linear(x.view(2, 2, 6), replicas(double(3, 6), x), replicas(double(3), x)),
    "linear, without bias": lambda x: F.linear(x, replicas(double(3, 6), x)),
    "matmul": lambda x: x @ replicas(double(6, 3), x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, replicas(torch.tensor([0, 5, 2, 3]), x)),
    "mse_loss": lambda x: F.mse_loss(x, replicas(double(4, 6, seed=2), x)),
    "embedding": lambda x: F.embedding(replicas(torch.tensor([3, 0, 3]), x), x),
    "embedding with padding": lambda x: F.embedding(replicas(torch.tensor([3, 0, 3]), x), x, padding_idx=3),
    "trace": torch.trace,
    "index": lambda x: x[torch.tensor([3, 0, 3])],
    "mask": lambda x: x[torch.tensor([True, False, False, True])],
    "gather": lambda x: x.gather(0, replicas(torch.tensor([[3, 0, 3, 1, 1, 2]]), x)),
    "slice and cat": lambda x: torch.cat([x[1:], x[:1]]),
    "cumsum": lambda x: x.cumsum(0),
    "var": lambda x: x.var(0),
    "norm": torch.linalg.vector_norm,
}
PLACEMENTS = [Shard(0), Shard(1), Shard(0, sizes=[1, 0, 3]), Replicate(), Partial()]


def tangent_of(call, primal, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(primal, tangent))).tangent


def on_one_rank_at_a_time(check, n_ranks=3):
    """Ranks that are threads share torch's forward-mode levels: one level, opened around them all."""
    with forward_ad.dual_level():
        run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("name", CALLS)
def test_tangents_are_dense(name, requires_grad):
    call = CALLS[name]
    primal, tangent = double(4, 6), double(4, 6, seed=3)
    try:
        expected = tangent_of(call, primal.clone().requires_grad_(requires_grad), tangent)
    except NotImplementedError:
        pytest.skip("this torch has no forward mode for it")

    def check(mesh):
        for placement in PLACEMENTS:
            ours = [sw.distribute_tensor(tensor, mesh, [placement]) for tensor in (primal, tangent)]
            dual = forward_ad.make_dual(ours[0].requires_grad_(requires_grad), ours[1])
            found = forward_ad.unpack_dual(call(dual)).tangent
            assert isinstance(found, sw.DTensor), placement
            torch.testing.assert_close(found.full_tensor(), expected, msg=f"laid out as {placement}")

    on_one_rank_at_a_time(check)


def test_jvp_goes_through_modules():
    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).double()
    primal, tangent = double(4, 6), double(4, 6, seed=3)
    _, expected = torch.func.jvp(block, (primal,), (tangent,))

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        ours = sw.distribute_module(block, mesh)
        x, t = (sw.distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (primal, tangent))
        torch.testing.assert_close(torch.func.jvp(ours, (x,), (t,))[1].full_tensor(), expected)

    run_ranks(1, check)


def test_moves_carry_tangents():
    primal, tangent = double(4, 6), double(4, 6, seed=3)

    def check(mesh):
        for requires_grad in (False, True):
            x, t = (sw.distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (primal, tangent))
            dual = forward_ad.make_dual(x.requires_grad_(requires_grad), t)
            moved = [dual.redistribute(placements=[Shard(1)]), *sw.redistribute_many([dual, x], [Replicate()])[:1]]
            for result in moved:
                assert torch.equal(forward_ad.unpack_dual(result).tangent.full_tensor(), tangent)
            assert torch.equal(forward_ad.unpack_dual(dual.full_tensor()).tangent, tangent)

    on_one_rank_at_a_time(check)


def test_what_has_no_forward_mode_says_so():
    def check(mesh):
        table = forward_ad.make_dual(*(sw.distribute_tensor(double(4, 6), mesh, [Shard(0)]) for _ in range(2)))
        ids = sw.distribute_tensor(torch.tensor([[1, 2]]), mesh)
        with pytest.raises(NotImplementedError, match=r"embedding_bag\] has no forward-mode derivative"):
            F.embedding_bag(ids, table)
        with pytest.raises(ValueError, match="next to a DTensor"):  # zeros of a user's are none of torch's
            table + torch.zeros(4, 6, dtype=torch.float64)

    on_one_rank_at_a_time(check)
