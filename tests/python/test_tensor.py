"""Making distributed tensors, taking them apart, and the values in between."""

import copy

import pytest
import torch
from layouts import by_name
from torch import nn

import shardwise as sw
from shardwise import DTensor, EnumerableShard, Partial, Replicate, Shard, ShardMetadata
from shardwise.testing import run_ranks


@pytest.mark.parametrize("case", **by_name)
def test_distribute_tensor_and_full_tensor_are_a_round_trip(case):
    def body(rank):
        tensor = case.distributed()
        assert type(tensor) is DTensor and tensor.shape == case.shape and tensor.dtype == torch.float64
        full = tensor.full_tensor()
        if tensor.device_mesh.get_coordinate() is None:
            assert full.numel() == 0
        else:
            assert type(full) is torch.Tensor and torch.equal(full, case.dense())

    run_ranks(case.n_ranks, body)


@pytest.mark.parametrize("case", **by_name)
def test_from_local_of_the_local_piece_is_the_same_tensor(case):
    def body(rank):
        tensor = case.distributed()
        local = tensor.to_local()
        again = DTensor.from_local(
            local, tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride()
        )
        assert again.shape == tensor.shape and again.placements == tensor.placements
        before, after = (sw._C.to_pieces(t) for t in (tensor, again))
        assert [piece.data_ptr() for piece in before] == [piece.data_ptr() for piece in after]

    run_ranks(case.n_ranks, body)


def test_from_local_takes_even_shards_where_no_shape_is_given():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        tensor = DTensor.from_local(torch.full((3, 2), float(rank)), mesh, [Shard(0), Shard(1)])
        assert tensor.shape == (6, 4) and tensor.stride() == (4, 1)
        assert tensor.full_tensor()[::3, ::2].tolist() == [[0, 1], [2, 3]]

    run_ranks(4, body)


def test_from_local_with_run_check_makes_replicas_equal():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        local = torch.full((1,), float(rank), requires_grad=True)
        recorded = DTensor.from_local(local, mesh, [Replicate()], run_check=True)
        (recorded * 3).sum().backward()
        assert local.item() == rank and local.grad.item() == 3
        plain = DTensor.from_local(torch.tensor([rank]), mesh, [Replicate()], run_check=True)
        return plain.to_local().item(), recorded.to_local().item()

    assert run_ranks(3, body) == [(0, 0)] * 3


