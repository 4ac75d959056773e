"""torch's _StridedShard: Shards that split a dim in another order than their mesh dims stand in."""

import copy
import pickle
from itertools import pairwise, product

import pytest
import torch

import shardwise as sw
from shardwise import _C, Partial, Replicate, Shard
from shardwise._dtensor_spec import DTensorSpec, TensorMeta
from shardwise._utils import compute_local_shape_and_global_offset
from shardwise.interop import torch_tensors
from shardwise.interop.torch_tensors import Split, check_strided, torchs_indices
from shardwise.placement_types import _StridedShard
from shardwise.testing import run_ranks


def strided(dim, split_factor):
    return _StridedShard(dim, split_factor=split_factor)


TWO = (strided(0, 2), Shard(0))  # on (2, 2): mesh dim 1 splits first

# mesh, placements, mesh dims in the order of their splits
CASES = [
    ((2, 2), TWO, [1, 0]),
    ((2, 2), (strided(-1, 2), Shard(1)), [1, 0]),
    ((3, 2), TWO, [1, 0]),
    ((2, 3), (strided(1, 3), Shard(1)), [1, 0]),
    ((1, 4), (strided(0, 4), Shard(0)), [1, 0]),
    ((2, 2, 2), (Replicate(), *TWO), [0, 2, 1]),
    ((2, 2, 2), (strided(0, 2), Replicate(), Shard(0)), [2, 1, 0]),
    ((2, 2, 2), (strided(0, 4), strided(0, 2), Shard(0)), [2, 1, 0]),
    ((2, 2, 2), (strided(0, 2), strided(0, 2), Shard(0)), [2, 0, 1]),
    ((2, 2, 2), (strided(0, 2), Shard(1), Shard(0)), [2, 1, 0]),
    ((2, 2, 2), (Shard(0), *TWO), [0, 2, 1]),
]
SHAPES = [(8, 16), (24, 24), (7, 5), (5, 9), (1, 3), (0, 4)]


def dense(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape) % 23 - 5


def part_at(tensor, mesh_shape, placements, order, coordinate):
    """What a rank has: the mesh dims split one after the other, as torch.chunk does."""
    for m in order:
        dim = getattr(placements[m], "dim", None)
        if dim is not None:
            length = tensor.size(dim)
            step = -(-length // mesh_shape[m])
            begin, end = (min(step * place, length) for place in (coordinate[m], coordinate[m] + 1))
            tensor = tensor.narrow(dim, begin, end - begin)
    return tensor


@pytest.mark.parametrize(("mesh_shape", "placements", "order"), CASES, ids=str)
def test_each_rank_has_its_part(mesh_shape, placements, order):
    n_ranks = torch.Size(mesh_shape).numel()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", mesh_shape)
        written = tuple(strided(p.dim % 2, p.split_factor) if hasattr(p, "split_factor") else p for p in placements)
        for shape in SHAPES:
            x = dense(shape)
            own = part_at(x, mesh_shape, placements, order, mesh.get_coordinate())
            tensor = sw.distribute_tensor(x, mesh, placements)
            if mesh_shape[0] > 1 or len(mesh_shape) > 2:
                assert tensor.placements == written, tensor.placements
            assert tensor.device_mesh == mesh and torch.equal(tensor.to_local(), own)
            assert torch.equal(tensor.full_tensor(), x)

            size, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
            assert size == tuple(own.shape)
            if own.numel():
                assert x[offset] == own.flatten()[0]

            given = sw.DTensor.from_local(own, mesh, placements, shape=shape, stride=x.stride())
            spec = DTensorSpec(mesh, placements, TensorMeta(x.size(), x.stride(), x.dtype))
            assert torch.equal(given.full_tensor(), x) and torch.equal(sw.DTensor(own, spec).full_tensor(), x)

            for others in product((Shard(0), Shard(1), Replicate()), repeat=len(mesh_shape)):
                there = tensor.redistribute(placements=others)
                assert there.device_mesh == mesh and there.placements == others
                assert torch.equal(there.to_local(), sw.distribute_tensor(x, mesh, others).to_local())
                assert torch.equal(there.redistribute(mesh, placements).to_local(), own)

    run_ranks(n_ranks, body)


def test_even_parts_are_those_of_torch():
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as torchs

    def body(rank):
        for mesh_shape, placements, _ in CASES:
            if torch.Size(mesh_shape).numel() != 8 or any(getattr(p, "dim", 0) < 0 for p in placements):
                continue
            mesh = sw.init_device_mesh("cpu", mesh_shape)
            theirs = [torch.distributed.tensor.Shard(p.dim) if isinstance(p, Shard) else p for p in placements]
            theirs = [torch.distributed.tensor.Replicate() if isinstance(p, Replicate) else p for p in theirs]
            ours = compute_local_shape_and_global_offset((16, 8), mesh, placements)
            assert ours == torchs((16, 8), mesh_shape, list(mesh.get_coordinate()), theirs)
            assert ours == compute_local_shape_and_global_offset((16, 8), mesh, theirs)

    import torch.distributed.tensor

    run_ranks(8, body)


def test_conversions_refuse_what_torch_deals_otherwise():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4, 2))
        check_strided("to_torch", (8, 3), mesh, TWO)
        check_strided("to_torch", (10, 3), mesh, (Shard(0), Shard(0)))
        with pytest.raises(ValueError, match="do not split dim 0 of 9 evenly"):
            check_strided("to_torch", (9, 3), mesh, TWO)

    run_ranks(8, body)


