"""Placements as Python values."""

import copy
import pickle
import pprint

import pytest
import torch
import torch.distributed.tensor as torch_dt
from torch.distributed.tensor.placement_types import _StridedShard

import shardwise as sw
from shardwise import BlockShard, EnumerableShard, Partial, Placement, RaggedShard, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks

PIECES = [ShardMetadata((0, 0), (2, 3), 1), ShardMetadata((2, 0), (1, 3), 0)]
ALL = [
    *(Shard(0), Shard(-1), Shard(1, [1, 0, 3]), Replicate(), Partial(), Partial("max"), EnumerableShard(PIECES)),
    *(BlockShard(0, 1), BlockShard(0, block=3)),
    *(RaggedShard((0, 1), (2, 3, 0)), RaggedShard((0,), (2, 3, 0)), RaggedShard((0,), (2, 3, 1))),
]


@pytest.mark.parametrize("placement", ALL, ids=repr)
def test_a_placement_is_rebuilt_from_its_repr_and_from_its_pickle(placement):
    text = repr(placement).replace("(sum)", "('sum')").replace("(max)", "('max')")
    for same in (eval(text, vars(sw)), pickle.loads(pickle.dumps(placement)), copy.deepcopy(placement)):
        assert type(same) is type(placement)
        assert same == placement and hash(same) == hash(placement)


def test_placements_of_different_meaning_are_different():
    assert len(set(ALL)) == len(ALL)
    assert all(a != b for i, a in enumerate(ALL) for b in ALL[:i])
    assert Shard(0) != 0 and Replicate() != "Replicate()"


# placement, is_shard(), is_shard(0), is_replicate(), is_partial(), is_partial("max")
@pytest.mark.parametrize(
    ("placement", "answers"),
    [
        (Shard(0), (True, True, False, False, False)),
        (Shard(1), (True, False, False, False, False)),
        (BlockShard(0, 4), (True, True, False, False, False)),
        (Replicate(), (False, False, True, False, False)),
        (Partial(), (False, False, False, True, False)),
        (Partial("max"), (False, False, False, True, True)),
        (EnumerableShard(PIECES), (False, False, False, False, False)),
        (RaggedShard((0,), (1, 2)), (False, False, False, False, False)),
    ],
    ids=repr,
)
def test_a_placement_knows_its_kind(placement, answers):
    kinds = (placement.is_shard(), placement.is_shard(0), placement.is_replicate(), placement.is_partial())
    assert (*kinds, placement.is_partial("max")) == answers
    assert isinstance(placement, Placement)


def test_attributes_are_those_of_the_constructor():
    assert Shard(2).dim == 2 and Shard(2).sizes is None
    assert Shard(0, sizes=[1, 3]).sizes == (1, 3)
    assert Partial().reduce_op == "sum" and Partial("avg").reduce_op == "avg"
    assert Partial("prod") == Partial("product")
    assert EnumerableShard(PIECES).shards == sorted(PIECES, key=lambda piece: piece.rank)
    assert PIECES[0].offsets == (0, 0) and PIECES[0].sizes == (2, 3) and PIECES[0].rank == 1


def test_placements_come_back_from_cpp_as_a_tuple_of_their_classes():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 1))
        placements = sw.zeros(5, 2, device_mesh=mesh, placements=[Shard(-2), Replicate()]).placements
        assert placements == (Shard(0), Replicate())
        assert isinstance(placements[0], Shard) and isinstance(placements[1], Replicate)

    run_ranks(2, body)


def test_torchs_placements_are_accepted():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 1, 1))
        placements = (torch_dt.Shard(1), torch_dt.Replicate(), torch_dt.Partial("sum"))
        tensor = sw.DTensor.from_local(torch.ones(2, 3), mesh, placements)
        assert tensor.placements == (Shard(1), Replicate(), Partial())

    run_ranks(2, body)


# ours, torch's
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Shard(0), torch_dt.Shard(0)),
        (Shard(-1), torch_dt.Shard(-1)),
        (Replicate(), torch_dt.Replicate()),
        (Partial(), torch_dt.Partial()),
        (Partial("max"), torch_dt.Partial("max")),
        (Shard(2), _StridedShard(2, split_factor=1)),
    ],
    ids=repr,
)
def test_a_placement_equals_torchs_and_hashes_alike(ours, theirs):
    assert ours == theirs
    assert hash(ours) == hash(theirs) or isinstance(theirs, _StridedShard)
    assert [ours] == [theirs] and (ours, 1) == (theirs, 1)


