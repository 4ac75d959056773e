"""DTensors whose local tensors are of a class move by the class's own operators; what they hold is that of one device."""

import pytest
import torch
from scaled import Joined, Rows, Scaled, Unjoined, rows, scaled
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.checkpoint import inner_tensors
from shardwise.testing import run_ranks

aten = torch.ops.aten


def same(own, whole, box):
    """The object is the box of the whole one."""
    offsets, sizes = box
    part = whole
    for dim, (begin, n) in enumerate(zip(offsets, sizes, strict=True)):
        part = part.narrow(dim, begin, n)
    return tuple(own.shape) == tuple(sizes) and torch.equal(own, part)


def moved_as_dense(make, placements, n_ranks, shape=None):
    """Every move between any two of the placements gives what each rank has of the whole object."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", shape or (n_ranks,))
        whole = make()
        for source in placements:
            x = sw.distribute_tensor(whole, mesh, source)
            own = x.to_local()
            for target in placements:
                y = x.redistribute(placements=target)
                assert y.placements == tuple(target) and type(y.to_local()) is type(whole)
                assert same(y.to_local().values(), whole.values(), sw._C.boxes_of(y)[0]), (source, target)
                assert x.to_local() is own
            full = x.full_tensor()
            assert type(full) is type(whole) and torch.equal(full.values(), whole.values())

    run_ranks(n_ranks, body)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("n_rows", [6, 5, 2, 1])
@pytest.mark.parametrize("make", [scaled, rows], ids=["scaled", "rows"])
def test_moves_are_those_of_the_whole(make, n_rows, n_ranks):
    moved_as_dense(lambda: make(n_rows), [[Shard(0)], [Shard(1)], [Replicate()]], n_ranks)


def test_moves_to_given_sizes():
    placements = [[Shard(0, sizes=[0, 4, 2])], [Shard(0, sizes=[6, 0, 0])], [Shard(1, sizes=[1, 0, 3])], [Shard(0)]]
    moved_as_dense(lambda: scaled(6), placements, 3)


def test_moves_on_a_grid():
    every = [Replicate(), Shard(0), Shard(1)]
    moved_as_dense(lambda: scaled(5, 3), [[a, b] for a in every for b in every], 4, (2, 2))


def test_a_tensor_without_elements():
    moved_as_dense(lambda: scaled(0), [[Shard(0)], [Shard(1)], [Replicate()]], 2)


def test_the_class_joins_parts_itself_where_it_can():
    moved_as_dense(lambda: Joined(torch.arange(12, dtype=torch.int8).reshape(6, 2), 0.5), [[Shard(0)], [Shard(1)]], 2)
    assert Joined.n_joined > 0


def test_slices_are_local_and_have_memory_of_their_own():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = scaled(4)
        x = sw.distribute_tensor(whole, mesh, [Replicate()])
        with sw.debug.CommDebugMode() as sent:
            y = x.redistribute(placements=[Shard(0)])
        assert sent.get_total_counts() == 0
        y.to_local().numbers.fill_(7)
        assert torch.equal(whole.numbers, scaled(4).numbers)
        assert x.redistribute(placements=[Replicate()]).to_local() is whole

    run_ranks(2, body)


def test_operators_move_their_operands():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = scaled(4)
        x = sw.distribute_tensor(weight, mesh, [Shard(1)])
        y = sw.distribute_tensor(torch.arange(8.0).reshape(2, 4), mesh, [Shard(0)])
        torch.testing.assert_close(torch.mm(y, x).full_tensor(), torch.arange(8.0).reshape(2, 4) @ weight.values())
        (moved,) = sw.redistribute_many([x], [[Shard(0)]])
        assert torch.equal(moved.to_local().values(), weight.values()[2 * rank :][:2])
        later = x.redistribute(placements=[Replicate()], async_op=True)
        assert torch.equal(later.to_local().values(), weight.values())

    run_ranks(2, body)


def test_what_cannot_move_is_an_error_on_all_ranks():
    class Closed(Scaled):
        """Nobody can take it apart."""

        def __tensor_flatten__(self):
            raise AttributeError("it is closed")

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        closed = sw.distribute_tensor(Closed(scaled(4).numbers, 0.5), mesh, [Shard(0)])
        with pytest.raises(
            NotImplementedError,
            match=r"\[redistribute\] a Closed cannot be sent to another rank: .*it is closed.* Give the class __tensor_flatten__",
        ):
            closed.full_tensor()
        own = sw.distribute_tensor(Unjoined(scaled(4).numbers, 0.5), mesh, [Shard(0)])
        with pytest.raises(
            NotImplementedError, match=r"\[redistribute\] a Unjoined has no aten.cat.* Implement aten.cat"
        ):
            own.full_tensor()
        terms = sw.DTensor.from_local(scaled(4), mesh, [Partial()])
        with pytest.raises(ValueError, match=r"a Scaled cannot be placed as \[Partial\(sum\)\]"):
            terms.redistribute(placements=[Replicate()])
        scale = 0.5 + rank  # of each rank its own
        parts = sw.DTensor.from_local(Scaled(scaled(2).numbers, scale), mesh, [Shard(0)])
        with pytest.raises(ValueError, match=r"\[redistribute\] parts of a Scaled "):
            parts.full_tensor()
        blocks = sw.DTensor.from_local(rows(3, block=3), mesh, [Shard(0)])
        with pytest.raises(NotImplementedError, match="not at a block"):
            blocks.redistribute(placements=[Shard(0, sizes=[2, 4])])
        assert torch.equal((own * 2).full_tensor(), scaled(4).values() * 2)  # nothing was lost

    run_ranks(2, body)


def test_a_slice_that_a_class_refuses_is_an_error_on_all_ranks():
    """Also on the rank whose own part is refused by nobody, for it has no rows."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        own = rows(6, block=3)
        message = (
            r"a Rows does not give its indices \d to \d along dim 0: .*not at a block.* Choose sizes that it gives"
        )
        uneven = Shard(0, sizes=[2, 4, 0])
        with pytest.raises(NotImplementedError, match=r"\[distribute_tensor\] " + message):
            sw.distribute_tensor(own, mesh, [uneven])
        x = sw.distribute_tensor(own, mesh, [Replicate()])
        with pytest.raises(NotImplementedError, match=message):
            x.redistribute(placements=[uneven])
        assert torch.equal(x.redistribute(placements=[Shard(0, sizes=[3, 3, 0])]).full_tensor().values(), own.values())

    run_ranks(3, body)


