"""Attention over sequences of which each rank has some positions: the dense result judges."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import shardwise as sw
from shardwise.experimental import context_parallel
from shardwise.experimental._attention import (
    _context_parallel_shard,
    _ContextParallel,
    _cp_options,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
    context_parallel_unshard,
    set_rotate_method,
)
from shardwise.parallel import parallelize_module
from shardwise.testing import run_ranks


def mesh_of(n_ranks):
    return sw.init_device_mesh("cpu", (n_ranks,))


def inputs(n_queries, n_keys, n_kv_heads=2):
    torch.manual_seed(0)
    q = torch.randn(2, 4, n_queries, 3)
    return q, torch.randn(2, n_kv_heads, n_keys, 3), torch.randn(2, n_kv_heads, n_keys, 5)


def dense(tensors, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = scaled_dot_product_attention(*leaves, enable_gqa=True, **options)
    out.sin().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def sharded(n_ranks, tensors, attend=scaled_dot_product_attention, **options):
    """The output and the gradients, whole again, of each rank."""

    def body(rank):
        mesh, leaves = mesh_of(n_ranks), [tensor.clone() for tensor in tensors]
        with context_parallel(mesh, buffers=leaves, buffer_seq_dims=[2, 2, -2]):
            for leaf in leaves:
                leaf.requires_grad_()
            out = attend(*leaves, enable_gqa=True, **options)
            assert out.size(2) == leaves[0].size(2)
            out.sin().sum().backward()
            return context_parallel_unshard(mesh, [out, *(leaf.grad for leaf in leaves)], [2, 2, 2, 2])

    return run_ranks(n_ranks, body)


@pytest.fixture(params=[True, False], ids=["balanced", "in order"])
def is_balanced(request):
    _cp_options.enable_load_balance = request.param
    yield request.param
    _cp_options.enable_load_balance = True


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("n_ranks", "length"), [(2, 8), (3, 11), (4, 3), (1, 4)])
def test_the_dense_result_and_gradients(is_balanced, is_causal, n_ranks, length):
    tensors = inputs(length, length)
    for results in sharded(n_ranks, tensors, is_causal=is_causal):
        torch.testing.assert_close(results, dense(tensors, is_causal=is_causal))


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(12, 6), (6, 12)])
def test_other_keys_than_queries(is_balanced, is_causal, n_queries, n_keys):
    tensors = inputs(n_queries, n_keys)
    for results in sharded(3, tensors, is_causal=is_causal, scale=0.3):
        torch.testing.assert_close(results, dense(tensors, is_causal=is_causal, scale=0.3))


def test_masks_of_all_queries_or_of_this_ranks(is_balanced):
    tensors, mask = inputs(7, 7), torch.arange(49).view(7, 7) % 3 > 0
    expected = dense(tensors, attn_mask=mask)
    for results in sharded(3, tensors, attn_mask=mask):
        torch.testing.assert_close(results, expected)

    def body(rank):
        q, k, v = (tensor.clone() for tensor in tensors)
        own = mask.clone()
        with context_parallel(mesh_of(3), buffers=[q, k, v, own], buffer_seq_dims=[2, 2, 2, 0]):
            out = scaled_dot_product_attention(q, k, v, attn_mask=own, enable_gqa=True)
            torch.testing.assert_close(context_parallel_unshard(mesh_of(3), [out], [2])[0], expected[0])
            with pytest.raises(ValueError, match=r"Give all keys' columns"):
                scaled_dot_product_attention(q, k, v, attn_mask=own[:, :5], enable_gqa=True)

    run_ranks(3, body)


def test_it_is_found_in_a_recomputed_forward():
    def attend(q, k, v, **options):
        return checkpoint(
            lambda *leaves: torch.nn.functional.scaled_dot_product_attention(*leaves, **options),
            q,
            k,
            v,
            use_reentrant=False,
        )

    tensors = inputs(6, 6)
    for results in sharded(2, tensors, attend, is_causal=True):
        torch.testing.assert_close(results, dense(tensors, is_causal=True))


def test_buffers_hold_this_ranks_positions_in_the_block():
    def body(rank):
        mesh, ids, labels = mesh_of(2), torch.arange(16).view(2, 8), torch.arange(8)
        view, kept = ids[0], ids.data_ptr()
        with context_parallel(mesh, buffers=[ids, labels], buffer_seq_dims=[1, 0], no_restore_buffers={labels}):
            own = [[0, 1, 6, 7], [2, 3, 4, 5]][rank]
            assert labels.tolist() == own and ids.tolist() == [own, [8 + each for each in own]]
            assert (
                context_parallel_unshard(mesh, [ids, labels], [1, 0])[0].tolist()
                == torch.arange(16).view(2, 8).tolist()
            )
        assert ids.tolist() == torch.arange(16).view(2, 8).tolist() and labels.tolist() == own
        assert ids.data_ptr() == kept == view.data_ptr()
        with pytest.raises(ZeroDivisionError), context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]):
            assert ids.shape == (2, 4)
            raise ZeroDivisionError
        assert ids.shape == (2, 8)
        x = torch.ones(1, 1, 2, 3)  # outside the block attention is torch's
        assert scaled_dot_product_attention(x, x, x).shape == x.shape

    run_ranks(2, body)


def test_a_buffer_may_be_named_twice():
    def body(rank):
        q = torch.arange(8.0).view(1, 1, 8, 1)
        with context_parallel(mesh_of(2), buffers=[q, q], buffer_seq_dims=[2, 2]):
            assert q.flatten().tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]][rank]
        assert torch.equal(q, torch.arange(8.0).view(1, 1, 8, 1))

    run_ranks(2, body)


def test_errors_come_before_any_buffer_changes():
    def body(rank):
        mesh, x = mesh_of(2), torch.zeros(4, 6)

        def fails(text, mesh=mesh, **arguments):
            with pytest.raises(ValueError, match=text), context_parallel(mesh, **arguments):
                pass
            assert x.shape == (4, 6)

        fails("has no dim 2", buffers=[x, x], buffer_seq_dims=[0, 2])
        fails("must have the same number of elements", buffers=[x])
        fails("must be a subset", buffers=[x], buffer_seq_dims=[0], no_restore_buffers={torch.zeros(1)})
        fails("one is a DTensor", buffers=[x, sw.zeros(4, device_mesh=mesh)], buffer_seq_dims=[0, 0])
        fails("tells sequences apart", buffers=[x, torch.zeros(3)], buffer_seq_dims=[0, 0])
        fails("Pass the one to shard sequences over", sw.init_device_mesh("cpu", (1, 2)))
        with context_parallel(mesh):
            dtensor = sw.zeros(1, 1, 4, 2, device_mesh=mesh)
            with pytest.raises(ValueError, match=r"Pass its to_local\(\)"):
                scaled_dot_product_attention(dtensor, dtensor, dtensor)

    run_ranks(2, body)
    with pytest.raises(NotImplementedError, match="'ring' is none of"):
        set_rotate_method("ring")
    set_rotate_method("alltoall")
    assert _cp_options.rotate_method == "alltoall"
    set_rotate_method("allgather")


class Attention(torch.nn.Module):
    def forward(self, q, k, v, *, is_causal=True):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_attention_modules_by_a_style(is_balanced, is_checkpointed):
    """As libraries apply it: buffers are sharded by a function, and each attention module has the style."""
    tensors = inputs(16, 16)

    def body(rank):
        mesh, attention = mesh_of(4), Attention()
        _enable_context_parallel_dispatcher()
        plan = _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.SDPA)
        parallelize_module(module=attention, device_mesh=mesh, parallelize_plan=plan)
        balancer = _HeadTailLoadBalancer(16, 4, "cpu") if is_balanced else None
        leaves = _context_parallel_shard(mesh=mesh, buffers=tensors, seq_dims=(2, 2, 2), load_balancer=balancer)
        for leaf in leaves:
            leaf.requires_grad_()
        out = checkpoint(attention, *leaves, use_reentrant=False) if is_checkpointed else attention(*leaves)
        out.sin().sum().backward()
        with pytest.raises(IndexError):
            attention(torch.ones(1), leaves[1], leaves[2])
        assert scaled_dot_product_attention(*leaves, enable_gqa=True).shape == out.shape  # of these positions alone
        return context_parallel_unshard(mesh, [out, *(leaf.grad for leaf in leaves)], [2, 2, 2, 2])

    for results in run_ranks(4, body):
        torch.testing.assert_close(results, dense(tensors, is_causal=True))


def test_what_a_style_of_attention_lacks():
    class Other:
        pass

    def body(rank):
        mesh, x = mesh_of(2), torch.ones(6)
        for kind, words, call in (
            (
                NotImplementedError,
                "flex_attention is computed on whole",
                lambda: _ContextParallel(2, _ContextParallel.AttentionType.FLEX),
            ),
            (NotImplementedError, "Use seq_dim=2", lambda: _ContextParallel(1, _ContextParallel.AttentionType.SDPA)),
            (NotImplementedError, "balanced by Other", lambda: _context_parallel_shard(mesh, [x], [0], Other())),
            (NotImplementedError, "a Other cannot be sharded", lambda: _context_parallel_shard(mesh, [Other()], [0])),
            (
                ValueError,
                "6 positions do not divide into 4",
                lambda: _context_parallel_shard(mesh, [x], [0], _HeadTailLoadBalancer(6, 2, "cpu")),
            ),
            (ValueError, "same number of elements", lambda: _context_parallel_shard(mesh, [x], [0, 0])),
        ):
            with pytest.raises(kind, match=words):
                call()

    run_ranks(2, body)
