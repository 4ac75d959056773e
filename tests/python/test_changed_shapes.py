"""Views next to operators that change a tensor's shape in place, operators that resize a tensor, and views of inference tensors."""

import contextlib

import pytest
import torch

import shardwise as sw
from shardwise import Partial, RaggedShard, Replicate, Shard
from shardwise.testing import run_ranks

CHANGES = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(1, 0),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).t_() if x.dim() < 2 else x.unsqueeze_(2).transpose_(1, 2).squeeze_(1).t_(),
}
VIEWS = {
    "view_as": lambda x: x.view_as(x),
    "view": lambda x: x.view(2, 8),
    "select": lambda x: x[1],
    "slice": lambda x: x[1:3],
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, 1:].unsqueeze(0),
}


def on_ranks(check, n_ranks: int = 2) -> None:
    run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


def base(mesh, placement) -> tuple[torch.Tensor, torch.Tensor]:
    """The same square, so that a wrong dim would not be noticed by its size; distributed and dense."""
    dense = torch.arange(16.0).view(4, 4)
    return sw.distribute_tensor(dense, mesh, [placement]).requires_grad_(), dense.clone().requires_grad_()


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_view_has_its_gradient_after_its_base_changed_its_shape(change, view, placement):
    def check(mesh):
        found = []
        for x in base(mesh, placement):
            y = x * 1
            seen = view(y)
            change(y)
            (seen * seen).sum().backward(retain_graph=True)  # the history from before
            seen.add_(1)
            y.mul_(2)
            ((y**2).sum() + (seen**3).sum()).backward()
            found.append((x.grad, y, seen))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_view_that_changes_its_shape_has_its_gradient_after_a_write(change, view, placement):
    def check(mesh):
        found = []
        for x in base(mesh, placement):
            y = x * 1
            seen = view(y)
            if seen.dim() == 2 or (change is CHANGES["unsqueeze_"] and seen.dim()):
                change(seen)
            y.add_(1)
            seen.mul_(2)
            part = seen[0]
            part.add_(3)
            ((y**2).sum() + (seen**3).sum() + part.sum()).backward()
            found.append((x.grad, y, seen, part))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


def test_a_view_that_is_not_found_in_its_base_says_so():
    def check(mesh):
        y = base(mesh, Replicate())[0] * 1
        seen = y[1:3]
        y.as_strided_((2, 2), (4, 1))
        with pytest.raises(
            ValueError, match=r"view's base had shape \[4, 4\], and an in-place operator made it \[2, 2\]"
        ):
            seen.sum().backward()

    on_ranks(check)


@pytest.mark.parametrize("terms", [Shard(0), Shard(2), Replicate()], ids=str)
@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial()], ids=str)
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4)], ids=str)
def test_addbmm_resizes_its_operand_as_torch_does(shape, placement, terms):
    dense = [torch.arange(float(torch.Size(sizes).numel())).view(sizes) for sizes in (shape, (2, 3, 5), (2, 5, 4))]

    def check(mesh):
        ours = [
            sw.distribute_tensor(x, mesh, [layout]) for x, layout in zip(dense, (placement, terms, terms), strict=True)
        ]
        theirs = dense[0].clone()
        assert ours[0].addbmm_(*ours[1:]) is ours[0]
        theirs.addbmm_(*dense[1:])
        assert torch.equal(ours[0].full_tensor(), theirs) and ours[0].stride() == theirs.stride()

    on_ranks(check)


INFERENCE_VIEWS = {
    **VIEWS,
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "split": lambda x: x.split(2)[1],
    "strided": lambda x: x.as_strided((2,), (3,), 1),
    "diagonal": lambda x: x.diagonal(),
    "dtype": lambda x: x.view(torch.int32),
}


