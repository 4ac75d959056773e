"""What other libraries read of a DTensor, and how they make one."""

import pytest
import torch

import shardwise as sw
from shardwise import BlockShard, Partial, RaggedShard, Replicate, Shard
from shardwise._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from shardwise._utils import (
    _compute_local_shape_and_global_offset,
    compute_global_tensor_info,
    compute_global_tensor_shape,
    compute_local_shape_and_global_offset,
    compute_local_tensor_info,
    redistribute_local_tensor,
)
from shardwise.testing import run_ranks


def test_a_spec_tells_the_layout_and_makes_the_tensor_again():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        x = sw.distribute_tensor(torch.arange(15.0).view(5, 3), mesh, [Shard(0), Replicate()])
        spec = x._spec
        assert spec.mesh is spec.device_mesh is mesh and spec.placements == (Shard(0), Replicate())
        assert spec.tensor_meta == TensorMeta(torch.Size([5, 3]), (3, 1), torch.float32)
        assert spec.shape == (5, 3) and spec.stride == (3, 1) and spec.ndim == 2
        assert spec.dim_map == [0, -1] and spec.sums == [] and spec.num_shards == 2 and spec.num_shards_map == [2, 1]
        assert spec.is_sharded() and not spec.is_replicated()
        assert spec == x._spec and hash(spec) == hash(x._spec) and spec != x.t()._spec
        assert DTensorSpec.from_dim_map(mesh, [0, -1], [], spec.tensor_meta) == spec
        again = sw.DTensor(x._local_tensor, spec, requires_grad=True)
        assert again.requires_grad and again.is_leaf and torch.equal(again.full_tensor(), x.full_tensor())
        assert again._local_tensor.data_ptr() == x._local_tensor.data_ptr()  # aliased
        other = sw.DTensor(x._local_tensor * 2, spec.shallow_copy_with_tensor_meta(spec.tensor_meta))
        assert not other.requires_grad and torch.equal(other.full_tensor(), x.full_tensor() * 2)

    run_ranks(4, body)


def test_specs_of_sums_and_of_dims_that_are_sharded_twice():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1, 2))
        spec = DTensorSpec.from_dim_map(mesh, [-1, 0], [1])
        assert spec.placements == (Shard(1), Partial()) and spec.sums == [1] and spec.tensor_meta is None
        with pytest.raises(ValueError, match="this spec has no tensor_meta"):
            spec.shape  # noqa: B018
        with pytest.raises(ValueError, match=r"name a mesh dim twice"):
            DTensorSpec.from_dim_map(mesh, [0, 0], [])
        with pytest.raises(ValueError, match="shard dim 0 twice"):
            sw.zeros(4, device_mesh=mesh, placements=[Shard(0), Shard(0)])._spec.dim_map  # noqa: B018

    run_ranks(2, body)


def test_the_local_tensor_is_the_piece_without_history():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(3, device_mesh=mesh, placements=[Shard(0)], requires_grad=True)
        local = (x * 2)._local_tensor
        assert type(local) is torch.Tensor and not local.requires_grad and local.tolist() == [2.0] * (2 - rank)
        x._local_tensor.fill_(rank)
        assert x.full_tensor().tolist() == [0, 0, 1]

    run_ranks(2, body)


def test_the_local_tensor_is_one_object():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        given = torch.ones(2, 3)
        for x in (
            sw.DTensor.from_local(given, mesh, [Shard(0)]),
            sw.DTensor.from_local(given, mesh, [Shard(0)]).requires_grad_(),
            sw.DTensor.from_local(given, mesh, [Shard(0)]) * 2,
        ):
            local = x._local_tensor
            with torch.no_grad():
                assert x._local_tensor is x.to_local() is x.to_local() is local
            assert x._local_tensor is local and x.to_local() is not local  # here autograd may record what becomes of it
            before = x._version
            local.add_(1)
            assert x._version > before
            local.requires_grad_()  # as a program may: what operators compute of x does not know of it
            assert (x.detach() * 2).to_local().grad_fn is None

    run_ranks(2, body)