def by_index(length, splits, coordinate):
    """What torchs_indices() gives, index by index."""

    def chunks(indices, n_parts):
        places = [Shard.local_shard_size_and_offset(len(indices), n_parts, part) for part in range(n_parts)]
        return [indices[offset : offset + size] for size, offset in places]

    held = list(range(length))
    for mesh_dim, extent, factor in splits:
        held = [index for part in chunks(held, factor) for index in chunks(part, extent)[coordinate[mesh_dim]]]
    return held


@pytest.mark.parametrize("extents", [(2, 2), (4, 3), (3, 4), (1, 4), (2, 3, 2)], ids=str)
def test_intervals_hold_the_indices_that_torch_deals(extents):
    for factors in product((1, 2, 3, 6), repeat=len(extents)):
        splits = [Split(*each) for each in zip(range(len(extents)), extents, factors)]
        for length, coordinate in product(range(41), product(*map(range, extents))):
            held = torchs_indices(length, splits, coordinate)
            dealt = [index for begin, end in held for index in range(begin, end)]
            assert dealt == by_index(length, splits, coordinate), (length, splits, coordinate)
            gaps = [begin > end for (_, end), (begin, _) in pairwise(held)]
            assert all(gaps) or dealt != sorted(dealt), held  # no more intervals than it needs


def test_conversions_refuse_what_index_by_index_is_dealt_otherwise():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4, 2))
        for placements in (TWO, (strided(-2, 2), Shard(-2))):
            for length in range(41):
                splits = [Split(0, 4, 2), Split(1, 2, 1)]
                ours = sw.Layout((length, 3), mesh, placements)
                differs = False
                for coordinate in product(range(4), range(2)):
                    (begin, _), (size, _) = ours.boxes(int(mesh.mesh[coordinate]))[0]
                    differs |= by_index(length, splits, coordinate) != list(range(begin, begin + size))
                refused = False
                try:
                    check_strided("to_torch", (length, 3), mesh, placements)
                except ValueError as error:
                    refused = f"do not split dim 0 of {length} evenly" in str(error)
                assert refused == differs, (length, placements)

    run_ranks(8, body)


