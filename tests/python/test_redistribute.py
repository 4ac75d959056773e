"""Moving a tensor from any layout to any other."""

import itertools

import pytest
import torch

import shardwise as sw
from shardwise import CommDebugMode, EnumerableShard, Partial, Replicate, Shard
from shardwise import ShardMetadata as Piece
from shardwise.testing import run_ranks

R, S0, S1 = Replicate(), Shard(0), Shard(1)
DENSE = torch.arange(35.0, dtype=torch.float64).view(7, 5)
WEIGHTS = DENSE.flip(0) - 3
PIECES = [Piece((0, 0), (7, 1), 2), Piece((0, 1), (4, 4), 0), Piece((4, 1), (3, 4), 2)]

# n_ranks, mesh shape, layouts of a 7x5 tensor on it
MESHES = [
    (
        3,
        (3,),
        [
            [Shard(0)],
            [Shard(1)],
            [Shard(0, [5, 0, 2])],
            [Replicate()],
            [Partial()],
            [Partial("max")],
            [EnumerableShard(PIECES)],
        ],
    ),
    (
        4,
        (2, 2),
        [
            [Shard(0), Shard(1)],
            [Shard(0), Shard(0)],
            [Shard(1), Shard(0, [6, 1])],
            [Replicate(), Shard(0)],
            [Partial(), Replicate()],
            [Partial(), Shard(1)],
        ],
    ),
]
PAIRS = [(n, shape, a, b) for n, shape, layouts in MESHES for a, b in itertools.product(layouts, layouts)]


@pytest.mark.parametrize(("n_ranks", "shape", "source", "target"), PAIRS, ids=str)
def test_values_and_gradients_survive_any_move_there_and_back(n_ranks, shape, source, target):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        tensor = sw.distribute_tensor(DENSE, mesh, source).requires_grad_()
        moved = tensor.redistribute(placements=target)
        assert type(moved) is sw.DTensor and list(moved.placements) == target
        assert torch.equal(moved.full_tensor(), DENSE)
        back = moved.redistribute(mesh, source)
        assert torch.equal(back.full_tensor(), DENSE)
        (back.full_tensor() * WEIGHTS).sum().backward()
        assert torch.equal(tensor.grad.full_tensor(), WEIGHTS)

    run_ranks(n_ranks, body)


# source, target, bytes that rank 0 of 4 receives for 8 float32
@pytest.mark.parametrize(
    ("source", "target", "n_bytes"),
    [
        (Shard(0), Shard(0), 0),
        (Replicate(), Shard(0), 0),
        (Shard(0), Replicate(), 24),
        (Shard(0), Shard(0, [0, 0, 0, 8]), 0),
        (Shard(0), Shard(0, [4, 4, 0, 0]), 8),
        (Partial(), Shard(0), 24),
    ],
    ids=str,
)
def test_a_rank_receives_what_it_does_not_hold_and_no_more(source, target, n_bytes):
    def body(rank):
        tensor = sw.ones(8, device_mesh=sw.init_device_mesh("cpu", (4,)), placements=[Replicate()])
        tensor = tensor.redistribute(placements=[source])
        with CommDebugMode() as comm:
            tensor.redistribute(placements=[target])
        return comm.bytes_received()

    assert run_ranks(4, body)[0] == n_bytes


