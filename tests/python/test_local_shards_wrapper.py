"""LocalShardsWrapper and its way to DTensor and back: requirements T1 to T7."""

import copy

import pytest
import torch
from copies import through_pickle, through_save
from torch import nn

import shardwise as sw
from shardwise import DTensor, EnumerableShard, LocalShardsWrapper, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks

TABLE = torch.arange(8.0 * 16).reshape(8, 16)


def pieces_of(table, boxes):
    """`boxes`: (offsets, sizes) of one rank."""
    places = [tuple(slice(o, o + n) for o, n in zip(*box, strict=True)) for box in boxes]
    return LocalShardsWrapper(
        local_shards=[table[place].clone() for place in places],
        offsets=[offsets for offsets, _ in boxes],
        dtype=table.dtype,
    )


def rows(*ends):
    """Per rank one piece of whole rows, up to each end."""
    begins = (0, *ends[:-1])
    return [[((begin, 0), (end - begin, 16))] for begin, end in zip(begins, ends, strict=True)]


def assert_same_pieces(back, wrapper):
    assert isinstance(back, LocalShardsWrapper)
    assert back.local_sizes() == wrapper.local_sizes() and back.local_offsets() == wrapper.local_offsets()
    for piece, original in zip(back.shards, wrapper.shards, strict=True):
        assert piece.data_ptr() == original.data_ptr() and torch.equal(piece, original)


