"""Deferred initialisation: a model is made on meta, sharded there, and gets memory, and values, on each rank's part alone."""

import copy
import functools
import math
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchrun import expect_all_well

import shardwise as sw
from shardwise import _C, Partial, Replicate, Shard
from shardwise.testing import run_ranks

LAYOUTS = [
    [Shard(0)],
    [Shard(1)],
    [Shard(0, sizes=[1, 7, 0, 2])],
    [Replicate()],
    [Partial()],
]


def on_ranks(check, n_ranks=4, shape=None, names=None):
    def run(rank):
        check(sw.init_device_mesh("cpu", shape or (n_ranks,), mesh_dim_names=names))

    run_ranks(n_ranks, run)


def sends_nothing(mesh, call):
    """What `call` gives, on every rank without a message."""
    reader = _C.EventReader("test")
    reader.open()
    result = call()
    reader.close()
    assert not any(event.is_sent for event in reader.communications())
    return result


def like(x, y):
    return (x.placements, x.shape, x.stride(), x.dtype) == (y.placements, y.shape, y.stride(), y.dtype)


class Block(nn.Module):
    """Tied weights, a buffer, and layers that draw."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 10)
        self.norm = nn.BatchNorm1d(6)
        self.down = nn.Linear(10, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.norm(self.down(self.up(self.words(ids)).relu())))


def placed(layout, shape):
    """`layout` for a tensor of `shape`: explicit sizes are those of ten rows."""
    result = []
    for placement in layout:
        if placement.is_shard() and placement.dim >= len(shape):
            placement = Replicate()
        elif placement.is_shard() and shape[placement.dim] != 10:
            placement = Shard(placement.dim)
        result.append(placement)
    return result


def shard(layout):
    """A partition_fn that shards every parameter, a tied one once."""
    made = {}

    def partition(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in made:
                sharded = sw.distribute_tensor(parameter.detach(), mesh, placed(layout, parameter.shape))
                made[id(parameter)] = parameter, nn.Parameter(sharded)
            module.register_parameter(key, made[id(parameter)][1])

    return partition


def draw(model):
    torch.manual_seed(7)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


@pytest.mark.parametrize("placements", LAYOUTS, ids=str)
def test_meta_tensors_are_distributed_without_memory(placements):
    def check(mesh):
        whole = torch.empty(10, 6, device="meta")
        real = sw.distribute_tensor(torch.ones(10, 6), mesh, placements)
        for source in (0, 2, None):
            x = sw.distribute_tensor(whole, mesh, placements, src_data_rank=source)
            assert like(x, real) and x.is_meta and x.device_mesh == mesh and x.device_mesh.device_type == "cpu"
            assert x.to_local().is_meta and x.to_local().shape == real.to_local().shape
        sends_nothing(mesh, lambda: sw.distribute_tensor(whole, mesh, placements, src_data_rank=None))
        y = sw.DTensor.from_local(real.to_local().to("meta"), mesh, placements, shape=(10, 6))
        assert like(y, real) and y.is_meta and y.device_mesh == mesh
        assert sw.distribute_tensor(nn.Parameter(whole), mesh, placements).requires_grad
        assert "meta" in repr(x)

    on_ranks(check)


def test_a_rank_with_values_gives_them_to_ranks_with_meta_tensors():
    def check(mesh):
        values = torch.arange(30.0).view(10, 3)
        mine = values if mesh.get_rank() == 2 else torch.empty(10, 3, device="meta")
        for placements in ([Shard(0)], [Shard(1)], [Replicate()], [Partial()]):
            x = sw.distribute_tensor(mine, mesh, placements, src_data_rank=2)
            assert not x.is_meta and x.full_tensor().equal(values)
            with pytest.raises(
                ValueError, match="rank 0 is src_data_rank and gives a tensor on meta, but rank 2 gives a tensor with"
            ):
                sw.distribute_tensor(mine, mesh, placements)

    on_ranks(check)


@pytest.mark.parametrize("placements", LAYOUTS, ids=str)
def test_moves_of_meta_tensors_send_nothing(placements):
    def check(mesh):
        x = sw.distribute_tensor(torch.empty(10, 6, device="meta"), mesh, placements).requires_grad_()
        for other in LAYOUTS[:4]:
            real = sw.ones(10, 6, device_mesh=mesh, placements=other)
            for moved in (
                sends_nothing(mesh, lambda other=other: x.redistribute(mesh, other)),
                sends_nothing(mesh, lambda other=other: x.redistribute(placements=other, async_op=True)),
                sends_nothing(mesh, lambda other=other: sw.redistribute_many([x, x], [other, other]))[1],
            ):
                assert like(moved, real) and moved.is_meta and moved.to_local().shape == real.to_local().shape
                assert moved.device_mesh == mesh
        whole = sends_nothing(mesh, x.full_tensor)
        assert whole.is_meta and whole.shape == (10, 6)
        sends_nothing(mesh, lambda: (x * 2).sum().backward())
        assert x.grad.is_meta and x.grad.shape == x.shape

    on_ranks(check)


def test_several_tensors_move_together_where_some_are_on_meta():
    def check(mesh):
        real = sw.distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
        meta = real.to("meta")
        a, b, c = sw.redistribute_many([meta, real, real], [[Shard(1)]] * 3)
        assert a.is_meta and like(a, b) and b.full_tensor().equal(real.full_tensor()) and c.full_tensor().sum() == 66

    on_ranks(check, 3)


def test_ranks_without_pieces_and_outside_the_mesh_know_of_it():
    def check(rank):
        mesh = sw.DeviceMesh("cpu", [2, 0])
        world = sw.init_device_mesh("cpu", (3,))
        x = sw.distribute_tensor(torch.empty(5, 4, device="meta"), mesh, [Shard(0, sizes=[5, 0])])
        assert x.is_meta and x.device.type == "meta"
        for y in (
            x * 2,
            x.redistribute(placements=[Shard(1)]),
            x.detach(),
            x @ x.t(),
            x.sum(),
            pickle.loads(pickle.dumps(x)),
        ):
            assert y.is_meta, rank
        for y in (x.redistribute(world, [Shard(0)]), (x + 1).redistribute(world, [Replicate()])):
            assert y.is_meta and y.device_mesh == world
        full = torch.empty_like(x, device="cpu")
        assert (
            not full.is_meta
            and full.placements == x.placements
            and full.fill_(1).redistribute(world, [Shard(0)]).sum().item() == 20
        )

    run_ranks(3, check)


def test_pieces_with_offsets_may_be_on_meta():
    def check(mesh):
        rank = mesh.get_rank()
        rows = [[(0, 2), (6, 7)], [], [(2, 6)]][rank]
        pieces = [torch.empty(end - begin, 3, device="meta") for begin, end in rows]
        wrapper = sw.LocalShardsWrapper(pieces, [(begin, 0) for begin, _ in rows], device="meta")
        x = sw.DTensor.from_local(wrapper, mesh, [Shard(0)], shape=(7, 3), stride=(3, 1))
        assert x.is_meta and isinstance(x.placements[0], sw.EnumerableShard)
        moved = sends_nothing(mesh, lambda: (x * 2).redistribute(placements=[Shard(0)]))
        assert moved.is_meta and moved.to_local().shape[1] == 3
        real = torch.empty_like(x, device="cpu")
        assert not real.is_meta and real.placements == x.placements and (real.fill_(2).sum().item()) == 42

    on_ranks(check, 3)


def drawn(shape, layout, late):
    """By name, the values of a model that is built directly, or late: on meta. Ranks that are threads share torch's generator."""
    result = {}

    def run(rank):
        mesh = sw.init_device_mesh("cpu", shape)
        with torch.device("meta" if late else "cpu"):
            model = Block()
        sw.distribute_module(model, mesh, shard(layout))
        before = list(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if late:
            assert all(isinstance(value, sw.DTensor) and value.is_meta for value in model.state_dict().values())
            layouts = [value.placements for value in model.state_dict().values()]
            model.to_empty(device="cpu")
            assert [value.placements for value in model.state_dict().values()] == layouts
        assert model.head.weight is model.words.weight
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], before, strict=True))
        sw.ones(1, device_mesh=mesh).redistribute(
            placements=[Partial()] * mesh.ndim
        ).full_tensor()  # all ranks are here
        draw(model)
        values = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
        model.eval()
        model(sw.distribute_tensor(torch.tensor([3, 0, 10]), mesh, [Replicate()] * mesh.ndim)).sum().backward()
        optimizer.step()
        assert all(p.grad is not None and not p.is_meta for p in model.parameters())
        if rank == 0:
            result.update(values)

    run_ranks(math.prod(shape), run)
    return result