def test_a_move_to_the_same_placements_shares_memory():
    def body(rank):
        tensor = sw.ones(8, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        assert tensor.redistribute(placements=[Shard(-1)]).to_local().data_ptr() == tensor.to_local().data_ptr()

    run_ranks(2, body)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("placements", [[S0], [R], [Partial()], [Shard(0, [1, 6])]], ids=str)
def test_a_move_to_the_same_placements_on_another_mesh_shares_no_memory(placements, async_op):
    """No view spans two meshes: a write to one tensor is not seen in the other, and autograd need not know of it."""

    def body(rank):
        here, there = sw.init_device_mesh("cpu", (2,)), sw.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        source = sw.distribute_tensor(DENSE, here, placements)
        moved = source.redistribute(there, placements, async_op=async_op)
        source.zero_()
        assert torch.equal(moved.full_tensor(), DENSE)
        moved.mul_(3)
        assert (source.full_tensor() == 0).all()
        leaf = sw.distribute_tensor(DENSE, here, [S0]).requires_grad_()
        twice = leaf * 2
        squares = twice.redistribute(there, [S0], async_op=async_op).square().sum()
        twice.zero_()
        squares.backward()
        assert torch.equal(leaf.grad.full_tensor(), 8 * DENSE)

    run_ranks(2, body)


@pytest.mark.parametrize("target", [[S0], [S1], [R], [Shard(0, [0, 7, 0, 0])]], ids=str)
@pytest.mark.parametrize("source", [[S0], [S1], [R], [Partial()], [Partial("max")]], ids=str)
def test_an_async_move_is_waited_for_at_its_first_use(source, target):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        first, second = (
            sw.distribute_tensor(DENSE + i, mesh, source)
            .requires_grad_()
            .redistribute(placements=target, async_op=True)
            for i in range(2)
        )
        del first  # unused: its messages still do not mix with the others
        assert torch.equal(second.to_local(), sw.distribute_tensor(DENSE + 1, mesh, target).to_local())
        third = sw.distribute_tensor(DENSE, mesh, source).requires_grad_()
        moved = third.redistribute(placements=target, async_op=True)
        (moved * 2 * sw.distribute_tensor(WEIGHTS, mesh, [R])).sum().backward()
        assert torch.equal(third.grad.full_tensor(), 2 * WEIGHTS)

    run_ranks(4, body)


# ranks of the program, source mesh and placements, target mesh and placements
BETWEEN = [
    (4, [0, 1, 2, 3], [S0], [3, 1, 0, 2], [S0]),  # another order
    (4, [0, 1, 2, 3], [S0], [[0, 1], [2, 3]], [S1, S0]),  # another shape
    (4, [[0, 1], [2, 3]], [S0, Partial()], [0, 1, 2, 3], [S1]),
    (4, [0, 1, 2, 3], [Partial()], [[3, 2], [1, 0]], [R, S0]),
    (4, [0, 1, 2, 3], [S0], [1, 3], [S1]),  # a subset
    (4, [2], [R], [0, 1, 2, 3], [Shard(0, [1, 0, 5, 1])]),  # a superset
    (4, [0, 1], [S0], [2, 3], [S0]),  # disjoint
    (4, [0, 1], [Partial("max")], [3, 2], [R]),
    (4, [0, 1, 2], [S0], [3], [EnumerableShard([Piece((0, 0), (7, 2), 3), Piece((0, 2), (7, 3), 3)])]),
    (4, [0, 1], [R], [2, 3], [Partial()]),
    (3, [0, 1, 2], [EnumerableShard(PIECES)], [2, 0], [S0]),
]


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(("n_ranks", "ranks", "source", "others", "target"), BETWEEN, ids=str)
def test_values_and_gradients_move_between_meshes(n_ranks, ranks, source, others, target, async_op):
    def body(rank):
        here, there = sw.DeviceMesh("cpu", ranks), sw.DeviceMesh("cpu", others)
        tensor = sw.distribute_tensor(DENSE, here, source, src_data_rank=None).requires_grad_()
        moved = tensor.redistribute(there, target, async_op=async_op)
        assert (moved.device_mesh, list(moved.placements)) == (there, target)
        back = moved.redistribute(here, [R] * here.ndim)
        if here.get_coordinate() is not None:
            assert torch.equal(back.to_local(), DENSE)
        (back * sw.distribute_tensor(WEIGHTS, here, [R] * here.ndim, src_data_rank=None)).sum().backward()
        gradient = tensor.grad.redistribute(here, [R] * here.ndim).to_local()
        assert here.get_coordinate() is None or torch.equal(gradient, WEIGHTS)

    run_ranks(n_ranks, body)


def test_a_move_between_meshes_sends_what_is_missing():
    def body(rank):
        here, there = sw.DeviceMesh("cpu", [0, 1]), sw.DeviceMesh("cpu", [1, 2, 3])
        tensor = sw.distribute_tensor(torch.arange(12.0), here, [S0], src_data_rank=None)
        with CommDebugMode() as comm:
            tensor.redistribute(there, [S0])
        return comm.bytes_received()

    assert run_ranks(4, body) == [0, 16, 16, 16]


# the other keywords of redistribute
OPTIONS = [{"objective": "time"}, {"objective": "time", "links": [(50, 1), (2, 100)]}, {"memory_cap": 24}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("target", [[S1, S0], [R, R], [S1, S1], [S0, R]], ids=str)
def test_options_change_the_way_and_not_the_values(target, options):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        tensor = sw.distribute_tensor(DENSE, mesh, [S0, S1])
        moved = tensor.redistribute(placements=target, **options)
        assert list(moved.placements) == target and torch.equal(moved.full_tensor(), DENSE)
        (many,) = sw.redistribute_many([tensor], target, **options)
        assert torch.equal(many.full_tensor(), DENSE)

    run_ranks(4, body)


def test_a_negative_bucket_is_an_error():
    def on_rank(rank):
        x = sw.distribute_tensor(torch.ones(4), sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(ValueError, match="bucket_bytes is -5: it cannot be negative"):
            sw.redistribute_many([x], [[Replicate()]], bucket_bytes=-5)

    run_ranks(2, on_rank)


def test_a_dim_that_does_not_exist_is_an_error_wherever_placements_are_given():
    def on_rank(rank):
        x = sw.distribute_tensor(torch.ones(4, 4), sw.init_device_mesh("cpu", (2,)), [R])
        for call in (
            lambda: x.redistribute(placements=[Shard(-3)]),
            lambda: sw.redistribute_many([x], [[Shard(-3)]]),
        ):
            with pytest.raises(IndexError, match=r"tensor dim -3 of Shard\(-3\) does not exist"):
                call()

    run_ranks(2, on_rank)


@pytest.mark.parametrize("bucket_bytes", [25 << 20, 300, 0])
def test_many_tensors_move_together(bucket_bytes):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        sources = [[S0], [S1], [R], [Partial()], [Shard(0, [5, 0, 2])]]
        targets = [[S1], [S0], [S1], [S0], [R]]
        dtypes = [torch.float64, torch.float64, torch.float32, torch.float64, torch.float32]
        tensors = [
            sw.distribute_tensor((DENSE + i).to(dtype), mesh, source).requires_grad_()
            for i, (dtype, source) in enumerate(zip(dtypes, sources, strict=True))
        ]
        moved = sw.redistribute_many(tensors, targets, bucket_bytes=bucket_bytes)
        for i, (tensor, target, dtype) in enumerate(zip(moved, targets, dtypes, strict=True)):
            assert type(tensor) is sw.DTensor and list(tensor.placements) == target
            assert torch.equal(tensor.full_tensor(), (DENSE + i).to(dtype))
        sum(tensor.sum().full_tensor() * (i + 1) for i, tensor in enumerate(moved) if i != 1).backward()
        assert tensors[1].grad is None or not tensors[1].grad.full_tensor().any()
        for i, tensor in enumerate(tensors):
            if i != 1:
                assert torch.equal(tensor.grad.full_tensor(), torch.full((7, 5), i + 1.0, dtype=tensor.dtype)), i

    run_ranks(3, body)


def test_many_tensors_share_messages_and_one_list_of_placements():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        tensors = [sw.ones(8, 4, device_mesh=mesh, placements=[S0]) for _ in range(5)]
        with CommDebugMode() as one_by_one:
            for tensor in tensors:
                tensor.redistribute(placements=[S1])
        with CommDebugMode() as together:
            moved = sw.redistribute_many(tensors, [S1])
        assert [tuple(tensor.to_local().shape) for tensor in moved] == [(8, 1)] * 5
        assert together.get_total_counts() == 1 and one_by_one.get_total_counts() == 5
        assert together.bytes_received() == one_by_one.bytes_received() == 5 * 24
        assert sw.redistribute_many([], [S1]) == []

    run_ranks(4, body)


def test_plans_and_buffers_are_kept_and_counted():
    def body(rank):
        tensor = sw.ones(64, 64, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[S0])
        before = sw.redistribution_counters()
        for _ in range(5):
            tensor.redistribute(placements=[S1])
        after = sw.redistribution_counters()
        assert (after.plan_misses - before.plan_misses, after.plan_hits - before.plan_hits) == (1, 4)
        assert after.n_plans == before.n_plans + 1
        assert after.buffer_hits > before.buffer_hits and after.buffer_bytes > 0
        assert repr(after).startswith("RedistributionCounters(plan_hits=")

    run_ranks(2, body)


# source, target: what the plan says on paper is what ranks receive
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([S0, S1], [S1, S0]),
        ([S0, S0], [S1, S1]),
        ([Partial(), S0], [S0, R]),
        ([R, S0], [S0, R]),
        ([Partial(), S1], [R, S1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2)], ids=str)
def test_ranks_receive_what_the_plan_says(shape, source, target):
    def body(rank):
        tensor = sw.distribute_tensor(torch.arange(35.0).view(7, 5), sw.init_device_mesh("cpu", shape), source)
        plan = sw.plan_redistribution(tensor, target)
        with CommDebugMode() as comm:
            tensor.redistribute(placements=target)
        return comm.bytes_received(), plan.traffic(rank).received, plan.bytes_received, plan.ratio

    results = run_ranks(shape[0] * shape[1], body)
    assert [counted for counted, *_ in results] == [planned for _, planned, *_ in results]
    assert sum(counted for counted, *_ in results) == results[0][2]
    assert results[0][3] == 1 or Partial() in source  # a Partial of nested shards takes a detour


SUMS_AND_PRODUCTS = [R, Partial(), Partial("product"), Partial("max"), Partial("avg"), S0]


@pytest.mark.parametrize("options", [{}, {"objective": "time"}], ids=str)
def test_terms_of_sums_of_products_and_products_of_sums(options):
    """Along a mesh dim that becomes a Partial of one kind while another stays one of another kind."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        for source in itertools.product(SUMS_AND_PRODUCTS, repeat=2):
            tensor = sw.distribute_tensor(DENSE, mesh, source)
            for target in itertools.product(SUMS_AND_PRODUCTS, repeat=2):
                moved = tensor.redistribute(placements=target, **options)
                assert torch.equal(moved.full_tensor(), DENSE), (source, target)

    run_ranks(4, body)


@pytest.mark.parametrize(
    "source, target",
    [
        ([Partial(), Partial("max"), Partial()], [R, Partial("max"), Partial()]),
        ([R, Partial(), Partial("max")], [Partial("product"), Partial(), Partial("max")]),
    ],
    ids=["sum of maxima of sums", "product of sums of maxima"],
)
def test_a_reduction_that_has_another_done_first_has_those_within_it_done_before(source, target):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2, 2))
        places = torch.arange(8).view(2, 2, 2)
        terms = torch.tensor([float(m1 == m2) for _, m1, m2 in itertools.product(range(2), repeat=3)]).view(2, 2, 2)
        value = terms
        for placement in reversed(source):  # the innermost first
            if placement.is_partial():
                value = value.amax(-1) if placement == Partial("max") else value.sum(-1)
            else:
                value = value[..., 0]
        tensor = sw.DTensor.from_local(terms.flatten()[places.flatten()[rank]].view(1), mesh, source)
        moved = tensor.redistribute(placements=target)
        assert list(moved.placements) == target and moved.full_tensor().item() == value.item()

    run_ranks(8, body)


def test_sparse_gradients_of_many_tensors_go_back():
    dense = torch.arange(12.0).view(6, 2)
    ids = torch.tensor([4, 0, 4])
    reference = dense.clone().requires_grad_()
    torch.nn.functional.embedding(ids, reference).square().sum().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(dense, mesh, [S0]).requires_grad_()
        other = sw.distribute_tensor(dense, mesh, [S0]).requires_grad_()
        whole, beside = sw.redistribute_many([table, other], [R])
        rows = torch.nn.functional.embedding(sw.distribute_tensor(ids, mesh, [R]), whole, sparse=True)
        (rows.square().sum() + beside.sum()).backward()
        grad = table.grad.to_dense() if table.grad.is_sparse else table.grad
        assert torch.equal(grad.full_tensor(), reference.grad)
        assert torch.equal(other.grad.full_tensor(), torch.ones(6, 2))

    run_ranks(2, body)
