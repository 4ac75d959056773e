"""Views whose values come from other ranks, writes through them, and out= arguments."""

import itertools
import math
import re

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.debug import CommDebugMode
from shardwise.testing import run_ranks

LAYOUTS = [Replicate(), Shard(0), Shard(1), Shard(0, sizes=[3, 0, 1, 2]), Partial()]

# Each gives a view of a [6, 6] tensor; of a sharded dim its values are other ranks'.
VIEWS = {
    "row": lambda x: x[3],
    "last row": lambda x: x[-1],
    "element": lambda x: x[2, 5],
    "row of a column": lambda x: x[:, 1][4],
    "part of a row": lambda x: x[2][1:4],
    "flattened": lambda x: x.view(-1)[7:20],
    "other shape": lambda x: x.view(4, 9)[1],
    "diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.unfold(0, 2, 2)[1],
    "transposed": lambda x: x.t()[2],
    "expanded": lambda x: x[1].unsqueeze(0),
    "chunk": lambda x: x.chunk(4)[2][0],
    "unbound": lambda x: x.unbind(1)[4],
    "strided": lambda x: x.as_strided((3,), (7,), 1),
}


def on_ranks(check, n_ranks: int = 4) -> None:
    run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


def dense() -> torch.Tensor:
    return torch.arange(36.0).view(6, 6)


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_writes_through_a_view_reach_its_base(view, placement):
    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [placement]), dense()
        for x in (ours, theirs):
            view(x).fill_(-1)
            view(x).add_(view(x) * 2)
        assert torch.equal(ours.full_tensor(), theirs)
        assert ours.placements == (placement,)

    on_ranks(check)


# Views that begin elsewhere than their base, or take some of its elements.
PLACED = {
    **VIEWS,
    "base": lambda x: x,
    "rows": lambda x: x[2:],
    "rows of rows": lambda x: x[1:][1:].t()[3:],
    "every other": lambda x: x[1::2, ::3],
    "detached": lambda x: x[2:].detach(),
    "in float halves": lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 3, 2)[3:])[1:]),
    "other bits": lambda x: x[2:].view(torch.int32),
    "new dims": lambda x: x[4].unsqueeze(0).expand(3, 6).transpose(0, 1),
    "a copy": lambda x: x[2:].clone(),
    "strided from within": lambda x: x[2:].as_strided((3,), (2,)),
}


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize("view", PLACED.values(), ids=PLACED.keys())
def test_views_begin_where_the_dense_ones_do(view, placement):
    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [placement]), dense()
        for guard in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with guard():
                assert (view(ours).storage_offset(), view(ours).stride()) == (
                    view(theirs).storage_offset(),
                    view(theirs).stride(),
                )

    on_ranks(check)


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x.view(-1)[4:].as_strided((3,), (1,), 0),
        lambda x: x.view(-1)[4:].as_strided((3,), (1,), 6),
        lambda x: x.view(-1)[4:].as_strided((3,), (1,)),
        lambda x: x[2:, 1:].as_strided((2, 2), (6, 1), 0),  # between its elements are others of the base
        lambda x: x[2:, 1:].as_strided((2, 2), (6, 1)),
        lambda x: x[:2].as_strided((4,), (8,), 3),  # beyond its end
        lambda x: x.t()[1:].as_strided((3, 2), (2, 1), 1),
        lambda x: x[2:].as_strided((0,), (1,), 1),
    ],
)
def test_as_strided_sees_the_memory_of_the_base(strided, placement):
    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [placement]), dense()
        assert torch.equal(strided(ours).full_tensor(), strided(theirs))
        assert strided(ours).storage_offset() == strided(theirs).storage_offset()
        for x in (ours, theirs):
            strided(x).fill_(-1)
        assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