@pytest.mark.parametrize("layout", LAYOUTS[:4], ids=str)
def test_values_drawn_late_are_those_drawn_at_once(layout):
    at_once, late = drawn((4,), layout, late=False), drawn((4,), layout, late=True)
    assert at_once.keys() == late.keys() and len(late) == 11
    assert all(late[name].equal(at_once[name]) for name in at_once)


def test_values_do_not_depend_on_mesh_and_number_of_ranks():
    expected = drawn((1,), [Replicate()], late=False)
    for shape, layout in (((2, 2), [Shard(0), Shard(1)]), ((3,), [Shard(0)]), ((2,), [Shard(1)])):
        late = drawn(shape, layout, late=True)
        assert all(late[name].equal(expected[name]) for name in expected)


def test_a_meta_model_trains_without_values():
    def check(mesh):
        with torch.device("meta"):
            model = Block()
        sw.distribute_module(model, mesh, shard([Shard(0)]))
        ids = sw.distribute_tensor(torch.empty(5, dtype=torch.long, device="meta"), mesh, [Shard(0)])
        targets = sw.distribute_tensor(torch.empty(5, dtype=torch.long, device="meta"), mesh, [Shard(0)])
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            loss = nn.functional.cross_entropy(model(ids), targets)
            loss.backward()
            optimizer.step()
            return loss

        loss = sends_nothing(mesh, step)
        assert loss.is_meta and loss.shape == ()
        assert all(p.grad.is_meta and p.grad.shape == p.shape for p in model.parameters())

    on_ranks(check)


