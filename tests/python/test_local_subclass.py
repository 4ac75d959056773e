"""The local tensor of a DTensor may be of any class: it is held itself, and its own operators run."""

import copy
import io
import re

import pytest
import torch
from scaled import Scaled, scaled, wide
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torchrun import forked_ranks

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

aten = torch.ops.aten


class TableShards(torch.Tensor):
    """The pieces of a table side by side, with their offsets; it answers two operators and refuses all others."""

    @staticmethod
    def __new__(cls, shards, offsets):
        columns = sum(shard.shape[1] for shard in shards)
        return torch.Tensor._make_wrapper_subclass(cls, (shards[0].shape[0], columns), dtype=shards[0].dtype)

    def __init__(self, shards, offsets):
        self.shards, self.shard_offsets = shards, offsets

    @property
    def shard_sizes(self):
        return [shard.shape for shard in self.shards]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (aten.view.default, aten._to_copy.default):
            raise NotImplementedError(f"{func} is not supported by {cls.__name__}!")
        shards = [func(shard, *args[1:], **(kwargs or {})) for shard in args[0].shards]
        return cls(shards, args[0].shard_offsets)


def test_rows_of_equal_numbers_come_back_as_they_were_given():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        own = torch.randn(2, 16)
        given = TableShards(
            [own], [torch.Size((rank * 2, 16))]
        )  # its column is the width, which is no place of a piece
        x = sw.DTensor.from_local(given, mesh, [Shard(0)], run_check=False)
        assert x.shape == (8, 16) and x.to_local() is given and x.detach().to_local() is given
        assert x.to_local().shards[0] is own and x.to_local().shard_offsets == [(rank * 2, 16)]
        assert "TableShards(shape=(2, 16)" in repr(x)

    run_ranks(4, body)