def test_contexts_that_cannot_be_sent_are_the_class_s_error():
    class Keyed(Scaled):
        def __tensor_flatten__(self):
            return ["numbers"], lambda: self.scale

    def body(rank):
        x = sw.distribute_tensor(Keyed(scaled(4).numbers, 0.5), sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(
            NotImplementedError,
            match=r"a Keyed cannot be sent.*the context of Keyed.__tensor_flatten__ cannot be pickled",
        ):
            x.full_tensor()
        with pytest.raises(TypeError, match=r"the text of the context of a Keyed has an address in memory"):
            inner_tensors({"x": x})

    run_ranks(2, body)


def test_ranks_of_different_classes_are_an_error_on_all():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        local = scaled(2) if rank == 0 else rows(2)
        x = sw.DTensor.from_local(local, mesh, [Shard(0)])
        with pytest.raises(
            ValueError, match=r"\[redistribute\] rank 0 gives a Scaled, but rank 1 gives a Rows\. Give the same kind"
        ):
            x.full_tensor()
        plain = scaled(2) if rank == 0 else torch.ones(2, 4)
        with pytest.raises(
            ValueError, match=r"\[from_local\] rank 0 gives a Scaled, but rank 1 gives a tensor\. Give the same kind"
        ):
            sw.DTensor.from_local(plain, mesh, [Shard(0)], run_check=True)
        with pytest.raises(
            ValueError, match=r"local tensors have 2 \+ 3 indices in dim 0, but the tensor of shape \[4, 4\]"
        ):
            sw.DTensor.from_local(scaled(2 + rank), mesh, [Shard(0)], run_check=True, shape=(4, 4), stride=(4, 1))
        good = sw.DTensor.from_local(rows(2), mesh, [Shard(0)], run_check=True)
        assert isinstance(good.to_local(), Rows)

    run_ranks(2, body)


@pytest.mark.parametrize("on_shardwise", [True, False], ids=["compat", "one import"])
def test_processes_move_them_and_compile(tmp_path, on_shardwise):
    expect_all_well("local_class_program.py", 3, "moves,compiled,compiled_moves", tmp_path, on_shardwise=on_shardwise)


def test_a_plain_tensor_beside_them_is_named_by_the_check(tmp_path):
    expect_all_well("local_class_program.py", 2, "plain_beside", tmp_path)


class Flat(Scaled):
    """The numbers row by row in one dim: half of the bytes are no half of the columns. It has no aten.cat."""

    @staticmethod
    def __new__(cls, numbers, size):
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32)

    def __tensor_flatten__(self):
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Flat(inner["numbers"], outer_size)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (aten.slice.Tensor, aten.clone.default, aten.detach.default):
            raise NotImplementedError(f"Flat has no {func}")
        part = func(args[0].numbers.view(args[0].shape), *args[1:])
        return Flat(part.reshape(-1), part.shape)