@pytest.mark.parametrize("of_ids", [[Shard(0)], [Replicate()]], ids=str)
@pytest.mark.parametrize("placements", [[Shard(0)], [Shard(1)], [Replicate()]], ids=str)
def test_lookups_in_meta_tables(placements, of_ids):
    def check(mesh):
        table = sw.distribute_tensor(torch.empty(9, 4, device="meta"), mesh, placements).requires_grad_()
        real = sw.zeros(9, 4, device_mesh=mesh, placements=placements).requires_grad_()
        ids = sw.distribute_tensor(torch.tensor([8, 0, 3, 3]), mesh, of_ids)
        there, offsets = ids.to("meta"), torch.tensor([0, 2])

        def rows_of(ids, table):
            return nn.functional.embedding(ids, table)

        def bags_of(mode):
            return lambda ids, table: nn.functional.embedding_bag(ids, table, offsets, mode=mode)

        for look_up in (rows_of, bags_of("sum"), bags_of("mean"), bags_of("max")):
            expected = look_up(ids, real)
            rows = sends_nothing(mesh, functools.partial(look_up, there, table))
            assert like(rows, expected) and rows.is_meta
            sends_nothing(mesh, rows.sum().backward)
            expected.sum().backward()
            assert table.grad.is_meta and table.grad.shape == table.shape
        table.grad = None
        nn.functional.embedding(there, table, sparse=True).sum().backward()
        assert table.grad.is_sparse and table.grad.is_meta and table.grad.shape == table.shape

    on_ranks(check, 3)


def test_no_memory_is_needed_for_what_fits_on_no_rank():
    def check(mesh):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(10**6, 10**6), nn.Embedding(10**7, 10**5))
        sw.distribute_module(model, mesh, shard([Shard(0)]))
        assert sum(p.numel() for p in model.parameters()) > 2 * 10**12
        assert model[0].weight.to_local().shape == (250_000, 10**6)
        x = sw.distribute_tensor(torch.empty(10**5, 10**6, device="meta"), mesh, [Replicate()])
        y = sends_nothing(mesh, lambda: model[0](x).redistribute(placements=[Replicate()]))
        assert y.is_meta and y.full_tensor().shape == (10**5, 10**6)

    on_ranks(check)


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_values_are_loaded_into_a_meta_model():
    def check(mesh):
        source = sw.distribute_module(Block(), mesh, shard([Shard(0)]))
        draw(source)
        with torch.device("meta"):
            model = Block()
        sw.distribute_module(model, mesh, shard([Shard(0)]))
        sends_nothing(mesh, lambda: model.load_state_dict(source.state_dict()))
        assert all(p.is_meta for p in model.parameters())
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
            source.up.weight.detach().copy_(model.up.weight)
        expected = {name: value.full_tensor() for name, value in source.state_dict().items()}
        for values in (source.state_dict(), expected):
            with torch.device("meta"):
                model = Block()
            sw.distribute_module(model, mesh, shard([Shard(0)]))
            model.load_state_dict(values, assign=True)
            for name, value in model.state_dict().items():
                assert isinstance(value, sw.DTensor) and not value.is_meta, name
                assert value.placements == source.state_dict()[name].placements
                assert value.full_tensor().equal(expected[name]), name

    on_ranks(check)