def outcome(act):
    try:
        return act()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("in_mode", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("is_inference", [False, True], ids=["normal", "inference"])
@pytest.mark.parametrize("view", INFERENCE_VIEWS.values(), ids=INFERENCE_VIEWS.keys())
def test_a_view_of_an_inference_tensor_is_what_torch_makes_it(view, is_inference, in_mode):
    def check(mesh):
        def found(x):
            with torch.inference_mode(is_inference):
                base = x.clone()
            seen = []
            for _ in range(2):  # the second call knows its layout
                with torch.inference_mode(in_mode):
                    part = view(base)
                versions = outcome(lambda part=part: part._version)
                writes = outcome(lambda part=part: part.mul_(2)._version)
                seen.append((part.is_inference(), versions, writes))
            return seen, getattr(base, "full_tensor", base.clone)()

        dense = torch.ones(4, 4)
        theirs = found(dense)
        for placement in (Shard(0), Shard(1), Replicate(), Partial()):
            ours = found(sw.distribute_tensor(dense, mesh, [placement]))
            assert ours[0] == theirs[0]
            if view is not INFERENCE_VIEWS["dtype"]:  # a Partial has other bits
                assert torch.equal(ours[1], theirs[1])

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_view_with_a_history_that_changes_its_shape_in_inference_mode_has_its_gradient(change, placement):
    def check(mesh):
        found = []
        for x in base(mesh, placement):
            seen = (x * 1)[:, 1:]
            with torch.inference_mode():
                change(seen)
            (seen * seen * seen.cumsum(0)).sum().backward()
            found.append(x.grad)
        assert torch.equal(found[0].full_tensor(), found[1])

    on_ranks(check)


def test_as_strided_in_place_gives_a_replica_new_strides():
    def check(mesh):
        dense = torch.arange(16.0).view(4, 4)
        found = []
        for x in (sw.distribute_tensor(dense, mesh, [Replicate()]), dense.clone()):
            part = x[1:]
            strides = [x.as_strided_(*shape).stride() for shape in (((4, 4), (1, 4)), ((2, 2), (1, 2), 2))]
            part.mul_(10)
            found.append((x, part, x.as_strided((2,), (2,))))
            assert strides == [(1, 4), (1, 2)] and x.storage_offset() == 2 and x._version == 3
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


def test_as_strided_in_place_on_a_view_has_its_gradient():
    def check(mesh):
        for in_mode in (False, True):
            found = []
            for x in base(mesh, Replicate()):
                seen = (x * 1)[1:]
                with torch.inference_mode(in_mode):
                    seen.as_strided_((2, 3), (4, 1), 5)
                seen.add_(1)
                (seen**3).sum().backward()
                found.append((x.grad, seen))
            for ours, theirs in zip(*found, strict=True):
                assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


LAYOUTS = [Replicate(), Shard(0), Shard(1), Partial()]
MODES = {"normal": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def expect_same(change, mode, mesh, placement) -> None:
    """`change` of a square, in this mode, returns tensors that are those of a dense square, and lie in memory as they do."""
    found = []
    for x in (sw.distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [placement]), torch.arange(16.0).view(4, 4)):
        y = x.clone()
        with mode():
            found.append((y, *change(y)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours.full_tensor(), theirs)
        for fact in (
            torch.Tensor.stride,
            torch.Tensor.storage_offset,
            torch.Tensor.is_inference,
            torch.Tensor._is_view,
        ):
            assert fact(ours) == fact(theirs)
        assert ours.is_inference() or ours._version == theirs._version


def strided_in_place(x):
    return (x.as_strided_((2, 3), (4, 1), 5),)


def resized_view(x):
    part, below = x[1:], x[2]
    part.resize_(2, 2).mul_(10)
    return part, below, part.resize_((6,)).add_(1)


def resized_base(x):
    part = x[0]
    x.resize_((2, 3)).mul_(10)
    return (part,)


def given_memory(x):
    part, other = x[1], -x
    x.set_(other[2:])
    other.add_(1)
    part.mul_(100)
    x[0].zero_()
    return part, other


def without_dims(x):
    column, row = x.t().unsqueeze(0).select(2, 1).t(), x.view(2, 2, 4).select(0, 1)[1:2]
    return column.squeeze_(), row.t_(), x.view(1, 4, 4).transpose(0, 1)[:1].squeeze_(0)


def expanded_and_detached(x):
    return ((-x).expand(2, 4, 4).detach_(),) if torch.is_inference_mode_enabled() else ()


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize(
    "change", [strided_in_place, resized_view, resized_base, given_memory, without_dims, expanded_and_detached]
)
def test_a_change_of_shape_or_memory_is_that_of_torch(change, mode, placement):
    for n_ranks in (1, 2):
        on_ranks(lambda mesh: expect_same(change, mode, mesh, placement), n_ranks)


RESIZED = {
    "resize_": lambda x, row, nothing: x.resize_(2, 2),
    "resize_as_": lambda x, row, nothing: x.resize_as_(row.view(2, 2)),
    "addbmm_": lambda x, row, nothing: row.addbmm_(x[None], x[None]),
    "out": lambda x, row, nothing: torch.add(x, x, out=nothing),
}


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
@pytest.mark.parametrize("change", RESIZED.values(), ids=RESIZED.keys())
def test_a_tensor_stays_a_normal_one_in_inference_mode(change, placement):
    def check(mesh):
        found = []
        for x in (sw.distribute_tensor(torch.ones(4, 4), mesh, [placement]), torch.ones(4, 4)):
            row, nothing = x.new_ones(4), x.new_empty(0)
            with torch.inference_mode():
                found.append(change(x, row, nothing))
        ours, theirs = found
        assert torch.equal(ours.full_tensor(), theirs) and ours._version == theirs._version
        assert not ours.is_inference() and not theirs.is_inference()

    on_ranks(check)


def test_the_memory_of_a_replica_grows_with_its_views():
    def check(mesh):
        found = []
        for x in (sw.distribute_tensor(torch.arange(4.0), mesh, [Replicate()]), torch.arange(4.0)):
            copy, part = x.data, x[2:]
            part.resize_(6).fill_(7)
            assert copy.shape == (4,)
            found.append((x, part, copy))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours.full_tensor(), theirs)

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0), Partial()], ids=str)
def test_memory_in_pieces_does_not_grow(placement):
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(4, 4), mesh, [placement])
        for tensor in (x, x[1:]):
            with pytest.raises(NotImplementedError, match=r"\[aten::resize_\] shape \[5, 4\] needs elements"):
                tensor.resize_(5, 4)

    on_ranks(check)


