"""Plain tensors next to distributed ones: an error where a user passes them, replicas where torch makes them."""

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks


def on_ranks(check) -> None:
    run_ranks(4, lambda rank: check(sw.init_device_mesh("cpu", (4,))))


@pytest.mark.parametrize("call", [torch.add, torch.mm, torch.kron, torch.dot], ids=lambda call: call.__name__)
def test_a_users_plain_tensor_is_an_error(call):
    def check(mesh):
        plain = torch.ones(4, 4) if call is not torch.dot else torch.ones(4)
        tensor = sw.distribute_tensor(plain, mesh, [Shard(0)])
        for operands in ((tensor, plain), (plain, tensor)):
            with pytest.raises(ValueError, match=r"got a torch.Tensor of shape .* next to a DTensor. Wrap it with"):
                call(*operands)
        with sw.implicit_replication():
            assert torch.equal(call(tensor, plain).full_tensor(), call(plain, plain))

    on_ranks(check)


def test_plain_ids_of_an_embedding_are_an_error():
    def check(mesh):
        table = sw.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        with pytest.raises(ValueError, match="next to a DTensor"):
            F.embedding(torch.tensor([1, 2]), table)

    on_ranks(check)


def test_plain_operands_of_bags_are_errors_on_every_rank():
    """A rank's own part of the batch, as data-parallel programs have it, is no replica."""
    n_failed = []

    def check(mesh):
        table = sw.distribute_tensor(torch.eye(4), mesh, [Shard(0)])
        own = torch.tensor([mesh.get_local_rank(), 1, 2])
        ids = sw.DTensor.from_local(own, mesh, [Shard(0)])
        calls = {
            "indices": lambda: F.embedding_bag(own.view(1, 3), table),
            "indices of the module": lambda: torch.nn.EmbeddingBag.from_pretrained(table)(own.view(1, 3)),
            "offsets": lambda: F.embedding_bag(ids, table, torch.tensor([0, 1])),
            "per_sample_weights": lambda: F.embedding_bag(
                ids.view(-1, 3), table, mode="sum", per_sample_weights=torch.ones(4, 3)
            ),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"next to a DTensor, as {name.split()[0]}. Wrap it with"):
                call()
        n_failed.append(len(calls))
        dense = F.embedding_bag(torch.tensor([[rank, 1, 2] for rank in range(4)]), torch.eye(4))
        assert torch.equal(F.embedding_bag(ids.view(-1, 3), table).full_tensor(), dense)

    on_ranks(check)
    assert n_failed == [4] * 4


# Operators that torch composes of others, with plain tensors in between.
COMPOSED = {
    "combinations": lambda x: torch.combinations(x[0]),
    "quantile": lambda x: x.quantile(0.3, dim=0),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, 3),
    "matrix_rank": torch.linalg.matrix_rank,
    "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 5, 3),
    "one_hot": lambda x: F.one_hot(x.long().abs() % 5),
    "cov": torch.cov,
    "tensor_split": lambda x: x.tensor_split([1, 3]),
}


@pytest.mark.parametrize("call", COMPOSED.values(), ids=COMPOSED.keys())
def test_plain_tensors_made_by_torch_are_replicas(call):
    def check(mesh):
        dense = torch.arange(25.0).view(5, 5) % 7 - 3
        for placement in (Shard(0), Shard(1, sizes=[1, 0, 4, 0]), Replicate()):
            ours, theirs = call(sw.distribute_tensor(dense, mesh, [placement])), call(dense)
            for a, b in zip(
                ours if isinstance(ours, tuple) else [ours], theirs if isinstance(theirs, tuple) else [theirs]
            ):
                assert isinstance(a, sw.DTensor)
                torch.testing.assert_close(a.full_tensor(), b)

    on_ranks(check)


def test_a_custom_backward_may_mix_them():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.full((3,), 2.0)

    def check(mesh):
        x = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]).requires_grad_()
        Doubled.apply(x).sum().backward()
        assert torch.equal(x.grad.full_tensor(), torch.full((4, 3), 2.0))

    on_ranks(check)