def test_loaded_values_are_gathered_ahead():
    """A unit whose parameters another unit's forward gathers takes them before its own forward."""
    torch.manual_seed(0)
    every_ranks = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def check(mesh):
        dense = copy.deepcopy(every_ranks)  # threads share torch's generator
        with torch.device("meta"):
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        for layer in model:
            sw.fully_shard(layer, mesh=mesh)
        for layer, ahead in zip(model, list(model)[1:], strict=False):
            layer.set_modules_to_forward_prefetch([ahead])
            ahead.set_modules_to_backward_prefetch([layer])
        x = torch.ones(2, 4)
        for scale in (1, 2):
            values = {
                name: sw.distribute_tensor(scale * value.detach(), part.device_mesh, part.placements)
                for (name, value), part in zip(dense.state_dict().items(), model.state_dict().values(), strict=True)
            }
            model.load_state_dict(values, assign=True)
            with torch.no_grad():
                for parameter in dense.parameters():
                    parameter.mul_(scale)
            for each in (model, dense):
                each.zero_grad()
                each(x).sum().backward()
            for part, parameter in zip(model.parameters(), dense.parameters(), strict=True):
                torch.testing.assert_close(part.grad.full_tensor(), parameter.grad)

    on_ranks(check, 2)


def test_meta_and_values_do_not_mix():
    def check(mesh):
        meta = sw.distribute_tensor(torch.empty(4, 4, device="meta"), mesh, [Shard(0)])
        real = sw.ones(4, 4, device_mesh=mesh, placements=[Shard(0)])
        for call in (lambda: meta + real, lambda: real @ meta, lambda: torch.cat([real, meta])):
            with pytest.raises(ValueError, match="operands live on meta and on cpu"):
                call()
        assert (
            meta * sw.full((), 2.0, device_mesh=mesh)
        ).is_meta  # as torch, which takes a number's tensor from the CPU
        for call in (lambda: real.copy_(meta), lambda: meta.to("cpu")):
            with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
                call()
        assert meta.copy_(real) is meta
        torch._foreach_copy_([meta, real], [real, real + 1])
        assert real.sum().item() == 32 and meta.is_meta

    on_ranks(check, 3)


def test_run_check_sees_a_rank_on_meta():
    def check(mesh):
        local = torch.ones(2, 3, device="meta" if mesh.get_rank() == 1 else "cpu")
        with pytest.raises(ValueError, match="the piece of rank 1 is on meta, but the piece of rank 0 has values"):
            sw.DTensor.from_local(local, mesh, [Shard(0)], run_check=True)
        x = sw.DTensor.from_local(local.to("meta"), mesh, [Replicate()], run_check=True)
        assert x.is_meta

    on_ranks(check, 3)


def test_factories_use_the_mesh_whatever_the_default_device_is():
    def check(mesh):
        with torch.device("meta"):
            for make in (sw.zeros, sw.ones, sw.empty, sw.rand, sw.randn):
                assert make(4, 3, device_mesh=mesh, placements=[Shard(0)]).device.type == "cpu"
            assert sw.distribute_tensor(torch.empty(4), mesh, [Shard(0)]).is_meta
            x = sw.ones(4, device_mesh=mesh, placements=[Shard(0)])
        torch.manual_seed(3)
        y = torch.empty_like(x, device="meta").normal_()
        after = torch.rand(1)
        torch.manual_seed(3)
        assert y.is_meta and after == torch.rand(1)  # nothing was drawn

    on_ranks(check, 1)


def test_processes_load_checkpoints_into_meta_models(tmp_path):
    expect_all_well("meta_program.py", 4, "save,load,full_state_dicts", tmp_path)
    expect_all_well("meta_program.py", 2, "load", tmp_path)


def test_fake_tensors_are_refused():
    def check(mesh):
        real = sw.ones(4, 3, device_mesh=mesh, placements=[Shard(0)])
        with FakeTensorMode():
            with pytest.raises(NotImplementedError, match=r"FakeTensorMode does not take DTensors.*on meta"):
                real + 1
            fake = torch.empty(4, 3)
            with pytest.raises(TypeError, match=r"a FakeTensor of shape \[4, 3\] has no layout.*on meta"):
                sw.distribute_tensor(fake, mesh, [Shard(0)])
            assert sw.DTensor.from_local(fake, mesh, [Shard(0)]).placements == (
                Shard(0),
            )  # as torch.compile makes them
        assert (real + 1).sum().item() == 24

    on_ranks(check, 3)