def test_rows_of_unequal_numbers_are_where_the_ranks_say():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        n = 1 if rank % 2 == 0 else 3
        given = TableShards([torch.randn(n, 16)], [torch.Size((rank // 2 * 4 + rank % 2, 16))])
        x = sw.DTensor.from_local(given, mesh, [Shard(0)], run_check=False, shape=(8, 16), stride=(16, 1))
        assert x.shape == (8, 16) and x.stride() == (16, 1) and x.to_local() is given
        assert x.placements == (Shard(0, sizes=[1, 3, 1, 3]),)

    run_ranks(4, body)


def test_a_whole_table_on_one_rank():
    def body(rank):
        sw.init_device_mesh("cpu", (4,))
        for table in range(4):
            own = torch.randn(8, 16) if rank == table else torch.empty(0)
            given = TableShards([own], [torch.Size((0, 0))]) if rank == table else own
            mesh = sw.DeviceMesh("cpu", [table])
            x = sw.DTensor.from_local(given, mesh, [Replicate()], run_check=False, shape=(8, 16), stride=(16, 1))
            assert x.shape == (8, 16) and x.stride() == (16, 1)
            assert x.to_local() is given if rank == table else x.to_local().numel() == 0

    run_ranks(4, body)


@pytest.mark.parametrize("on_shardwise", [True, False], ids=["compat", "one import"])
def test_a_program_with_its_own_local_shards(on_shardwise):
    ended = forked_ranks("table_shards_program.py", 4, *([] if on_shardwise else ["ours"]), on_shardwise=on_shardwise)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert re.search(r"3 +\[3, 16\] +\[5, 0\]", ended.stdout), ended.stdout  # of the uneven rows


def test_several_pieces_are_pieces():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        rows = torch.arange(32.0).reshape(8, 4)
        shards = [rows[rank * 2 :][:2], rows[4 + rank * 2 :][:2]]
        given = TableShards(shards, [torch.Size((rank * 2, 0)), torch.Size((4 + rank * 2, 0))])
        x = sw.DTensor.from_local(given, mesh, [Shard(0)])
        assert x.to_local() is given and torch.equal(x.full_tensor(), rows)

    run_ranks(2, body)


@pytest.mark.parametrize(
    "second, message",
    [
        (3, r"pieces .* of rank 0 and .* of rank 1 overlap in \[3:4, 0:4\]"),
        (5, r"the pieces leave a hole: \[4:5, 0:4\]"),
    ],
    ids=["overlap", "hole"],
)
def test_pieces_that_do_not_tile_are_an_error_on_all_ranks(second, message):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        rows = torch.zeros(2, 4)
        begin = 0 if rank == 0 else second
        given = TableShards([rows, rows], [torch.Size((begin, 0)), torch.Size((begin + 2, 0))])
        with pytest.raises(ValueError, match=message):
            sw.DTensor.from_local(given, mesh, [Shard(0)])

    run_ranks(2, body)


def test_operators_are_the_class_s_own():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        own = scaled(3)
        x = sw.DTensor.from_local(own, mesh, [Shard(0)])
        assert x.to_local() is own and x.dtype == torch.float32
        doubled = x * 2
        assert type(doubled.to_local()) is torch.Tensor and torch.equal(doubled.to_local(), own.values() * 2)
        assert torch.equal(doubled.full_tensor(), torch.cat([own.values() * 2] * 2))
        turned = x.t()
        assert isinstance(turned.to_local(), Scaled) and turned.placements == (Shard(1),)
        y = sw.distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])
        product = torch.mm(y, turned)
        assert product.placements == (Shard(1),)
        assert torch.equal(product.to_local(), torch.mm(torch.ones(2, 4), own.values().t()))

    run_ranks(2, body)


def test_a_refused_operator_is_the_class_s_error_with_the_operator_s_name():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.DTensor.from_local(scaled(3), mesh, [Shard(0)])
        for call in (x.exp, lambda: sw.explain(x.exp)):
            with pytest.raises(
                NotImplementedError,
                match=re.escape("[aten::exp] on a DTensor whose local tensor is a Scaled: Scaled has no aten.exp"),
            ):
                call()
        with pytest.raises(
            NotImplementedError,
            match=r"\[aten::uniform_\] the local tensor is a Scaled\. Only its own operators can read its memory",
        ):
            x.uniform_()
        assert torch.equal((x + 1).full_tensor(), torch.cat([scaled(3).values() + 1] * 2))  # nothing was lost

    run_ranks(2, body)


class Valued(Scaled):
    """It also answers operators that Shardwise computes in memory."""

    @staticmethod
    def __tensor_unflatten__(inner, scale, outer_size, outer_stride):
        return Valued(inner["numbers"], scale)

    ANSWERED = (
        *Scaled.ANSWERED,
        aten.embedding.default,
        aten.cumsum.default,
        aten.cummax.default,
        aten.flip.default,
        aten.roll.default,
        aten.topk.default,
        aten.native_layer_norm.default,
    )


ON_VALUES = {
    "embedding": lambda x: torch.nn.functional.embedding(like(torch.tensor([[3, 1], [0, 3]]), x), x),
    "cumsum": lambda x: x.cumsum(0),
    "cummax": lambda x: x.cummax(1).values,
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(1, 0),
    "roll of all": lambda x: x.roll(3),
    "topk": lambda x: x.topk(2, 1).values,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
}


def like(plain, x):
    return sw.distribute_tensor(plain, x.device_mesh, [Shard(0)]) if isinstance(x, sw.DTensor) else plain


@pytest.mark.filterwarnings("ignore:.*no sharding rule")
@pytest.mark.parametrize("name", ON_VALUES)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
def test_operators_that_are_computed_in_memory_are_the_class_s_own(placement, name):
    whole = Valued(scaled(4).numbers, 0.5)

    def body(rank):
        x = sw.distribute_tensor(whole, sw.init_device_mesh("cpu", (2,)), [placement])
        torch.testing.assert_close(ON_VALUES[name](x).full_tensor(), ON_VALUES[name](whole.values()))
        refused = sw.distribute_tensor(scaled(4), x.device_mesh, [placement])
        with pytest.raises(
            NotImplementedError, match=r"\[aten::\w+\] on a DTensor whose local tensor is a Scaled: Scaled has no"
        ):
            ON_VALUES[name](refused)

    run_ranks(2, body)


def test_a_table_that_all_ranks_have_is_looked_up_without_a_message():
    def body(rank):
        table = sw.distribute_tensor(Valued(scaled(4).numbers, 0.5), sw.init_device_mesh("cpu", (2,)), [Replicate()])
        ids = like(torch.tensor([[3, 1], [0, 3]]), table)
        with sw.debug.CommDebugMode() as sent:
            found = torch.nn.functional.embedding(ids, table)
        assert found.placements == (Shard(0),) and not sent.get_comm_counts()

    run_ranks(2, body)


def test_parts_are_taken_by_the_class():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        whole = scaled(8)
        x = sw.distribute_tensor(whole, mesh, [Shard(0)])
        begin, end = [0, 3, 6, 8][rank : rank + 2]
        assert isinstance(x.to_local(), Scaled) and torch.equal(x.to_local().numbers, whole.numbers[begin:end])
        assert sw.distribute_tensor(whole, mesh, [Replicate()]).to_local() is whole
        with pytest.raises(
            NotImplementedError,
            match=r"\[distribute_tensor\] a TableShards does not give its indices 0 to 2 along dim 0: aten.slice.Tensor is not supported",
        ):
            sw.distribute_tensor(TableShards([torch.ones(6, 2)], [(0, 0)]), mesh, [Shard(0)])

    run_ranks(3, body)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_an_error(layout):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
        with pytest.raises(NotImplementedError, match=r"\[from_local\] a nested tensor of 3 dims has no fixed sizes"):
            sw.DTensor.from_local(nested, mesh, [Shard(0)])
        with pytest.raises(NotImplementedError, match=r"\[distribute_tensor\] a nested tensor of 3 dims"):
            sw.distribute_tensor(nested, mesh, [Shard(0)])

    run_ranks(2, body)


def test_copies_and_files():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        own = scaled(3)
        x = sw.DTensor.from_local(own, mesh, [Shard(0)])
        copied = copy.deepcopy(x).to_local()
        assert isinstance(copied, Scaled) and copied is not own and torch.equal(copied.numbers, own.numbers)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert loaded.placements == (Shard(0),) and torch.equal(loaded.to_local().values(), own.values())
        assert repr(x).startswith("DTensor(local_tensor=Scaled([[0, 1, 2, 3]")

    run_ranks(2, body)


def test_gradients_go_to_what_is_recorded():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.DTensor.from_local(scaled(3), mesh, [Shard(0)])
        y = sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]).requires_grad_()
        (y * x).sum().backward()
        assert torch.equal(y.grad.to_local(), scaled(3).values())
        weight = sw.distribute_tensor(wide(6), mesh, [Shard(0)]).requires_grad_()
        (y.detach() * weight).sum().backward()
        assert torch.equal(weight.grad.full_tensor(), torch.ones(6, 4))  # of its values, and plain

    run_ranks(2, body)