def there_and_back(boxes, placement, shape=None, stride=None):
    """What rank 0 sees of the placements; the pictures are equal everywhere."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (len(boxes),))
        wrapper = pieces_of(TABLE, boxes[rank])
        tensor = DTensor.from_local(wrapper, mesh, [placement], run_check=False, shape=shape, stride=stride)
        assert type(tensor) is DTensor and tensor.shape == TABLE.shape and tensor.stride() == TABLE.stride()
        assert torch.equal(tensor.full_tensor(), TABLE)
        assert_same_pieces(tensor.to_local(), wrapper)
        return tensor.placements[0], sw.debug.picture(tensor)

    results = run_ranks(len(boxes), body)
    assert len({picture for _, picture in results}) == 1
    return results[0][0]


def test_t1_a_wrapper_is_a_tensor_over_its_pieces():
    a, b = torch.zeros(2, 16), torch.ones(1, 16)
    for wrapper in (
        LocalShardsWrapper(local_shards=[a, b], offsets=[(0, 0), (6, 0)]),
        LocalShardsWrapper(local_shards=[a, b], local_offsets=[(0, 0), (6, 0)]),
        LocalShardsWrapper([a, b], [(0, 0), (6, 0)]),
    ):
        assert isinstance(wrapper, torch.Tensor) and type(wrapper) is LocalShardsWrapper
        assert wrapper.shape == (3, 16)
        assert wrapper.shards[0] is a and wrapper.local_shards()[1] is b
        assert wrapper.shard_sizes == wrapper.local_sizes() == [(2, 16), (1, 16)]
        assert wrapper.shard_offsets == wrapper.local_offsets() == [(0, 0), (6, 0)]
        assert not wrapper.is_empty_shard()
    with pytest.raises(TypeError, match="offsets once"):
        LocalShardsWrapper([a])


def test_t1_storage_metadata_has_a_chunk_per_piece():
    wrapper = LocalShardsWrapper(
        [torch.zeros(2, 16, dtype=torch.float64), torch.zeros(1, 16, dtype=torch.float64)], [(0, 0), (6, 0)]
    )
    metadata = wrapper.storage_metadata()
    assert [(chunk.offsets, chunk.sizes) for chunk in metadata.chunks] == [((0, 0), (2, 16)), ((6, 0), (1, 16))]
    assert metadata.size == (3, 16) and metadata.properties.dtype == torch.float64


def test_t1_no_pieces_take_dtype_and_device_from_the_call():
    none = LocalShardsWrapper(local_shards=[], offsets=[], dtype=torch.bfloat16, device="cpu")
    assert none.numel() == 0 and none.dtype == torch.bfloat16 and none.is_empty_shard()
    assert LocalShardsWrapper([], []).dtype == torch.float32


def test_t2_operators_run_on_each_piece_and_keep_the_class():
    wrapper = pieces_of(TABLE, [((0, 0), (2, 16)), ((6, 0), (1, 16))])
    a, b = wrapper.shards
    for result, one in [
        (wrapper + 1, lambda t: t + 1),
        (wrapper.sin(), torch.sin),
        (wrapper.to(torch.float64), lambda t: t.double()),
        (wrapper.clone(), torch.clone),
        (wrapper.detach(), torch.detach),
        (torch.zeros_like(wrapper), torch.zeros_like),
        (wrapper.view(3, 16), lambda t: t),
    ]:
        assert type(result) is LocalShardsWrapper and result.shard_offsets == wrapper.shard_offsets
        assert torch.equal(result.shards[0], one(a)) and torch.equal(result.shards[1], one(b))
    assert torch.equal(wrapper, wrapper.clone()) and not torch.equal(wrapper, wrapper + 1)
    assert wrapper.zero_() is wrapper and a.abs().sum() == 0
    with pytest.raises(NotImplementedError, match=r"\[aten::sum\] needs more than one piece at a time"):
        wrapper.sum()
    with pytest.raises(ValueError, match="next to a LocalShardsWrapper"):
        torch.add(wrapper, torch.ones(3, 16))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_t2_optimizer_steps_are_those_of_the_pieces(make, options):
    start = [TABLE[:2].clone(), TABLE[6:7].clone()]
    wrapper = nn.Parameter(LocalShardsWrapper([piece.clone() for piece in start], [(0, 0), (6, 0)]))
    plain = [nn.Parameter(piece.clone()) for piece in start]
    ours, theirs = make([wrapper], lr=0.1, **options), make(plain, lr=0.1, **options)
    for step in range(3):
        wrapper.grad = LocalShardsWrapper([torch.cos(p.detach() + step) for p in plain], [(0, 0), (6, 0)])
        for piece in plain:
            piece.grad = torch.cos(piece.detach() + step)
        ours.step()
        theirs.step()
    for piece, expected in zip(wrapper.detach().shards, plain, strict=True):
        assert torch.equal(piece, expected)


def test_t3_row_wise_even():
    assert there_and_back(rows(2, 4, 6, 8), Shard(0)) == Shard(0)


def test_t3_trap_the_column_offset_of_a_row_piece_is_zero():
    def body(rank):
        wrapper = LocalShardsWrapper([TABLE[2 * rank : 2 * rank + 2]], [(2 * rank, 16 * rank)])
        DTensor.from_local(wrapper, sw.init_device_mesh("cpu", (4,)), [Shard(0)], shape=(8, 16), stride=(16, 1))

    with pytest.raises(ValueError, match="begins at column 0"):
        run_ranks(4, body)


def test_a_refused_wrapper_is_exchanged_once():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        whole = LocalShardsWrapper([TABLE[2 * rank : 2 * rank + 2]], [(2 * rank, 0)])
        askew = LocalShardsWrapper([TABLE[2 * rank : 2 * rank + 2]], [(2 * rank, 16 * rank)])
        with sw.profile() as accepted:
            DTensor.from_local(whole, mesh, [Shard(0)])
        with sw.profile() as refused, pytest.raises(ValueError, match="leave a hole"):
            DTensor.from_local(askew, mesh, [Shard(0)])
        assert len(accepted.communications) == len(refused.communications) == 1

    run_ranks(4, body)


def test_t4_row_wise_uneven():
    placement = there_and_back(rows(1, 4, 5, 8), Shard(0), shape=(8, 16), stride=(16, 1))
    assert placement == Shard(0, sizes=[1, 3, 1, 3])


def test_t5_table_wise():
    def body(rank):
        for owner in range(4):
            table = TABLE[: 2 + owner]
            wrapper = pieces_of(table, [((0, 0), table.shape)] if rank == owner else [])
            mesh = sw.DeviceMesh("cpu", [owner])
            tensor = DTensor.from_local(
                wrapper, mesh, [Replicate()], run_check=False, shape=table.shape, stride=table.stride()
            )
            assert tensor.shape == table.shape and tensor.stride() == table.stride()
            assert tensor.to_local().numel() == (table.numel() if rank == owner else 0)
            assert_same_pieces(tensor.to_local(), wrapper)
            assert f"rank {owner}" in str(sw.debug.picture(tensor))

    run_ranks(4, body)


def test_t6_columns_in_any_order_and_grids():
    def columns(begin, end):
        return (0, begin), (8, end - begin)

    assert there_and_back([[columns(0, 9)], [columns(9, 16)]], Shard(1)) == Shard(1, sizes=[9, 7])
    several = [[columns(5, 9)], [columns(9, 12)], [columns(12, 13), columns(0, 5)], [columns(13, 16)]]
    assert isinstance(there_and_back(several, Shard(1)), EnumerableShard)
    grid = [[((0, 0), (3, 10))], [((0, 10), (3, 6))], [((3, 10), (5, 6))], [((3, 0), (5, 10))]]
    named = EnumerableShard([ShardMetadata(*box, rank) for rank, boxes in enumerate(grid) for box in boxes])
    assert there_and_back(grid, Shard(0)) == there_and_back(grid, named) == named


def test_t6_an_uneven_table_on_a_submesh_of_two():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [3, 1])
        boxes = {3: [((0, 0), (5, 16))], 1: [((5, 0), (3, 16))]}
        tensor = DTensor.from_local(
            pieces_of(TABLE, boxes.get(rank, [])), mesh, [Shard(0)], shape=(8, 16), stride=(16, 1)
        )
        assert tensor.placements == (Shard(0, sizes=[5, 3]),)
        return sw.debug.picture(tensor)

    assert len(set(run_ranks(4, body))) == 1


def test_t7_the_kind_goes_in_and_out_and_to_gradients():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        boxes = rows(3, 8)[rank]
        table = nn.Parameter(DTensor.from_local(pieces_of(TABLE, boxes), mesh, [Shard(0)]))
        assert isinstance(table.to_local(), LocalShardsWrapper)
        ids = sw.distribute_tensor(torch.tensor([0, 4, 4]), mesh, [Replicate()])
        loss = nn.functional.embedding(ids, table).sum()
        loss.backward()
        assert isinstance(table.grad.to_local(), LocalShardsWrapper)
        assert table.grad.to_local().shard_offsets == table.to_local().shard_offsets
        (again,) = torch.autograd.grad(table.sum(), table)
        assert isinstance(again.to_local(), LocalShardsWrapper)
        for step in (torch.optim.SGD, torch.optim.Adam):
            step([table], lr=0.1).step()
        assert isinstance(table.to_local(), LocalShardsWrapper)

        plain = nn.Parameter(DTensor.from_local(torch.ones(4, 16), mesh, [Shard(0)]))
        plain.sum().backward()
        assert type(plain.to_local()) is torch.Tensor and type(plain.grad.to_local()) is torch.Tensor

    run_ranks(2, body)


def test_t7_a_wrapper_that_wants_gradients_gets_a_wrapper():
    def body(rank):
        wrapper = pieces_of(TABLE, rows(3, 8)[rank]).requires_grad_()
        tensor = DTensor.from_local(wrapper, sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        (tensor * 3).sum().backward()
        assert isinstance(wrapper.grad, LocalShardsWrapper)
        assert torch.equal(wrapper.grad.shards[0], torch.full_like(wrapper.detach().shards[0], 3))

    run_ranks(2, body)


@pytest.mark.parametrize("copied", [through_pickle, through_save, copy.deepcopy], ids=lambda f: f.__name__)
def test_copies_are_equal_and_have_memory_of_their_own(copied):
    wrapper = pieces_of(TABLE, [((0, 0), (2, 16)), ((6, 0), (1, 16))]).requires_grad_()
    result = copied(wrapper)
    assert type(result) is LocalShardsWrapper and result.requires_grad and torch.equal(result, wrapper)
    assert result.detach().shards[0].data_ptr() != wrapper.detach().shards[0].data_ptr()
    none = copied(LocalShardsWrapper([], [], dtype=torch.float64))
    assert none.dtype == torch.float64 and none.shards == []


@pytest.mark.parametrize("copied", [through_pickle, through_save, copy.deepcopy], ids=lambda f: f.__name__)
def test_copies_of_a_dtensor_remember_that_it_was_a_wrapper(copied):
    def body(rank):
        wrapper = pieces_of(TABLE, rows(3, 8)[rank])
        tensor = DTensor.from_local(wrapper, sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        assert isinstance(copied(tensor).to_local(), LocalShardsWrapper)

    run_ranks(2, body)


def test_repr_shows_each_piece_at_its_place():
    text = repr(LocalShardsWrapper([torch.ones(1, 2)], [(3, 0)]))
    assert text == "LocalShardsWrapper({[3, 0]: tensor([[1., 1.]])}, dtype=torch.float32)"


@pytest.mark.parametrize("joined", [torch.cat, torch.stack, torch.hstack])
def test_pieces_of_several_wrappers_are_not_joined(joined):
    wrapper = pieces_of(TABLE, rows(3)[0])
    with pytest.raises(NotImplementedError, match="needs more than one piece at a time"):
        joined([wrapper, wrapper])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_views_of_a_dtensor_made_from_a_wrapper_are_such_too(requires_grad):
    def body(rank):
        wrapper = pieces_of(TABLE, rows(3, 8)[rank])
        tensor = DTensor.from_local(wrapper, sw.init_device_mesh("cpu", (2,)), [Shard(0)]).detach()
        tensor.requires_grad_(requires_grad)
        views = [
            tensor.view(8, 16),
            tensor[:],
            tensor.view_as(tensor),
            tensor.redistribute(placements=tensor.placements),
        ]
        for view in views:
            assert isinstance(view.to_local(), LocalShardsWrapper) and torch.equal(view.full_tensor(), TABLE)
        assert torch.equal(tensor[2:5].full_tensor(), TABLE[2:5])
        if requires_grad:
            sum((view * 2).sum() for view in views).backward()
            assert isinstance(tensor.grad.to_local(), LocalShardsWrapper)
            assert torch.equal(tensor.grad.full_tensor(), torch.full((8, 16), 8.0))

    run_ranks(2, body)