def test_what_makes_no_dtensor():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        spec = sw.zeros(4, device_mesh=mesh, placements=[Shard(0)])._spec
        with pytest.raises(TypeError, match=r"Use DTensor\.from_local"):
            sw.DTensor(torch.ones(2))
        with pytest.raises(ValueError, match=r"of dtype torch\.float64"):
            sw.DTensor(torch.ones(2, dtype=torch.float64), spec)
        with pytest.raises(ValueError, match="tensor_meta is None"):
            sw.DTensor(torch.ones(2), DTensorSpec(mesh, (Shard(0),)))
        with pytest.raises(ValueError):
            sw.DTensor(torch.ones(3), spec)

    run_ranks(2, body)

    def warns(rank):
        spec = sw.zeros(4, device_mesh=sw.init_device_mesh("cpu", (1,)))._spec
        with pytest.warns(UserWarning, match="To construct a DTensor"):
            assert not sw.DTensor(torch.ones(4, requires_grad=True), spec).requires_grad

    run_ranks(1, warns)


# forward, backward dtypes; the result's, and in which the gradient travelled
@pytest.mark.parametrize(
    ("forward", "backward", "result", "grad_values"),
    [
        (None, None, torch.float32, 1.00390625),
        (torch.bfloat16, None, torch.bfloat16, 1.0),
        (torch.float64, torch.bfloat16, torch.float64, 1.0),
        (None, torch.bfloat16, torch.float32, 1.0),
    ],
)
def test_moves_may_change_the_dtype(forward, backward, result, grad_values):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(torch.tensor([1.00390625, 2, 3]), mesh, [Shard(0)]).requires_grad_()
        y = x.redistribute(placements=[Replicate()], forward_dtype=forward, backward_dtype=backward)
        assert y.dtype == result and y.placements == (Replicate(),)
        assert y.full_tensor()[0].item() == (1.0 if result is torch.bfloat16 else 1.00390625)
        same = x.redistribute(placements=[Shard(0)], forward_dtype=forward)
        assert same.dtype == (forward or torch.float32) and same.placements == (Shard(0),)
        y.backward(torch.full_like(y, 1.00390625))
        assert x.grad.dtype == torch.float32 and x.grad.placements == (Shard(0),)
        assert x.grad.full_tensor().tolist() == [grad_values] * 3

    run_ranks(2, body)


def test_sums_are_reduced_in_the_dtype_of_the_move():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.DTensor.from_local(torch.full((2,), 1.0 if rank else 256.0, dtype=torch.bfloat16), mesh, [Partial()])
        assert (
            x.redistribute(placements=[Replicate()], forward_dtype=torch.float32).full_tensor().tolist() == [257.0] * 2
        )
        assert x.redistribute(placements=[Shard(0)], forward_dtype=torch.float64).dtype is torch.float64

    run_ranks(2, body)


@pytest.mark.parametrize(
    "placements", [[Shard(0), Shard(1)], [Shard(0), Shard(0)], [Shard(1, sizes=[1, 4]), Replicate()]], ids=repr
)
def test_where_this_ranks_piece_lies(placements):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        whole = torch.arange(15.0).view(3, 5)
        sizes, offsets = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
        piece = sw.distribute_tensor(whole, mesh, placements).to_local()
        assert piece.shape == sizes
        part = whole[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]
        assert torch.equal(piece, part)
        outside = sw.DeviceMesh("cpu", [0, 1])
        expected = ((0,), ()) if rank > 1 else ((5,), (0,))
        assert compute_local_shape_and_global_offset([5], outside, [Replicate()]) == expected

    run_ranks(4, body)


def test_a_whole_tensor_is_known_from_one_piece():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        piece = torch.ones(3, 5).t()
        assert compute_global_tensor_info(piece, mesh, [Replicate(), Partial()]) == ([5, 3], [1, 5])
        for dim in (0, -2):
            assert compute_global_tensor_info(piece, mesh, [Shard(dim), Replicate()]) == ([10, 3], [1, 10])
        assert compute_global_tensor_info(piece, mesh, [Shard(1), Shard(0)]) == ([10, 6], [1, 10])
        for uneven in (RaggedShard((0,), (1, 2)), Shard(0, sizes=[5, 2]), BlockShard(0, 5)):
            with pytest.raises(RuntimeError, match="pieces of different sizes"):
                compute_global_tensor_info(piece, mesh, [uneven, Replicate()])

    run_ranks(4, body)


