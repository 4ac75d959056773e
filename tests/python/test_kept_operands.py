"""A product keeps for its backward what the dense one keeps: the factors that the gradients need."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.testing import run_ranks

PRODUCTS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [(3, 4, 6), (5, 6), (5,)]),
    "matmul": (lambda x, w, b: x @ w + b, [(3, 4, 6), (6, 5), (5,)]),
    "batched": (lambda x, w, b: torch.matmul(x, w) + b, [(3, 4, 6), (3, 6, 5), (5,)]),
    "vector": (lambda x, w, b: torch.matmul(x, w) + b, [(4, 6), (6,), (4,)]),
}


def kept(function, tensors):
    """The result, and the bytes that its graph keeps."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return function(*tensors), sum(sizes)


@pytest.mark.parametrize("needs", [needs for needs in product([False, True], repeat=3) if any(needs)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_same_bytes_and_gradients_as_dense(name, needs):
    function, shapes = PRODUCTS[name]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        torch.manual_seed(0)
        dense = [torch.randn(shape).requires_grad_(need) for shape, need in zip(shapes, needs, strict=True)]
        ours = [
            sw.distribute_tensor(each.detach(), mesh, [Shard(0)]).requires_grad_(each.requires_grad) for each in dense
        ]
        (result, n_bytes), (expected, of_dense) = kept(function, ours), kept(function, dense)
        assert n_bytes == of_dense
        grads = torch.autograd.grad(result.sin().sum(), [each for each in ours if each.requires_grad])
        of_dense = torch.autograd.grad(expected.sin().sum(), [each for each in dense if each.requires_grad])
        for grad, wanted in zip(grads, of_dense, strict=True):
            torch.testing.assert_close(grad.full_tensor(), wanted)

    run_ranks(1, body)


def adapted(x, layers):
    """Frozen linear layers, each with an adapter (LoRA)."""
    for weight, bias, down, up in layers:
        x = F.gelu(F.linear(x, weight, bias) + F.linear(F.linear(x, down), up))
    return x


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_adapters_of_frozen_layers_keep_what_dense_ones_keep(n_ranks):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        generator = torch.Generator().manual_seed(0)
        shapes = [(6, 6), (6,), (2, 6), (6, 2)]
        dense = [[torch.randn(shape, generator=generator) / 4 for shape in shapes] for _ in range(3)]
        ours = [[sw.distribute_tensor(each, mesh, [Replicate()]) for each in layer] for layer in dense]
        trained = [[each.requires_grad_() for layer in side for each in layer[2:]] for side in (dense, ours)]
        batch = torch.randn(4 * n_ranks, 6, generator=generator)
        (result, n_bytes) = kept(lambda x: adapted(x, ours), [sw.distribute_tensor(batch, mesh, [Shard(0)])])
        (expected, of_dense) = kept(lambda x: adapted(x, dense), [batch])
        (_, of_own_rows) = kept(lambda x: adapted(x, dense), [batch[:4]])
        assert (n_bytes, own_bytes(lambda x: adapted(x, ours), batch, mesh)) == (of_dense, of_own_rows)
        grads = torch.autograd.grad(result.sin().sum(), trained[1])
        for grad, wanted in zip(grads, torch.autograd.grad(expected.sin().sum(), trained[0]), strict=True):
            torch.testing.assert_close(grad.full_tensor(), wanted)

    run_ranks(n_ranks, body)


def own_bytes(function, batch, mesh):
    """The bytes of this rank's memory that the graph keeps."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.to_local().nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(sw.distribute_tensor(batch, mesh, [Shard(0)]))
    return sum(sizes)


@pytest.mark.parametrize("layout", [Replicate(), Shard(0), Shard(1)])
def test_frozen_weights_leave_the_input_free(layout):
    """An input that no gradient needs may be written to, as in dense programs; one that is needed may not."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(torch.ones(4, 3), mesh, [Replicate()])
        frozen = sw.distribute_tensor(torch.ones(5, 3), mesh, [layout])
        hidden = x.clone().requires_grad_() * 2
        out = F.linear(hidden, frozen)
        hidden.mul_(2)
        out.sum().backward()

        trained = frozen.clone().requires_grad_()
        needed = x * 2
        out = F.linear(needed, trained)
        needed.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    run_ranks(2, body)


def test_second_derivatives_of_one_factor():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        generator = torch.Generator().manual_seed(0)  # ranks that are threads share the default one
        x, w = torch.randn(4, 3, generator=generator), torch.randn(5, 3, generator=generator)
        results = []
        for distributed in (False, True):
            own = [sw.distribute_tensor(each, mesh, [Shard(0)]) if distributed else each for each in (x, w)]
            own[0] = own[0].clone().detach().requires_grad_()
            loss = F.linear(own[0], own[1]).pow(3).sum()
            (first,) = torch.autograd.grad(loss, own[0], create_graph=True)
            (second,) = torch.autograd.grad(first.pow(2).sum(), own[0])
            results.append(second.full_tensor() if distributed else second)
        torch.testing.assert_close(*results)

    run_ranks(2, body)