def test_many_rows_are_checked_by_a_few_intervals(monkeypatch):
    """Not index by index: that took 19 s and 913 MiB for 12,000,000 rows."""
    n_rows = 100_000_008
    splits = [Split(0, 4, 3), Split(1, 3, 1)]
    for length in (n_rows, n_rows + 1, n_rows + 7):
        for coordinate in product(range(4), range(3)):
            assert 1 <= len(torchs_indices(length, splits, coordinate)) <= 3
    asked = []
    monkeypatch.setattr(torch_tensors, "torchs_indices", lambda *call: asked.append(call) or torchs_indices(*call))

    def body(rank):
        mesh, placements = sw.init_device_mesh("cpu", (4, 3)), (strided(0, 3), Shard(0))
        if rank == 0:
            check_strided("to_torch", (n_rows, 2), mesh, placements)
            assert asked == []  # parts of one size
            with pytest.raises(ValueError, match=f"do not split dim 0 of {n_rows + 1} evenly"):
                check_strided("to_torch", (n_rows + 1, 2), mesh, placements)
            assert 0 < len(asked) <= 12

    run_ranks(12, body)


def test_operators_optimizers_and_gradients():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        for shape in [(8, 4), (7, 3)]:
            x, other = dense(shape), dense(shape).flip(0)
            weight = torch.nn.Parameter(sw.distribute_tensor(x, mesh, TWO))
            dense_weight = torch.nn.Parameter(x.clone())
            for placements in ([Shard(0), Shard(0)], [Shard(0), Replicate()], [Partial(), Shard(1)], TWO):
                if placements[0].is_partial():
                    right = sw.distribute_tensor(other, mesh, [Replicate(), Shard(1)]).redistribute(mesh, placements)
                else:
                    right = sw.distribute_tensor(other, mesh, placements)
                for result, expected in (
                    (weight + right, dense_weight + other),
                    (right * weight, other * dense_weight),
                    (weight @ right.t(), dense_weight @ other.t()),
                    (torch.cat([right, weight]), torch.cat([other, dense_weight])),
                    (weight.cumsum(0) + right.sum(), dense_weight.cumsum(0) + other.sum()),
                ):
                    assert torch.equal(result.full_tensor(), expected)
            optimizers = [torch.optim.AdamW([p], lr=0.1) for p in (weight, dense_weight)]
            for p in (weight, dense_weight):
                (
                    (p * p) @ torch.ones(shape[1], dtype=p.dtype) if p is dense_weight else (p * p).sum(1)
                ).sum().backward()
            assert weight.grad.placements == TWO and weight.grad.device_mesh == mesh
            assert torch.equal(weight.grad.full_tensor(), dense_weight.grad)
            norms = [torch.nn.utils.clip_grad_norm_([p], 1.0) for p in (weight, dense_weight)]
            torch.testing.assert_close(norms[0].full_tensor(), norms[1])
            for optimizer in optimizers:
                optimizer.step()
            assert weight.placements == TWO and weight.device_mesh == mesh
            torch.testing.assert_close(weight.full_tensor(), dense_weight)

    run_ranks(4, body)


def test_gradients_of_pieces_copies_and_pickles():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        x = dense((7, 3))
        leaf = sw.distribute_tensor(x, mesh, TWO).requires_grad_()
        (leaf.to_local() ** 2).sum().backward()
        assert leaf.grad.placements == TWO and torch.equal(leaf.grad.full_tensor(), 2 * x)
        leaf.grad = None
        (
            leaf.redistribute(placements=[Replicate(), Shard(1)]).to_local(grad_placements=[Partial(), Shard(1)])
        ).sum().backward()
        assert torch.equal(leaf.grad.full_tensor(), torch.full_like(x, 2))
        for again in (copy.deepcopy(leaf.detach()), pickle.loads(pickle.dumps(leaf.detach()))):
            assert again.placements == TWO and again.device_mesh == mesh and torch.equal(again.full_tensor(), x)
        filled = sw.full((7, 3), 2.0, device_mesh=mesh, placements=TWO)
        assert filled.placements == TWO and filled.to_local().shape == leaf.to_local().shape
        assert sw.rand(7, 3, device_mesh=mesh, placements=TWO).to("meta").placements == TWO
        many = sw.redistribute_many([leaf.detach()], [Replicate(), Replicate()])
        assert torch.equal(many[0].to_local(), x)
        plan = sw.plan_redistribution(leaf, [Shard(0), Shard(0)])
        layout = sw.Layout((7, 3), mesh, TWO)
        assert sum(plan.summary().received for _ in [0]) > 0 and layout.boxes(rank)[0][1][0] == leaf.to_local().size(0)
        spec = leaf._spec
        assert spec.num_shards == 4 and spec.num_shards_map == [4, 1] and spec.is_sharded()

    run_ranks(4, body)