def test_as_strided_of_elements_that_are_not_known_is_an_error():
    def check(mesh):
        base = sw.distribute_tensor(dense(), mesh, [Shard(0)])
        for call in (
            lambda: base.as_strided((3,), (18,), 1),  # beyond the end
            lambda: base[2:].detach().as_strided((3,), (1,), 0),  # detached: its base is forgotten
        ):
            with pytest.raises(
                ValueError, match=r"\[aten::as_strided\] elements \[\d+, \d+\) of memory are not all in the DTensor"
            ):
                call()

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(1), Shard(1, sizes=[1, 0, 0, 0]), Replicate()], ids=str)
def test_a_row_of_an_expanded_tensor_is_written_on_every_rank(placement):
    def check(mesh):
        base = sw.distribute_tensor(torch.ones(1, 1, 5), mesh, [placement])
        base.expand(2, -1, -1)[:1].mul_(3)
        assert torch.equal(base.full_tensor(), torch.full((1, 1, 5), 3.0))

    on_ranks(check)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_keeps_its_shape_when_its_base_changes_its_own(view):
    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense()
        seen, expected = view(ours), view(theirs)
        for x, part in ((ours, seen), (theirs, expected)):
            x.t_().mul_(3)
            part.sub_(1)
        assert torch.equal(seen.full_tensor(), expected)
        assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_sees_what_is_written_to_its_base_later(view):
    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense()
        seen, expected = view(ours), view(theirs)
        for x in (ours, theirs):
            x.mul_(3)
        assert torch.equal(seen.full_tensor(), expected)
        for x, part in ((ours, seen), (theirs, expected)):
            part.sub_(1)
            x.add_(part.sum())
        assert torch.equal(seen.full_tensor(), expected)
        assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


@pytest.mark.parametrize(
    "name", sorted(VIEWS.keys() - {"chunk", "unbound"})
)  # torch lets nobody write to one of several
def test_writes_through_a_view_reach_the_gradient_of_its_base(name):
    view = VIEWS[name]

    def check(mesh):
        results = []
        for make in (lambda: sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense):
            x = make().requires_grad_()
            y = x * 2
            view(y).mul_(5)
            (y * y).sum().backward()
            results.append(x.grad)
        assert torch.equal(results[0].full_tensor(), results[1])
        assert results[0].placements == (Shard(0),)

    on_ranks(check)


def test_a_view_and_its_base_share_their_version():
    def check(mesh):
        base = sw.distribute_tensor(dense(), mesh, [Shard(0)])
        row = base[3]
        assert row._base is base or row._base is not None
        before = base._version
        row.zero_()
        assert base._version == row._version == before + 1

    on_ranks(check)


@pytest.mark.parametrize("inner", [lambda x: x, lambda x: x[1:4]], ids=["view", "of a view"])
@pytest.mark.parametrize("view", [lambda x: x[3], lambda x: x.view(4, 9)[1]], ids=["row", "other shape"])
def test_a_view_written_to_through_data_sees_the_next_write_to_its_base(view, inner):
    """`.data` counts its writes for itself."""

    def check(mesh):
        ours, theirs = sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense()
        (seen, part), (expected, dense_part) = ((view(x), inner(view(x))) for x in (ours, theirs))
        for x, written in ((ours, part), (theirs, dense_part)):
            before = x._version
            written.data.fill_(7)
            assert x._version == before
            x.add_(1)
            written.data.mul_(3)
            x.add_(1)
        assert torch.equal(ours.full_tensor(), theirs)
        assert torch.equal(seen.full_tensor(), expected)
        assert torch.equal(part.full_tensor(), dense_part)

    on_ranks(check)


def test_a_padding_row_is_zeroed_where_it_lives():
    def check(mesh):
        table = sw.distribute_tensor(torch.ones(10, 3), mesh, [Shard(0, sizes=[1, 4, 0, 5])])
        with torch.no_grad(), sw.CommDebugMode() as comm:
            table[7].fill_(0)
        assert table.full_tensor().sum(1).tolist() == [3] * 7 + [0] + [3] * 2
        assert sum(event.bytes_received for event in comm.events) <= 3 * 4  # the row at most, never the table

    on_ranks(check)
    run_ranks(1, lambda rank: nn.Embedding(5, 2, padding_idx=1))


OUTS = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "matmul": lambda x, out: torch.mm(x, x, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "fallback": lambda x, out: torch.linalg.matrix_power(x, 2, out=out),
}


