"""torch's optimizers on parameters whose gradients, and the states made of them, are laid out otherwise than they."""

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks

OPTIMIZERS = {
    "SGD": lambda p, **form: torch.optim.SGD(p, lr=0.1, **form),
    "SGD with momentum": lambda p, **form: torch.optim.SGD(p, lr=0.1, momentum=0.9, **form),
    "SGD with all": lambda p, **form: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True, **form
    ),
    "Adam": lambda p, **form: torch.optim.Adam(p, lr=0.1, **form),
    "AdamW": lambda p, **form: torch.optim.AdamW(p, lr=0.1, amsgrad=True, **form),
    "Adagrad": lambda p, **form: torch.optim.Adagrad(p, lr=0.1, **form),
}
LOSSES = {
    "replicated gradients": lambda p: (p * 2).sum(),
    "sharded gradients": lambda p: p.square().sum(),
    "Partial gradients": lambda p: (p.t() @ p).pow(2).mean(),
}
PLACEMENTS = [Shard(0), Shard(1), Shard(0, sizes=[5, 0]), Replicate()]


def dense():
    return torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["fused", "foreach", ""])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_plain_parameters(name, loss, form):
    options = {form: True} if form else {"foreach": False}

    def train(parameter):
        optimizer = OPTIMIZERS[name]([parameter], **options)
        for _ in range(3):
            optimizer.zero_grad()
            LOSSES[loss](parameter).backward()
            optimizer.step()
        return parameter.detach()

    expected = train(torch.nn.Parameter(dense()))

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        for placement in PLACEMENTS:
            ours = train(torch.nn.Parameter(sw.distribute_tensor(dense(), mesh, [placement])))
            assert ours.placements == (placement,)
            torch.testing.assert_close(ours.full_tensor(), expected, msg=f"laid out as {placement}")

    run_ranks(2, check)


@pytest.mark.parametrize("layouts", [(Partial(), Shard(0)), (Shard(1), Partial()), (Replicate(), Shard(0))], ids=str)
def test_lists_that_are_written_keep_their_layout(layouts):
    def check(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        a, b = (sw.distribute_tensor(dense() + i, mesh, [p]) for i, p in enumerate(layouts))
        torch._foreach_mul_([a, b], 3.0)
        torch._foreach_lerp_([a, b], [b.clone(), a.clone()], 0.25)
        assert (a.placements, b.placements) == ((layouts[0],), (layouts[1],))
        torch.testing.assert_close(a.full_tensor(), 3 * dense() + 0.75)
        torch.testing.assert_close(b.full_tensor(), 3 * dense() + 2.25)

    run_ranks(3, check)