def test_a_mesh_of_the_program_in_the_same_order_stays_another():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        turned = sw.DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("tp", "dp"))
        x = dense((8, 2))
        on_turned = sw.distribute_tensor(x, turned, [Shard(0), Shard(0)])
        tensor = sw.distribute_tensor(x, mesh, TWO)
        assert torch.equal(on_turned.to_local(), tensor.to_local())
        assert on_turned.device_mesh == turned and on_turned.placements == (Shard(0), Shard(0))
        with pytest.raises(RuntimeError, match="different meshes"):
            on_turned + tensor
        sliced = tensor[1:]  # explicit sizes: known by the order of the splits
        assert torch.equal(sliced.full_tensor(), x[1:]) and "1st: tp=2" in repr(sliced.device_mesh)

    run_ranks(4, body)


# mesh, placements, the error's words
ERRORS = [
    ((2, 2), (strided(0, 3), Shard(0)), r"no order .* \[_StridedShard\(0, split_factor=3\), Shard\(0\)\]"),
    ((2, 2), (strided(0, 2), strided(1, 2)), "several boxes per rank"),
    ((2, 2), (strided(0, 2), Shard(0, sizes=[1, 7])), "explicit sizes"),
    ((2, 2), (strided(0, 2),), "must have the same length"),
]


@pytest.mark.parametrize(("mesh_shape", "placements", "words"), ERRORS, ids=str)
def test_splits_that_no_order_gives_are_errors(mesh_shape, placements, words):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", mesh_shape)
        x = dense((8, 2))
        for call in (
            lambda: sw.distribute_tensor(x, mesh, placements),
            lambda: sw.DTensor.from_local(x, mesh, placements),
            lambda: sw.zeros(8, 2, device_mesh=mesh, placements=placements),
            lambda: sw.distribute_tensor(x, mesh, [Replicate()] * len(mesh_shape)).redistribute(mesh, placements),
            lambda: sw.Layout((8, 2), mesh, placements),
        ):
            with pytest.raises(ValueError, match=words):
                call()

    run_ranks(torch.Size(mesh_shape).numel(), body)


# On one mesh dim, a rank has a piece of each of the parts.

ONE = [((4,), 0, 2), ((4,), -1, 2), ((3,), 0, 4), ((2,), 1, 3), ((1,), 0, 2)]
ONE_SHAPES = [(8, 16), (24, 6), (7, 5), (5, 9), (1, 3), (0, 4), (3, 0)]


def pieces_at(tensor, dim, factor, n_parts, part):
    """What a rank has: its chunk of each chunk."""

    def chunk(tensor, n, index):
        size, offset = Shard.local_shard_size_and_offset(tensor.size(dim), n, index)
        return tensor.narrow(dim, offset, size)

    return torch.cat([chunk(chunk(tensor, factor, i), n_parts, part) for i in range(factor)], dim)


@pytest.mark.parametrize(("mesh_shape", "dim", "factor"), ONE, ids=str)
def test_each_rank_has_a_piece_of_each_part(mesh_shape, dim, factor):
    n_ranks = mesh_shape[0]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", mesh_shape)
        placements = (strided(dim % 2, factor),)
        for shape in ONE_SHAPES:
            x = dense(shape)
            own = pieces_at(x, dim % 2, factor, n_ranks, rank)
            tensor = sw.distribute_tensor(x, mesh, [strided(dim, factor)])
            assert tensor.placements == placements and torch.equal(tensor.to_local(), own)
            assert torch.equal(tensor.full_tensor(), x) and tensor.stride() == x.stride()
            size, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
            assert size == tuple(own.shape)
            if own.numel():
                assert x[offset] == own.flatten()[0]
            for local in (own, own.t().contiguous().t()):  # any strides
                given = sw.DTensor.from_local(local, mesh, placements, shape=shape, stride=x.stride())
                assert torch.equal(given.full_tensor(), x)
                assert not own.numel() or given.to_local().data_ptr() == local.data_ptr()
            for other in (Shard(0), Shard(1), Replicate(), strided(0, 2), strided(1, 3)):
                there = tensor.redistribute(placements=[other])
                assert there.placements == (other,)
                assert torch.equal(there.to_local(), sw.distribute_tensor(x, mesh, [other]).to_local())
                assert torch.equal(there.redistribute(placements=placements).to_local(), own)
            for again in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
                assert again.placements == placements and torch.equal(again.to_local(), own)

    run_ranks(n_ranks, body)