@pytest.mark.parametrize("operator", OUTS.values(), ids=OUTS.keys())
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1, sizes=[0, 4, 2, 0])], ids=str)
def test_out_is_written_where_its_pieces_are(operator, placement):
    def check(mesh):
        x = sw.distribute_tensor(dense(), mesh, [Shard(0)])
        out = sw.zeros(6, 6, device_mesh=mesh, placements=[placement])
        local = out.to_local()
        assert operator(x, out) is out
        assert torch.equal(out.full_tensor(), operator(dense(), torch.zeros(6, 6)))
        assert out.placements == (placement,) and out.to_local().data_ptr() == local.data_ptr()

    on_ranks(check)


def test_out_of_several_results_and_of_no_elements():
    def check(mesh):
        x = sw.distribute_tensor(dense(), mesh, [Shard(0)])
        values = sw.zeros(6, device_mesh=mesh, placements=[Replicate()])
        indices = sw.distribute_tensor(torch.zeros(6, dtype=torch.long), mesh, [Replicate()])
        torch.max(x, dim=1, out=(values, indices))
        assert values.full_tensor().tolist() == [5, 11, 17, 23, 29, 35] and indices.full_tensor().tolist() == [5] * 6
        resized = sw.zeros(0, device_mesh=mesh, placements=[Replicate()])
        torch.add(x, 1, out=resized)
        assert resized.shape == (6, 6) and torch.equal(resized.full_tensor(), dense() + 1)

    on_ranks(check)


def test_a_plain_out_and_one_of_another_kind_are_errors():
    def check(mesh):
        x = sw.distribute_tensor(dense(), mesh, [Shard(0)])
        with pytest.raises(ValueError, match=r"aten::add.out\] got a torch.Tensor of shape \[6, 6\] next to a DTensor"):
            torch.add(x, 1, out=torch.zeros(6, 6))
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(x, 1.5, out=sw.distribute_tensor(torch.zeros(6, 6, dtype=torch.long), mesh, [Shard(0)]))

    on_ranks(check)


def test_views_of_which_some_ranks_have_nothing_keep_step():
    def check(mesh):
        base = sw.distribute_tensor(torch.ones(5, 3), mesh, [Shard(0)])
        view = base.view(3, 5)  # on two ranks of four there is none of it
        base.mul_(2)
        assert torch.equal((view + 1).full_tensor(), torch.full((3, 5), 3.0))
        windows = sw.distribute_tensor(torch.ones(5, 3), mesh, [Shard(0, sizes=[1, 0, 3, 1])])
        seen = windows.unfold(0, 2, 2)
        windows.zero_()
        assert seen.sum().item() == 0

    on_ranks(check)


@pytest.mark.parametrize("placement", LAYOUTS[:3], ids=str)
def test_writes_through_a_view_of_another_dtype_keep_the_bits(placement):
    def check(mesh):
        base = sw.distribute_tensor(torch.zeros(4, 4), mesh, [placement])
        base.view(torch.int32).fill_(0x3F800000)  # 1.0
        assert torch.equal(base.full_tensor(), torch.ones(4, 4))

    on_ranks(check)


def test_views_and_bases_see_each_other_in_inference_mode():
    def check(mesh):
        with torch.inference_mode():
            base = sw.distribute_tensor(dense(), mesh, [Shard(1)])
            row, part = base[1], base.view(-1)[3:9]
            base.mul_(2)
            assert torch.equal(row.full_tensor(), dense()[1] * 2)
            part.zero_()
            assert torch.equal(base.full_tensor().view(-1)[3:9], torch.zeros(6))
            assert torch.equal(row.full_tensor()[:3], torch.zeros(3))

    on_ranks(check)


def test_parts_of_an_unsafe_split_are_written_to_one_by_one():
    def check(mesh):
        x = sw.distribute_tensor(dense(), mesh, [Shard(0)]).requires_grad_()
        first, second = (x * 2).unsafe_chunk(2, 1)
        (first.tanh_() + second.sigmoid_()).sum().backward()
        y = dense().requires_grad_()
        a, b = (y * 2).unsafe_chunk(2, 1)
        (a.tanh() + b.sigmoid()).sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), y.grad)
        plain, whole = sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense()
        for each in (plain, whole):
            each.unsafe_chunk(2, 1)[1].zero_()  # they share memory
        assert torch.equal(plain.full_tensor(), whole)

    on_ranks(check)