def test_the_order_of_splits_is_read_and_set():
    from torch.distributed.tensor.placement_types import _StridedShard

    # placements, order
    cases = [
        ((Shard(0), Shard(1), Replicate()), ((0, (0,)), (1, (1,)))),
        ((Shard(0), Shard(0), Shard(0)), ((0, (0, 1, 2)),)),
        ((_StridedShard(0, split_factor=6), _StridedShard(0, split_factor=3), Shard(0)), ((0, (2, 1, 0)),)),
        ((_StridedShard(0, split_factor=3), Shard(1), Shard(0)), ((0, (2, 0)), (1, (1,)))),
        ((Shard(0), _StridedShard(0, split_factor=3), Shard(0)), ((0, (0, 2, 1)),)),
        ((Partial(), Replicate(), Replicate()), ()),
    ]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1, 2, 3))
        for placements, order in cases:
            spec = DTensorSpec(mesh, placements)
            assert spec.shard_order == order and all(type(each) is ShardOrderEntry for each in spec.shard_order)
            assert DTensorSpec.is_default_device_order(order) == all(type(p) is not _StridedShard for p in placements)
            plain = DTensorSpec(mesh, [Shard(p.dim) if isinstance(p, _StridedShard) else p for p in placements])
            plain.shard_order = order
            assert plain == spec
        parts = DTensorSpec(mesh, (Replicate(), Replicate(), _StridedShard(0, split_factor=5)))
        assert parts.shard_order is None and not DTensorSpec.is_default_device_order(None)

    run_ranks(6, body)


def test_a_piece_gets_another_spec_and_moves_between_specs():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        x = torch.arange(18.0).view(9, 2)
        source = sw.distribute_tensor(x, mesh, [Shard(0), Shard(0)])._spec
        target = sw.distribute_tensor(x, mesh, [Shard(0), Shard(0)])._spec
        target.shard_order = (ShardOrderEntry(0, (1, 0)),)
        moved = redistribute_local_tensor(x[[slice(0, 3), slice(3, 5), slice(5, 7), slice(7, 9)][rank]], source, target)
        assert torch.equal(moved, x[[slice(0, 3), slice(5, 7), slice(3, 5), slice(7, 9)][rank]])
        tensor = sw.DTensor.from_local(moved, mesh)
        tensor._spec = target
        assert tensor.placements == target.placements and torch.equal(tensor.full_tensor(), x)

    run_ranks(4, body)


def test_pieces_without_a_tensor():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        placements = [Shard(1), Replicate()]
        whole = torch.empty(4, 6, 5).permute(2, 0, 1)
        piece = sw.distribute_tensor(whole, mesh, placements).to_local()
        assert compute_local_tensor_info(whole, mesh, placements) == (list(piece.shape), list(piece.stride()))
        own = [5, 2 + rank // 2]
        assert compute_global_tensor_shape(own, mesh, [Shard(1), Replicate()]) == torch.Size([5, 5])
        assert compute_global_tensor_shape([rank, 1], mesh, [Shard(0), Shard(0)]) == torch.Size([6, 1])
        assert compute_global_tensor_shape([1, rank], mesh, [Shard(-1), Shard(1)]) == torch.Size([1, 6])
        with pytest.raises(
            RuntimeError, match=r"have the sizes \[\[5, 2\], \[5, 2\], \[5, 3\], \[5, 3\]\], which form no"
        ):
            compute_global_tensor_shape(own, mesh, [Shard(0), Replicate()])
        outside = sw.DeviceMesh("cpu", [0, 1])
        assert compute_global_tensor_shape([3], outside, [Shard(0)]) == ((0,) if rank > 1 else (6,))
        assert compute_local_shape_and_global_offset((5, 2), mesh, placements, skip_offset=True) == ((5, 1), ())

    run_ranks(4, body)


def test_an_empty_piece_begins_where_no_other_piece_does():
    from torch.distributed.tensor.placement_types import _StridedShard

    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    at = [
        _compute_local_shape_and_global_offset((8, 1), (3, 2), (i, j), placements) for i in range(3) for j in range(2)
    ]
    assert at == [((2, 1), (0, 0)), ((2, 1), (4, 0)), ((2, 1), (2, 0)), ((2, 1), (6, 0)), *[((0, 1), (8, 0))] * 2]
    assert _compute_local_shape_and_global_offset((8,), (4,), lambda mesh_dim: 1, [Shard(0)], True) == ((2,), ())


def test_orders_in_short():
    order = (ShardOrderEntry(0, (1,)), ShardOrderEntry(1, (2, 0)))
    text = DTensorSpec.format_shard_order_str((Shard(1), Shard(0), Shard(1), Replicate(), Partial()), order)
    assert text == "S(1)[1]S(0)S(1)[0]RP(sum)"
    assert DTensorSpec.format_shard_order_str((Replicate(), Shard(1), Shard(1))) == "RS(1)S(1)"
    assert DTensorSpec.compute_default_shard_order((Shard(1), Shard(0), Shard(1), Replicate())) == (
        ShardOrderEntry(0, (1,)),
        ShardOrderEntry(1, (0, 2)),
    )