def test_placements_that_differ_from_torchs():
    assert Shard(0) != torch_dt.Shard(1) and Shard(0) != torch_dt.Replicate() and Partial() != torch_dt.Partial("avg")
    assert Shard(0, sizes=[1, 2]) != torch_dt.Shard(0) and Shard(0) != _StridedShard(0, split_factor=2)


def test_torchs_strided_shard_is_accepted():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        tensor = sw.distribute_tensor(torch.ones(4), mesh, [_StridedShard(0, split_factor=1)])
        assert tensor.placements == (Shard(0),)
        of_halves = sw.distribute_tensor(torch.arange(4), mesh, [_StridedShard(0, split_factor=2)])
        assert of_halves.placements == (_StridedShard(0, split_factor=2),) and of_halves.to_local().tolist() == [
            rank,
            rank + 2,
        ]
        with pytest.raises(TypeError, match="is no placement"):
            sw.distribute_tensor(torch.ones(4), mesh, [0])

    run_ranks(2, body)


def test_what_torch_tells_of_splits_and_sums():
    for length, n_parts in ((10, 4), (2, 3), (0, 2), (6, 3)):
        parts = [Shard.local_shard_size_and_offset(length, n_parts, part) for part in range(n_parts)]
        assert parts == [torch_dt.Shard.local_shard_size_and_offset(length, n_parts, part) for part in range(n_parts)]
    assert Shard.local_shard_size_and_offset(2**50, 2**40, 3) == (2**10, 3 * 2**10)  # not by a list of all parts
    assert getattr(torch_dt.Partial, "ALL_REDUCE_OPS", Partial.ALL_REDUCE_OPS) == Partial.ALL_REDUCE_OPS  # not in 2.11
    assert Partial.LINEAR_REDUCE_OPS == torch_dt.Partial.LINEAR_REDUCE_OPS
    with pytest.raises(IndexError, match="part 4 of 4 does not exist"):
        Shard.local_shard_size_and_offset(10, 4, 4)


@pytest.mark.parametrize("placement", [Shard(0), Shard(-1), Shard(1, sizes=[0, 3, 1])], ids=repr)
@pytest.mark.parametrize("with_padding", [True, False])
def test_parts_for_programs_that_send_them(placement, with_padding):
    x = torch.arange(20.0).view(5, 4)
    dim = placement.dim % 2
    sizes = placement.sizes or [Shard.local_shard_size_and_offset(x.size(dim), 3, rank)[0] for rank in range(3)]
    parts, pads = placement._split_tensor(x, 3, with_padding=with_padding)
    assert pads == ([max(sizes) - size for size in sizes] if with_padding else [])
    for rank, (part, dense) in enumerate(zip(parts, x.split(list(sizes), dim), strict=True)):
        assert torch.equal(part.narrow(dim, 0, sizes[rank]), dense) and part.is_contiguous()
        assert (
            part.size(dim) == (max(sizes) if with_padding else sizes[rank])
            and not part.narrow(dim, sizes[rank], part.size(dim) - sizes[rank]).any()
        )
        assert torch.equal(placement._select_split_tensor(x, 3, rank, with_padding=with_padding), part)
    kept = Shard(0)._select_split_tensor(x, 2, 1, with_padding=False, contiguous=False, clone=False)
    assert kept.data_ptr() == x[3:].data_ptr()
    with pytest.raises(IndexError, match="Use a dim in"):
        Shard(2)._split_tensor(x, 3)
    with pytest.raises(ValueError, match="has extents for 2 ranks"):
        Shard(0, sizes=[1, 4])._split_tensor(x, 3)
    with pytest.raises(IndexError, match="part 3 of 3 does not exist"):
        Shard(0)._select_split_tensor(x, 3, 3)


def test_graphs_name_placements_in_code():
    pieces = [ShardMetadata((i, 0), (1, 2), i % 2) for i in range(9)]
    kinds = [Shard(1), Shard(0, sizes=[1, 2]), Replicate(), EnumerableShard(pieces), RaggedShard((0, 1), (1, 2))]
    for placement in (*kinds, *(Partial(op) for op in ("sum", "avg", "max", "min", "product"))):
        text, names = placement.__fx_repr__()
        assert eval(text, dict(names)) == placement


def test_pprint_breaks_the_lines_of_placements():
    assert pprint.pformat([Shard(0), Shard(1)], width=5) == "[Shard(0),\n Shard(1)]"