def test_a_list_to_write_to_holds_no_copied_views():
    def check(mesh):
        base = sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
        with pytest.raises(ValueError, match="the list of tensors to write to holds a view whose values were moved"):
            torch._foreach_add_([base, base.view(8, 3)], 1.0)

    on_ranks(check)


def test_writes_by_the_short_way_are_seen_in_inference_mode():
    def check(mesh):
        with torch.inference_mode():
            ones = sw.distribute_tensor(torch.ones(6, 6), mesh, [Shard(0)])
            base = ones.clone()
            row = base[1]
            for sum_so_far in (2, 3, 4):  # the first time by the general way, then by that of hot operators
                base.add_(ones)
                assert torch.equal(row.full_tensor(), torch.full((6,), float(sum_so_far)))
            for draw in (base.normal_, base.uniform_, lambda: base.random_(9), lambda: base.bernoulli_(0.5)):
                draw()
                assert torch.equal(row.full_tensor(), base.full_tensor()[1])

    on_ranks(check, n_ranks=2)


def test_an_expanded_tensor_is_not_written_to():
    """As torch's: which ranks share memory depends on the layout, so that the layout decides and not the kernel."""

    def check(mesh):
        row = sw.distribute_tensor(torch.ones(1, 6), mesh, [Shard(1)])
        for write in (
            lambda x: x.add_(1),
            lambda x: x.copy_(row),
            lambda x: x.normal_(),
            lambda x: x.random_(3),
        ):
            with pytest.raises(RuntimeError, match="cannot write to an expanded tensor of shape"):
                write(row.expand(4, 6))
        moved = row.expand(4, 6).redistribute(placements=[Shard(0)])
        assert torch.equal(moved.add_(1).full_tensor(), torch.full((4, 6), 2.0))
        assert torch.equal(row.full_tensor(), torch.ones(1, 6))

    on_ranks(check)


def test_writes_that_torch_takes_into_an_expanded_tensor():
    def check(mesh):
        mask = torch.tensor([True, False, True, False, False, True])
        writes = [
            lambda x, mask: x.zero_(),
            lambda x, mask: x.fill_(3),
            lambda x, mask: x[1].zero_(),
            lambda x, mask: x.masked_fill_(mask, 5.0),
            lambda x, mask: x.masked_fill_(mask, torch.tensor(4.0)),
        ]
        for write in writes:
            for placement in ([Shard(1)], [Replicate()]):
                row, plain = torch.arange(6.0).view(1, 6), torch.arange(6.0).view(1, 6)
                ours = sw.distribute_tensor(row, mesh, placement)
                write(ours.expand(4, 6), sw.distribute_tensor(mask, mesh, [Replicate()]))
                write(plain.expand(4, 6), mask)
                assert torch.equal(ours.full_tensor(), plain)
        nothing = sw.distribute_tensor(torch.ones(1, 0), mesh, [Shard(0)]).expand(4, 0)
        for write in (lambda x: x.add_(1), lambda x: x.normal_(), lambda x: x.copy_(x)):
            write(nothing)
        apart = (
            sw.distribute_tensor(torch.ones(1, 6), mesh, [Replicate()]).expand(4, 6).redistribute(placements=[Shard(0)])
        )
        apart.zero_()  # moved elements have a place each
        assert torch.equal(apart.full_tensor(), torch.zeros(4, 6))

    on_ranks(check)


def test_a_part_of_an_expanded_copy_is_written_to():
    """Pieces that are no blocks of rows are moved to be expanded; a write to one of the repetitions goes back to the pieces."""

    def check(mesh):
        pieces = [([0, 0], [2, 3], 0), ([2, 2], [1, 1], 0), ([2, 0], [1, 2], 1)]
        pieces = [sw.ShardMetadata(offsets=at, sizes=sizes, rank=rank) for at, sizes, rank in pieces]
        dense = torch.arange(-4.0, 5.0).view(3, 3)
        base = sw.distribute_tensor(dense, mesh, [sw.EnumerableShard(pieces)])
        for write in (lambda x: x.expand(2, -1, -1).unbind()[1].relu_(), lambda x: x.expand(2, -1, -1)[0].mT[1].neg_()):
            write(base)
            write(dense)
            assert torch.equal(base.full_tensor(), dense)

    on_ranks(check, n_ranks=2)