@pytest.mark.parametrize("placement", LAYOUTS, ids=str)
def test_a_view_that_strides_were_given_in_place_has_the_gradient_of_the_elements_that_it_has_now(placement):
    def check(mesh):
        found = []
        for x in base(mesh, placement):
            part = x[1]
            with torch.no_grad():
                part.as_strided_((2, 2), (4, 1), 4)
            (part**2).sum().backward()
            found.append(x.grad)
        assert torch.equal(found[0].full_tensor(), found[1])

    on_ranks(check)


def test_a_view_made_before_its_base_changed_its_shape_may_take_a_gradient_later():
    def check(mesh):
        found = []
        for x in base(mesh, Shard(0)):
            memory = torch.zeros_like(x, requires_grad=False)
            part = memory[1:]
            with torch.no_grad():
                memory.t_()
            part.copy_(x[1:])
            (memory**2).sum().backward()
            found.append(x.grad)
        assert torch.equal(found[0].full_tensor(), found[1])

    on_ranks(check)


def test_a_view_keeps_a_history_that_leads_nowhere_when_its_base_is_detached():
    def check(mesh):
        for x in base(mesh, Shard(0)):
            y = x * 1
            part = y[1]
            y.detach_().mul_(2)
            assert part.requires_grad and not part.is_leaf
            part.sum().backward()
            assert x.grad is None

    on_ranks(check)


def test_a_leaf_that_changes_its_shape_between_forward_and_backward_takes_the_gradient_as_it_comes():
    def check(mesh):
        found = []
        for x in base(mesh, Shard(0)):
            loss = (x[0] * 3).sum() + (x * 2).sum()
            with torch.no_grad():
                x.unsqueeze_(0)
            loss.backward()
            found.append(x.grad)
        assert torch.equal(found[0].full_tensor(), found[1])

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0), RaggedShard((0,), (1, 2)), Replicate()], ids=str)
def test_a_write_through_a_window_of_an_expanded_tensor_reaches_its_source(placement):
    def check(mesh):
        found = []
        for x in (sw.distribute_tensor(torch.arange(9.0).view(3, 3), mesh, [placement]), torch.arange(9.0).view(3, 3)):
            x.expand(2, -1, -1).unfold(0, 1, 2).squeeze().mul_(2)
            found.append(x)
        assert torch.equal(found[0].full_tensor(), found[1])

    on_ranks(check)


def test_a_column_of_ranges_has_each_element_once():
    def check(mesh):
        for shape, layout in (((5,), RaggedShard((0,), (1, 1))), ((1, 4), RaggedShard((0, 1), (1, 3)))):
            dense = torch.arange(float(torch.Size(shape).numel())).view(shape)
            x = sw.distribute_tensor(dense, mesh, [layout])
            assert torch.equal(x[..., -1].full_tensor(), dense[..., -1])

    on_ranks(check)
