"""Views next to operators that change a tensor's shape in place, operators that resize a tensor, and views of inference tensors."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
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


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Partial()], ids=str)
def test_as_strided_in_place_is_refused_where_strides_do_not_tell_where_elements_are(placement):
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(4, 4), mesh, [placement])
        assert x.as_strided_((4, 4), (4, 1)) is x
        with pytest.raises(NotImplementedError, match=r"Use as_strided\(\)"):
            x.as_strided_((4, 4), (1, 4))

    on_ranks(check)