@pytest.mark.parametrize("several", [lambda x: x.chunk(2), lambda x: x.split([1, 5]), lambda x: x.unbind(1)])
def test_one_of_several_views_is_not_written_to_under_autograd(several):
    def check(mesh):
        for make in (lambda: sw.distribute_tensor(dense(), mesh, [Shard(0)]), dense):
            with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
                several(make().requires_grad_() * 2)[0].mul_(2)
            several(make())[0].mul_(2)

    on_ranks(check)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.expand(2, 6, 6).sigmoid(),
        lambda x: x.t().expand(2, 6, 6).exp(),
        lambda x: x[None].expand(3, 6, 6) * x,
    ],
)
def test_results_of_expanded_tensors_are_ordered_in_memory_as_torchs(make):
    on_ranks(lambda mesh: check_strides(make, sw.distribute_tensor(dense(), mesh, [Shard(0)])))


def check_strides(make, x):
    assert make(x).stride() == make(dense()).stride()


def dtype_cases():
    """[4, 8] and [3, 8] tensors of one dtype, seen as another, on each placement."""
    dtypes = (torch.float32, torch.int32, torch.bfloat16, torch.float64, torch.uint8, torch.complex64)
    placements = (Replicate(), Shard(0), Shard(1), Partial(), sw.RaggedShard((0,), (1, 2)))
    for shape, placement, before, after in itertools.product([(4, 8), (3, 8), (5,)], placements, dtypes, dtypes):
        if placement != Shard(1) or len(shape) > 1:
            yield torch.arange(math.prod(shape)).view(shape).to(before), placement, after


def test_memory_seen_as_another_dtype_is_dense_s():
    """Sharded rows and pieces send nothing. A Partial is reduced first: its terms' bits have no sum."""

    def check(mesh):
        for x, placement, dtype in dtype_cases():
            ours = sw.distribute_tensor(x.clone(), mesh, [placement])
            try:
                dense = x.view(dtype)
            except RuntimeError as error:
                with pytest.raises(RuntimeError, match=re.escape(str(error))):
                    ours.view(dtype)
                continue
            with CommDebugMode() as sent:
                view = ours.view(dtype)
            assert (view.dtype, view.shape, view.stride()) == (dtype, dense.shape, dense.stride())
            torch.testing.assert_close(view.full_tensor(), dense, rtol=0, atol=0, equal_nan=True)
            is_local = placement in (Replicate(), Shard(0)) and x.dim() > 1
            assert not is_local or sent.get_total_counts() == 0
            if not isinstance(placement, Partial):
                view.zero_()
                dense.zero_()
                assert torch.equal(ours.full_tensor(), x)

    on_ranks(check, 2)


@pytest.mark.parametrize(
    "placement", [sw.RaggedShard((0, 1), (7, 1, 0, 28)), sw.RaggedShard((0,), (1, 2, 0, 3)), Partial()]
)
def test_a_view_of_the_same_shape_sends_nothing(placement):
    views = [lambda x: x.view(6, 6), lambda x: x.reshape(-1, 6), lambda x: x.view_as(x), lambda x: x.expand(6, 6)]
    views += [lambda x: x.squeeze(), lambda x: x.view(torch.float32)]

    def check(mesh):
        ours = sw.distribute_tensor(dense(), mesh, [placement])
        with CommDebugMode() as sent:
            seen = [view(ours) for view in views]
        assert sent.get_total_counts() == 0 and all(view.placements == ours.placements for view in seen)
        if not isinstance(placement, Partial):
            seen[-1].mul_(2)
            assert all(torch.equal(view.full_tensor(), 2 * dense()) for view in (ours, *seen))

    on_ranks(check)