def test_inner_tensors_that_a_slice_does_not_cut_are_not_joined():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = Flat(torch.arange(16, dtype=torch.int8), (4, 4))
        columns = sw.distribute_tensor(whole, mesh, [Shard(1)])
        with pytest.raises(NotImplementedError, match="of dim 1 of a Flat does not cut its inner tensor numbers"):
            columns.full_tensor()
        rows = sw.distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(rows.full_tensor().numbers, whole.numbers)

    run_ranks(2, body)


class Strided(Scaled):
    """A buffer that it reads under the strides of the protocol. It has no aten.cat."""

    @staticmethod
    def __new__(cls, numbers, size, stride):
        return torch.Tensor._make_wrapper_subclass(cls, size, stride, dtype=torch.float32)

    def __init__(self, numbers, size, stride):
        super().__init__(numbers, 1.0)

    def __tensor_flatten__(self):
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Strided(inner["numbers"], outer_size, outer_stride)

    def values(self):
        return self.numbers.as_strided(self.shape, self.stride())

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (aten.slice.Tensor, aten.clone.default, aten.detach.default):
            raise NotImplementedError(f"Strided has no {func}")
        part = func(args[0].numbers, *args[1:])
        return Strided(part, part.shape, part.stride())


@pytest.mark.parametrize("is_transposed", [False, True])
def test_strides_that_a_class_is_given_fit_its_inner_tensors(is_transposed):
    numbers = torch.arange(16, dtype=torch.int8).view(4, 4)
    numbers = numbers.t() if is_transposed else numbers

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for dim in (0, 1):
            x = sw.distribute_tensor(Strided(numbers, numbers.shape, numbers.stride()), mesh, [Shard(dim)])
            assert torch.equal(x.full_tensor().values(), numbers)
            uneven = x.redistribute(placements=[Shard(1, sizes=[1, 3])]).to_local()
            assert torch.equal(uneven.values(), numbers.split_with_sizes([1, 3], 1)[rank])

    run_ranks(2, body)


class Plain(Scaled):
    """Its slice gives plain values, as classes do that dequantise for operators that they do not know."""

    ANSWERED = (*tuple(set(Scaled.ANSWERED) - {aten.slice.Tensor}), aten.cat.default)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.slice.Tensor:
            return func(args[0].values(), *args[1:])
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_plain_values_are_no_parts_of_an_object():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = Plain(torch.arange(8, dtype=torch.int8).reshape(4, 2), 0.5)
        message = "a Plain does not give its indices 0 to 2 along dim 0: it returns plain values"
        with pytest.raises(NotImplementedError, match=message):
            sw.distribute_tensor(whole, mesh, [Shard(0)])
        with pytest.raises(NotImplementedError, match=message):
            sw.distribute_tensor(whole, mesh, [Replicate()]).redistribute(placements=[Shard(0)])

    run_ranks(2, body)


def test_products_ask_a_class_for_what_torch_decomposes_them_into():
    weight = scaled(6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for placement in (Replicate(), Shard(0)):
            w = sw.distribute_tensor(weight, mesh, [placement])
            for shape in ((2, 6), (2, 3, 6)):
                x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
                ours = sw.distribute_tensor(x, mesh, [Replicate()])
                torch.testing.assert_close((ours @ w).full_tensor(), x @ weight)
                z = x[..., :4].contiguous()
                ours = sw.distribute_tensor(z, mesh, [Replicate()])
                torch.testing.assert_close(
                    torch.nn.functional.linear(ours, w).full_tensor(), torch.nn.functional.linear(z, weight)
                )

    run_ranks(2, body)