FLAT = {
    "sgn": lambda x: torch.sgn(x),
    "copysign": lambda x: torch.copysign(x, x),
    "nextafter": lambda x: torch.nextafter(x, x + 1),
    "sgn_": lambda x: (x * 1).sgn_(),
    "copysign_": lambda x: (x * 1).copysign_(x * 2),
    "nextafter_": lambda x: (x * 1).nextafter_(x * 2),
    "no repeats": lambda x: x.repeat(0, 1),
    "abs, twice": lambda x: torch.autograd.grad(x.abs().sum(), x, create_graph=True)[0],
}


@pytest.mark.parametrize("call", FLAT.values(), ids=FLAT.keys())
def test_gradients_of_plain_zeros_get_the_operands_layout(call):
    def check(mesh):
        x = sw.distribute_tensor(
            torch.arange(12.0).view(4, 3) - 5, mesh, [Shard(0, sizes=[1, 0, 1, 2])]
        ).requires_grad_()
        (grad,) = torch.autograd.grad(call(x).sum(), x)
        assert isinstance(grad, sw.DTensor) and grad.shape == x.shape

    on_ranks(check)


# Of plain values, by distributed positions or a mask.
CHOSEN = {
    "gather": lambda x, at, mask: x.gather(0, at[:, None].expand(4, 3)),
    "index_select": lambda x, at, mask: x.index_select(0, at),
    "index": lambda x, at, mask: x[at],
    "index by a mask": lambda x, at, mask: x[mask],
    "take": lambda x, at, mask: x.take(at),
    "masked_select": lambda x, at, mask: x.masked_select(mask[:, None]),
}


@pytest.mark.parametrize("call", CHOSEN.values(), ids=CHOSEN.keys())
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(0, sizes=[1, 0, 3, 0])], ids=str)
def test_plain_values_are_chosen_by_distributed_positions(call, placement):
    at, mask = torch.tensor([2, 0, 2, 3]), torch.tensor([True, False, True, True])
    dense = torch.arange(12.0).view(4, 3).requires_grad_()
    expected = call(dense, at, mask)
    expected.sin().sum().backward()

    def check(mesh):
        given = [sw.distribute_tensor(chosen, mesh, [placement], src_data_rank=None) for chosen in (at, mask)]
        plain = dense.detach().clone().requires_grad_()
        with pytest.raises(ValueError, match="next to a DTensor"):
            call(plain, *given)
        with sw.implicit_replication():
            ours = call(plain, *given)
        torch.testing.assert_close(ours.full_tensor(), expected.detach())
        ours.sin().sum().backward()
        assert type(plain.grad) is torch.Tensor
        torch.testing.assert_close(plain.grad, dense.grad)

    on_ranks(check)


@pytest.mark.parametrize("placement", [Replicate(), Partial()], ids=str)
def test_a_plain_number_that_leads_a_list_is_an_operand_like_others(placement):
    def check(mesh):
        number = sw.distribute_tensor(torch.tensor(3.0), mesh, [placement])
        led = [torch.tensor(1.0)]
        for call in (torch._foreach_add_, torch._foreach_add):
            with pytest.raises(ValueError, match=r"got a torch.Tensor of shape \[\] next to a DTensor"):
                call(led, [number])
        with sw.implicit_replication():
            assert torch._foreach_add(led, [number])[0].full_tensor() == 4
            torch._foreach_add_(led, [number])
        assert type(led[0]) is torch.Tensor and led[0] == 4

    on_ranks(check)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Partial()], ids=str)
def test_plain_labels_are_checked(placement):
    logits = torch.linspace(-1, 1, 15).view(3, 5)

    def check(mesh):
        x = sw.distribute_tensor(logits, mesh, [placement])
        with sw.implicit_replication():
            for wrong in ([0, -1, 2], [0, 5, 99]):
                with pytest.raises(IndexError, match=r"Target (-1|99) is out of bounds"):
                    F.cross_entropy(x, torch.tensor(wrong))
            labels = torch.tensor([0, -100, 4])
            torch.testing.assert_close(F.cross_entropy(x, labels).full_tensor(), F.cross_entropy(logits, labels))

    on_ranks(check)