@pytest.mark.parametrize("dim", [0, -2])
def test_from_local_with_run_check_takes_pieces_of_any_sizes(dim):
    """1, 3, 0 and 4 rows. Equal pieces, shards of shards and given sizes stay what they are."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        rows = torch.full(([1, 3, 0, 4][rank], 2), float(rank), requires_grad=True)
        x = DTensor.from_local(rows, mesh, [Shard(dim)], shape=(8, 2), stride=(2, 1), run_check=True)
        assert x.placements == (Shard(0, sizes=[1, 3, 0, 4]),)
        assert x[:, 0].full_tensor().tolist() == [0, 1, 1, 1, 3, 3, 3, 3]
        (x * 2).sum().backward()
        assert rows.grad.eq(2).all()
        even = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(dim)], shape=(8, 2), run_check=True)
        assert even.placements == (Shard(0),)
        grid = sw.init_device_mesh("cpu", (2, 2))
        nested = DTensor.from_local(torch.ones(2, 2), grid, [Shard(0), Shard(0)], shape=(8, 2), run_check=True)
        assert nested.placements == (Shard(0), Shard(0))
        part = torch.ones([5, 3][rank // 2], [1, 2][rank % 2])
        both = DTensor.from_local(part, grid, [Shard(0), Shard(1)], shape=(8, 3), run_check=True)
        assert both.placements == (Shard(0, sizes=[5, 3]), Shard(1, sizes=[1, 2]))

    run_ranks(4, body)


def test_distribute_tensor_takes_the_values_of_the_source_rank():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [1, 2, 0])
        mine = torch.full((3,), rank)
        sources = [
            sw.distribute_tensor(mine, mesh, [Shard(0)], src_data_rank=r).to_local().item() for r in (0, 1, None)
        ]
        return sources

    assert run_ranks(3, body) == [[1, 2, 0], [1, 2, 1], [1, 2, 2]]


@pytest.mark.parametrize("case", **by_name)
def test_values_that_go_with_the_facts_are_placed_as_scattered_ones(case):
    def body(rank):
        mesh = case.mesh()
        replicated = [Replicate()] * mesh.ndim
        with sw.CommDebugMode() as comm:
            alone = sw.distribute_tensor(case.dense(), mesh, case.placements)
        assert not comm.get_comm_counts()
        # Many values: the root sends each rank its parts.
        together, _ = sw._C.distribute_tensors([case.dense(), torch.zeros(500)], mesh, [case.placements, replicated])
        assert together.stride() == alone.stride()
        pieces, scattered = (sw._C.to_pieces(each) for each in (alone, together))
        assert len(pieces) == len(scattered)
        for piece, other in zip(pieces, scattered, strict=True):
            assert torch.equal(piece, other) and piece.stride() == other.stride()

    run_ranks(case.n_ranks, body)


def test_a_tensor_may_be_its_own_data():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for _ in range(100):  # as module.float() does with parameters that are
            x = sw.ones(10, 7, device_mesh=mesh, placements=[Shard(0)])
            x.data = x
            assert x.to_local().shape == (5, 7) and x.sum().item() == 70

    run_ranks(2, body)


def test_gradients_flow_through_from_local_and_to_local():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        local = torch.tensor([1.0, 2.0 + rank], requires_grad=True)
        tensor = DTensor.from_local(local, mesh, [Shard(0)])
        assert tensor.requires_grad and not tensor.is_leaf
        (tensor * tensor).to_local().sum().backward()
        assert torch.equal(local.grad, 2 * local.detach())

    run_ranks(2, body)


def test_a_write_to_the_local_tensor_that_autograd_needs_is_an_error():
    def body(rank):
        x = sw.ones(4, requires_grad=True, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        for mode in (torch.enable_grad, torch.no_grad):
            y = x * 1
            z = (y * y).sum()
            with mode():
                y.to_local().mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.backward()
        with torch.no_grad():
            before = x._version
            x.to_local().fill_(3)
        x.sum().backward()  # needs no value
        assert x.full_tensor().tolist() == [3] * 4 and x._version == before + 1

    run_ranks(2, body)


def test_a_write_to_a_tensor_given_to_from_local_is_seen_by_autograd():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.ones(4, requires_grad=True, device_mesh=mesh, placements=[Shard(0)])
        local = torch.ones(2)
        z = (x * DTensor.from_local(local, mesh, [Shard(0)])).sum()
        local.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    run_ranks(2, body)


def test_full_tensors_gradient_is_the_whole_one_on_each_rank():
    def body(rank):
        tensor = sw.ones(5, requires_grad=True, device_mesh=sw.init_device_mesh("cpu", (3,)), placements=[Shard(0)])
        (tensor.full_tensor() * torch.arange(5.0)).sum().backward()
        assert tensor.grad.placements == (Shard(0),)
        assert torch.equal(tensor.grad.full_tensor(), torch.arange(5.0))

    run_ranks(3, body)


def test_to_locals_gradient_may_be_laid_out_otherwise():
    def body(rank):
        tensor = sw.ones(4, requires_grad=True, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Replicate()])
        (tensor.to_local(grad_placements=[Partial()]) * (rank + 1)).sum().backward()
        assert torch.equal(tensor.grad.full_tensor(), torch.full((4,), 3.0))

    run_ranks(2, body)


# factory, what torch makes of the same arguments
FACTORIES = {
    "zeros": lambda **kw: (sw.zeros(5, 3, **kw), torch.zeros(5, 3)),
    "ones": lambda **kw: (sw.ones((5, 3), **kw), torch.ones(5, 3)),
    "ones of int": lambda **kw: (sw.ones([5, 3], dtype=torch.int32, **kw), torch.ones(5, 3, dtype=torch.int32)),
    "full": lambda **kw: (sw.full((5, 3), 7, **kw), torch.full((5, 3), 7)),
    "full of bool": lambda **kw: (sw.full((5, 3), True, **kw), torch.full((5, 3), True)),
    "full of float": lambda **kw: (sw.full((5, 3), 0.5, **kw), torch.full((5, 3), 0.5)),
    "0-D": lambda **kw: (sw.full((), 2.0, **kw), torch.full((), 2.0)),
    "linspace": lambda **kw: (sw.linspace(-1, 2.5, 11, **kw), torch.linspace(-1, 2.5, 11)),
    "linspace, half": lambda **kw: (
        sw.linspace(0, 9, 777, dtype=torch.bfloat16, **kw),
        torch.linspace(0, 9, 777, dtype=torch.bfloat16),
    ),
    "linspace of nothing": lambda **kw: (sw.linspace(0, 1, 0, **kw), torch.linspace(0, 1, 0)),
    "linspace, complex": lambda **kw: (sw.linspace(0, 1j, 3, **kw), torch.linspace(0, 1j, 3)),
    "linspace between tensors": lambda **kw: (
        sw.linspace(sw.full((), 2.0, device_mesh=kw["device_mesh"]), torch.tensor(5), 4, **kw),
        torch.linspace(2, 5, 4),
    ),
    "logspace": lambda **kw: (sw.logspace(-2, 2, 10, **kw), torch.logspace(-2, 2, 10)),
    "logspace of a base": lambda **kw: (sw.logspace(0, 3, 4, 2, **kw), torch.logspace(0, 3, 4, 2)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_what_torchs_make(name):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for placements in ([Shard(0)], None):
            if name == "0-D" and placements:
                continue
            tensor, dense = FACTORIES[name](device_mesh=mesh, placements=placements)
            assert type(tensor) is DTensor and tensor.dtype == dense.dtype
            assert torch.equal(tensor.full_tensor(), dense)
        assert sw.empty(5, 3, device_mesh=mesh, dtype=torch.int8).dtype == torch.int8

    run_ranks(3, body)


def test_spaced_values_are_in_any_shards_and_send_nothing():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2))
        pieces = EnumerableShard(
            ShardMetadata((begin,), (end - begin,), rank)
            for rank, begin, end in ((0, 0, 3), (2, 3, 5), (1, 5, 7), (2, 7, 10))
        )
        flat = sw.init_device_mesh("cpu", (4,))
        for on, placements in (
            (mesh, [Shard(0, sizes=[9, 1]), Shard(0)]),
            (mesh, [Replicate(), Shard(0)]),
            (flat, [Shard(0, sizes=[0, 4, 6, 0])]),
            (flat, [pieces]),
            (sw.DeviceMesh("cpu", [1, 3]), [Shard(0)]),
        ):
            with sw.CommDebugMode() as comm:
                x = sw.linspace(0, 1, 10, device_mesh=on, placements=placements, requires_grad=True)
            assert comm.get_total_counts() == 0 and x.requires_grad and x.is_leaf
            if on.get_coordinate() is not None:
                assert torch.equal(x.full_tensor(), torch.linspace(0, 1, 10))
        with pytest.raises(ValueError, match="cannot fill a tensor as"):
            sw.logspace(0, 1, 3, device_mesh=flat, placements=[Partial()])
        with pytest.raises(TypeError, match=r"\[linspace\] steps is 2.0, of type float. Give a whole number"):
            sw.linspace(0, 1, 2.0, device_mesh=flat)
        with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
            sw.linspace(0, 1, -1, device_mesh=flat)

    run_ranks(4, body)


def test_factories_refuse_other_layouts_than_strided():
    with pytest.raises(ValueError, match=r"layout torch\.sparse_coo cannot be distributed"):
        sw.zeros(3, layout=torch.sparse_coo)


def drawn(factory, dtype, mesh_shape, placements):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", mesh_shape)
        tensors = [factory(7, 5, dtype=dtype, device_mesh=mesh, placements=placements) for _ in range(2)]
        return [tensor.full_tensor() for tensor in tensors]

    torch.manual_seed(3)
    ranks = run_ranks(torch.Size(mesh_shape).numel(), body)
    assert all(torch.equal(a, b) for rank in ranks for a, b in zip(rank, ranks[0], strict=True))
    return ranks[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("factory", [sw.rand, sw.randn])
def test_random_numbers_are_the_same_whatever_the_mesh_and_the_placements(factory, dtype):
    first, second = drawn(factory, dtype, (1,), [Replicate()])
    assert not torch.equal(first, second)
    for mesh_shape, placements in [
        ((3,), [Shard(0)]),
        ((3,), [Shard(1, [4, 0, 1])]),
        ((2, 2), [Shard(1), Shard(0)]),
        ((2, 2), [Shard(0), Shard(0)]),
        ((2,), [Replicate()]),
    ]:
        same_first, same_second = drawn(factory, dtype, mesh_shape, placements)
        assert torch.equal(first, same_first) and torch.equal(second, same_second)


def test_random_numbers_have_their_distribution():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        uniform = sw.rand(200, 1000, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
        normal = sw.randn(200, 1000, device_mesh=mesh, placements=[Shard(1)]).full_tensor()
        assert uniform.min() >= 0 and uniform.max() < 1
        assert abs(uniform.mean() - 0.5) < 3e-3 and abs(uniform.var() - 1 / 12) < 2e-3
        assert abs(normal.mean()) < 1e-2 and abs(normal.var() - 1) < 1e-2
        assert abs((normal[:, 1:] * normal[:, :-1]).mean()) < 1e-2
        assert abs((normal.abs() < 1).float().mean() - 0.6827) < 5e-3

    torch.manual_seed(0)
    run_ranks(2, body)


def test_distribute_module_replicates_what_is_not_sharded():
    def partition(name, module, mesh):
        if name == "0":
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight, mesh, [Shard(0)]))

    dense = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = copy.deepcopy(dense)
        same = sw.distribute_module(
            model,
            mesh,
            partition,
            input_fn=lambda module, inputs, mesh: tuple(sw.distribute_tensor(x, mesh) for x in inputs),
            output_fn=lambda module, output, mesh: output.full_tensor(),
        )
        assert same is model
        assert all(isinstance(p, DTensor) and isinstance(p, nn.Parameter) for p in model.parameters())
        assert model[0].weight.placements == (Shard(0),) and model[0].bias.placements == (Replicate(),)
        x = torch.arange(12.0).view(4, 3)
        torch.testing.assert_close(model(x), dense(x))
        with pytest.raises(RuntimeError, match=r"\[distribute_module\] this Sequential has been distributed before"):
            sw.distribute_module(model, mesh)

    run_ranks(2, body)


def test_distribute_module_works_on_the_active_mesh_and_keeps_buffers_and_requires_grad():
    def body(rank):
        norm = nn.BatchNorm1d(3)
        norm.weight.requires_grad_(False)
        with sw.init_device_mesh("cpu", (2,)) as mesh:
            sw.distribute_module(norm)
        assert not norm.weight.requires_grad and norm.bias.requires_grad
        assert all(isinstance(buffer, DTensor) and buffer.device_mesh is mesh for buffer in norm.buffers())

    run_ranks(2, body)


def tied_model():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False))
    model[2].weight = model[0].weight
    model[0].register_buffer("scale", torch.ones(4))
    model[1].register_buffer("scale", model[0].scale)
    return model


def shard_rows_of(*names):
    def partition(name, module, mesh):
        if name in names:
            module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [Shard(0)]))

    return partition


@pytest.mark.filterwarnings(r"error:\[distribute_module\]")
@pytest.mark.parametrize("names", [(), ("0",), ("2",)], ids=["replicated", "the first sharded", "the last sharded"])
def test_distribute_module_keeps_ties(names):
    torch.manual_seed(0)
    dense = tied_model()
    ids = torch.tensor([1, 5, 5, 0])
    dense(ids).square().sum().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = tied_model()
        model.load_state_dict(dense.state_dict())
        sw.distribute_module(model, mesh, shard_rows_of(*names))
        assert model[0].weight is model[2].weight and model[0].scale is model[1].scale
        assert model[0].weight.placements == (Shard(0) if names else Replicate(),)
        model(sw.distribute_tensor(ids, mesh)).square().sum().backward()
        torch.testing.assert_close(model[0].weight.grad.full_tensor(), dense[0].weight.grad)

    run_ranks(2, body)


def test_distribute_module_warns_where_a_partition_fn_unties():
    def body(rank):
        sw.distribute_module(tied_model(), sw.init_device_mesh("cpu", (2,)), shard_rows_of("0", "2"))

    with pytest.warns(UserWarning, match="0.weight, 2.weight shared one tensor.*trained apart"):
        run_ranks(2, body)


def test_a_distributed_module_loads_plain_values():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    dense(torch.rand(4, 3))
    state = dense.state_dict()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
        rows = Shard(0, sizes=[4, 0, 1])

        def partition(name, module, mesh):
            if name == "0":
                module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, [rows]))

        sw.distribute_module(model, mesh, partition)
        pointer = model[0].bias.to_local().data_ptr()
        model.load_state_dict(state)
        assert model[0].weight.placements == (rows,) and model[0].bias.to_local().data_ptr() == pointer
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.full_tensor(), state[name]), name
        with pytest.raises(RuntimeError, match=r"(?s)Missing key.*0.bias.*size mismatch for 0.weight"):
            model.load_state_dict({"0.weight": torch.ones(2, 3)})
        copied = copy.deepcopy(model)
        copied.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in state.items()})
        assert not copied[0].weight.full_tensor().any() and model[0].weight.full_tensor().any()

    run_ranks(3, body)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_terms_that_lie_otherwise_on_each_rank_are_reduced_by_index(reduce):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        terms = [torch.arange(6.0).view(2, 3), (torch.arange(6.0).view(3, 2) * 10).t()]
        whole = terms[0] + terms[1] if reduce == "sum" else torch.maximum(*terms)
        for placements in ([Replicate()], [Shard(0)], [Shard(1)]):
            tensor = DTensor.from_local(terms[rank], mesh, [Partial(reduce)])
            assert torch.equal(tensor.redistribute(placements=placements).full_tensor(), whole)
        assert torch.equal((DTensor.from_local(terms[rank], mesh, [Partial(reduce)]) + 1).full_tensor(), whole + 1)

    run_ranks(2, body)


def test_distribute_tensor_takes_the_strides_of_the_source_rank():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        values = torch.arange(24.0).view(4, 6).t()
        given = values if rank == 0 else torch.empty(6, 4)
        x = sw.distribute_tensor(given, mesh, [Shard(0)])
        assert x.stride() == (1, 6) and torch.equal(x.full_tensor(), values)
        with pytest.raises(RuntimeError, match="view"):
            x.view(24)
        of_other = sw.distribute_tensor(given, mesh, [Shard(0)], src_data_rank=1)
        assert of_other.stride() == (4, 1) and of_other.view(24).shape == (24,)

    run_ranks(2, body)


def test_distribute_tensor_takes_requires_grad_from_the_rank_whose_values_count():
    def body(rank):
        mesh, dense = sw.init_device_mesh("cpu", (2,)), torch.ones(4, 2, requires_grad=rank == 0)
        return [sw.distribute_tensor(dense, mesh, [Shard(0)], src_data_rank=src).requires_grad for src in (0, 1, None)]

    assert run_ranks(2, body) == [[True, False, True], [True, False, False]]


def test_is_set_to_tells_of_memory_as_dense_tensors_do():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        for placements in ([Shard(0)], [Replicate()], [Shard(0, sizes=[0, 4, 2])]):
            x = sw.ones(6, 2, device_mesh=mesh, placements=placements)
            assert x.is_set_to(x) and x.is_set_to(x.detach()) and x.is_set_to(x.view(6, 2))
            assert not x.is_set_to(x.clone()) and not x.is_set_to(x.view(3, 4)) and not x.is_set_to(torch.ones(6, 2))

    run_ranks(3, body)


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("apply_", lambda x, f: x.apply_(f)),
        ("map_", lambda x, f: x.map_(x, f)),
        ("map2_", lambda x, f: x.map2_(x, x, f)),
    ],
)
def test_functions_of_python_per_element_are_for_pieces(method, call):
    def body(rank):
        x = sw.ones(6, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        with pytest.raises(NotImplementedError, match=rf"\[{method}\] .* Call it on this rank's piece"):
            call(x, None)
        x.to_local().apply_(lambda element: element + 1)
        assert x.full_tensor().tolist() == [2] * 6

    run_ranks(2, body)