def test_quantised_weights_take_no_gradient():
    """No optimizer could add one to 8-bit integers, so all ranks get an error, before a message."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = sw.distribute_tensor(scaled(6), mesh, [Shard(0)]).requires_grad_()
        message = r"\[aten::mul.Tensor\] a quantised Scaled requires a gradient.*requires_grad_\(False\)"
        with sw.CommDebugMode() as comm, pytest.raises(ValueError, match=message):
            weight * 2
        assert comm.get_total_counts() == 0
        with torch.no_grad():
            assert torch.equal((weight * 2).full_tensor(), scaled(6).values() * 2)

    run_ranks(2, body)


class Saved(Scaled):
    """It says itself what it saves: the integers, and its rows."""

    def rows(self):
        return ChunkStorageMetadata(torch.Size((self.scale, 0)), self.numbers.shape)

    def __create_write_items__(self, fqn, object):
        data = TensorWriteData(self.rows(), TensorProperties(dtype=torch.int8), object.size())
        index = MetadataIndex(fqn, self.rows().offsets)
        return [WriteItem(index, WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self):
        return [self.rows()]

    def __get_tensor_shard__(self, index):
        return self.numbers


def test_a_class_answers_for_its_own_checkpoints():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        given = Saved(torch.full((2, 4), rank + 1, dtype=torch.int8), 2 * rank)  # its scale is its first row
        x = sw.DTensor.from_local(given, mesh, [Shard(0)])
        (item,) = x.__create_write_items__("x", x)
        assert item.tensor_data.properties.dtype == torch.int8 and item.tensor_data.size == (4, 4)
        assert x.__create_chunk_list__() == [given.rows()]
        assert x.__get_tensor_shard__(item.index) is given.numbers

    run_ranks(2, body)


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_quantised_weights_of_torchao(config):
    quantization = pytest.importorskip("torchao.quantization")
    layer = torch.nn.Linear(128, 64, bias=False)
    quantization.quantize_(layer, getattr(quantization, config)())
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    own = x.clone().requires_grad_()
    dense = layer(own)
    dense.sum().backward()

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for placement in (Shard(0), Shard(1), Replicate()):
            weight = sw.distribute_tensor(layer.weight.detach(), mesh, [placement])
            assert type(weight.to_local()) is type(layer.weight)
            given = sw.distribute_tensor(x, mesh, [Replicate()])
            torch.testing.assert_close(torch.nn.functional.linear(given, weight).full_tensor(), dense.detach())
            if config.startswith("Float8"):  # the other class has no aten.mm
                given.requires_grad_()
                torch.nn.functional.linear(given, weight).sum().backward()
                torch.testing.assert_close(given.grad.full_tensor(), own.grad, rtol=1e-2, atol=1e-2)

    run_ranks(2, body)


def test_parameters_of_a_class_that_does_not_gather_itself_are_not_sharded_further():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = torch.nn.Linear(4, 4, bias=False)
        for weight in (scaled(4), sw.DTensor.from_local(scaled(2), mesh, [Shard(0)])):
            model.weight = torch.nn.Parameter(weight, requires_grad=False)
            with pytest.raises(
                TypeError,
                match=r"\[fully_shard\] weight is a Scaled, .* or leave the parameter out, with ignored_params",
            ):
                sw.fully_shard(model, mesh=mesh)

    run_ranks(2, body)