def test_an_even_local_tensor_tells_the_shape():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = dense((8, 3))
        tensor = sw.DTensor.from_local(pieces_at(x, 0, 2, 2, rank), mesh, [strided(0, 2)])
        assert tensor.shape == (8, 3) and torch.equal(tensor.full_tensor(), x)
        with pytest.raises(ValueError, match=r"gives a piece of shape \[3, 3\], but .* Give that part, and shape="):
            sw.DTensor.from_local(torch.ones(3, 3), mesh, [strided(0, 2)], shape=(8, 3))

    run_ranks(2, body)


def sends_nothing(call):
    with sw.CommDebugMode() as comm:
        result = call()
    assert comm.get_total_counts() == 0, comm.get_comm_counts()
    return result


def test_layers_of_packed_weights_keep_them():
    """Gate and up projections in one weight: each rank has rows of both."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x, up, down = dense((3, 4)), dense((12, 4)), dense((5, 12))
        weight = torch.nn.Parameter(sw.distribute_tensor(up, mesh, [strided(0, 2)]))
        second = torch.nn.Parameter(sw.distribute_tensor(down, mesh, [strided(1, 2)]))
        bias = sw.distribute_tensor(dense((12,)), mesh, [strided(0, 2)])
        given = sw.distribute_tensor(x, mesh, [Replicate()])
        hidden = sends_nothing(lambda: torch.nn.functional.linear(given, weight, bias).square())
        assert hidden.placements == (strided(1, 2),)
        out = sends_nothing(lambda: torch.nn.functional.linear(hidden, second))
        assert out.placements == (Partial(),)
        leaves = [torch.nn.Parameter(each.clone()) for each in (up, down)]
        expected = torch.nn.functional.linear(
            torch.nn.functional.linear(x, leaves[0], dense((12,))).square(), leaves[1]
        )
        assert torch.equal(out.full_tensor(), expected)
        out.sum().backward()
        expected.sum().backward()
        for parameter, leaf in zip((weight, second), leaves, strict=True):
            assert parameter.grad.placements == parameter.placements
            assert torch.equal(parameter.grad.full_tensor(), leaf.grad)
        for optimizer in (torch.optim.AdamW([weight, second], 0.1), torch.optim.AdamW(leaves, 0.1)):
            optimizer.step()
        torch.testing.assert_close(weight.full_tensor(), leaves[0])
        assert weight.placements == (strided(0, 2),)
        mixed = weight.detach() + sw.distribute_tensor(up, mesh, [Shard(0)])
        assert torch.equal(mixed.full_tensor(), weight.detach().full_tensor() + up)
        assert sends_nothing(lambda: weight.detach().t()).placements == (strided(1, 2),)

    run_ranks(2, body)


def test_flattened_dims_send_nothing_and_come_back():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for shape, dim, flat, placement in (
            ((4, 6), 1, (24,), strided(0, 4)),
            ((4, 5), 1, (20,), strided(0, 4)),
            ((3, 4, 6), 1, (12, 6), strided(0, 3)),
            ((3, 4, 6), 2, (3, 24), strided(1, 4)),
            ((3, 4, 6), 1, (72,), strided(0, 3)),
        ):
            x = dense(shape)
            tensor = sw.distribute_tensor(x, mesh, [Shard(dim)]).requires_grad_()
            there = sends_nothing(lambda: tensor.view(flat))  # noqa: B023
            assert there.placements == (placement,) and torch.equal(there.full_tensor(), x.view(flat))
            back = sends_nothing(lambda: (there * 2).view(shape))  # noqa: B023
            assert back.placements == (Shard(dim),) and torch.equal(back.full_tensor(), 2 * x)
            back.square().sum().backward()
            assert tensor.grad.placements == (Shard(dim),) and torch.equal(tensor.grad.full_tensor(), 8 * x)
            with torch.no_grad():
                tensor.view(flat).zero_()  # a view, of the same memory
            assert tensor.detach().full_tensor().count_nonzero() == 0
        for shape, dim, flat in (((3, 5, 2), 1, (30,)), ((2000, 4), 1, (8000,)), ((4, 6), 0, (24,))):
            x = dense(shape)
            there = sw.distribute_tensor(x, mesh, [Shard(dim)]).reshape(flat)
            assert torch.equal(there.full_tensor(), x.reshape(flat))
            assert not hasattr(there.placements[0], "split_factor")

    run_ranks(2, body)


def test_written_expanded_and_copied_tensors():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = dense((8, 4))
        rows, of_halves = (sw.distribute_tensor(x, mesh, [each]) for each in (Shard(0), strided(0, 2)))
        for written, other in ((rows.clone(), of_halves), (of_halves.clone(), rows)):
            before = written.placements
            assert written.add_(other) is written and written.placements == before
            assert torch.equal(written.full_tensor(), 2 * x)
        wide = sw.distribute_tensor(dense((1, 8)), mesh, [strided(1, 2)]).expand(3, 8)
        assert wide.placements == (strided(1, 2),) and wide.stride() == (0, 1)
        assert sends_nothing(lambda: wide + wide).placements == (strided(1, 2),)
        assert torch.equal((wide + wide).full_tensor(), 2 * dense((1, 8)).expand(3, 8))
        # The local tensor has gaps, so that its flattened view is a copy, which writes go through.
        part = dense((4, 6))[:, 3 * rank : 3 * rank + 3]
        columns = sw.DTensor.from_local(dense((4, 6))[:, 3 * rank : 3 * rank + 3], mesh, [Shard(1)])
        flat = sends_nothing(lambda: columns.view(24))
        flat.add_(1)
        assert torch.equal(columns.to_local(), part + 1) and torch.equal(
            flat.full_tensor(), (dense((4, 6)) + 1).view(24)
        )
        columns.zero_()
        assert flat.full_tensor().count_nonzero() == 0
        on_one = sw.init_device_mesh("cpu", (2, 1))
        flat = sw.distribute_tensor(x, on_one, [Replicate(), Shard(1)]).view(32)
        assert flat.placements == (Replicate(), Shard(0)) and torch.equal(flat.full_tensor(), x.view(32))

    run_ranks(2, body)


def test_parallel_layers_of_packed_weights():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x, up, down = dense((3, 4)), dense((12, 4)), dense((5, 12))
        of_up = sw.distribute_tensor(up, mesh, [strided(0, 2)])
        hidden = _C.column_parallel_linear(x, of_up, gather_output=False)
        assert torch.equal(hidden, pieces_at(x @ up.t(), 1, 2, 2, rank))
        of_down = sw.distribute_tensor(down, mesh, [strided(1, 2)])
        out = _C.row_parallel_linear(hidden.square(), of_down, input_is_parallel=True)
        assert torch.equal(out, (x @ up.t()).square() @ down.t())

    run_ranks(2, body)


def test_tables_of_strided_rows():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(dense((8, 3)), mesh, [strided(0, 2)]).requires_grad_()
        ids = torch.tensor([1, 6, 1])
        found = torch.nn.functional.embedding(sw.distribute_tensor(ids, mesh, [Replicate()]), table)
        assert torch.equal(found.full_tensor(), dense((8, 3))[ids])
        found.sum().backward()
        assert torch.equal(table.grad.full_tensor()[1], torch.full((3,), 2.0, dtype=torch.float64))

    run_ranks(2, body)