def test_a_plain_number_gets_a_plain_gradient():
    """A temperature, say, which is a parameter of its own: optimizers step it beside its gradient."""

    def check(mesh):
        dense = torch.arange(24.0).view(6, 4)
        for call in (torch.mul, torch.add, lambda x, w: torch.where(x > 3, x, w), lambda x, w: x.clamp(min=w)):
            for placement in (Shard(0), Partial(), Replicate()):
                x = sw.distribute_tensor(dense, mesh, [placement])
                plain, expected = (torch.tensor(2.0, requires_grad=True) for _ in range(2))
                optimizer = torch.optim.AdamW([plain])
                for each, w in ((x, plain), (dense, expected)):
                    call(each, w * 1).square().sum().backward()
                    call(each, w).square().sum().backward()
                assert type(plain.grad) is torch.Tensor
                torch.testing.assert_close(plain.grad, expected.grad)
                optimizer.step()
        y = sw.distribute_tensor(dense, mesh, [Shard(0)]).requires_grad_() * 2
        (y.sum() + y.to_local().sum()).backward()

    on_ranks(check)


def test_plain_operands_of_arithmetic_get_plain_gradients():
    dense, weight = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(), torch.linspace(0, 1, 12).view(3, 4)
    (F.linear(dense * 2, weight).sin().sum() + (dense.exp() * weight[:2]).sum()).backward()

    def check(mesh):
        for placement in (Shard(0), Shard(1), Replicate()):
            w = sw.distribute_tensor(weight, mesh, [placement], src_data_rank=None)
            plain = dense.detach().clone().requires_grad_()
            with sw.implicit_replication():
                loss = F.linear(plain * 2, w).sin().sum() + (plain.exp() * w[:2]).sum()
            loss.backward()
            assert type(plain.grad) is torch.Tensor
            torch.testing.assert_close(plain.grad, dense.grad)

    on_ranks(check)


PLACES = torch.arange(12).view(4, 3) % 4
WRITES = {
    "add_": lambda x, y: x.add_(y),
    "copy_": lambda x, y: x.copy_(y),
    "addmm_": lambda x, y: x.addmm_(torch.eye(4), y),
    "a row": lambda x, y: x[1].copy_(y[2]),
    "index_put_": lambda x, y: x.index_put_((PLACES[:, 0],), y),
    "scatter_add_": lambda x, y: x.scatter_add_(0, PLACES, y),
    "_foreach_mul_": lambda x, y: torch._foreach_mul_([x], [y]),
}


@pytest.mark.parametrize("placement", [Shard(1), Shard(0), Replicate()], ids=str)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_operands_of_writes_to_plain_tensors_get_distributed_gradients(write, placement):
    of_plain, of_operand = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(1, 2, 12).view(4, 3)
    expected = [each.clone().requires_grad_() for each in (of_plain, of_operand)]
    written = expected[0] * 1
    write(written, expected[1])
    written.sin().sum().backward()

    def check(mesh):
        for is_leaf in (True, False):
            plain = of_plain.clone().requires_grad_()
            operand = sw.distribute_tensor(of_operand, mesh, [placement], src_data_rank=None).requires_grad_()
            written = plain * 1
            with sw.implicit_replication():
                write(written, operand if is_leaf else operand * 1)
            written.sin().sum().backward()
            assert operand.grad.placements == (placement,)
            torch.testing.assert_close(operand.grad.full_tensor(), expected[1].grad)
            torch.testing.assert_close(plain.grad, expected[0].grad)

    on_ranks(check)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("placement", [Shard(1), Shard(0), Replicate()], ids=str)
def test_plain_parameters_of_a_layer_norm_get_plain_gradients(placement, dtype):
    x = torch.randn(4, 8, dtype=dtype)  # the ranks are threads, which share the generator

    def body(rank):
        norm = torch.nn.LayerNorm(8, dtype=dtype)
        norm(x).float().square().sum().backward()
        expected = [norm.weight.grad, norm.bias.grad]
        norm.zero_grad()
        mesh = sw.init_device_mesh("cpu", (2,))
        with sw.implicit_replication():
            norm(sw.distribute_tensor(x, mesh, [placement])).float().square().sum().backward()
        for parameter, grad in zip(norm.parameters(), expected, strict=True):
            assert type(parameter.grad) is torch.Tensor and parameter.grad.dtype == dtype
            torch.testing.assert_close(parameter.grad, grad, rtol=0.05, atol=0.05)

    run_ranks(2, body)
