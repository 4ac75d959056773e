"""Plain tensors within the forward of a distributed module are replicas; arguments that differ between ranks are errors."""

import copy
import pickle
import threading
import time
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwise as sw
from shardwise import DTensor, Replicate, Shard
from shardwise.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from shardwise.testing import run_ranks

ERRORS = (ValueError, TypeError)  # lookups raise either
Pair = namedtuple("Pair", "ids mask")
IDS = torch.tensor([[3, 1, 4, 0], [5, 2, 0, 0]])


class Attention(nn.Module):
    """One head, with a mask that it makes itself."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, is_word):
        causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        hidden = scores.masked_fill(~(causal & is_word[:, None, :]), -10.0)
        return hidden.softmax(-1) @ self.value(x)


class Encoder(nn.Module):
    """Nothing in it knows of DTensors."""

    def __init__(self, recompute=None):
        super().__init__()
        self.words, self.places = nn.Embedding(7, 6), nn.Embedding(5, 6)
        self.attention = Attention()
        self.out = nn.Linear(6, 7, bias=False)
        self.recompute = recompute

    def forward(self, ids, labels=None, scale=1.0):
        is_word = ids != 0
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + torch.sin(torch.arange(6.0)) * scale
        if self.recompute is None:
            x = self.attention(x, is_word)
        else:
            x = checkpoint(self.attention, x, is_word, use_reentrant=self.recompute)
        logits = self.out(x) * torch.linspace(0.5, 1.0, 7)
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def seeded(make, *args, **options):
    """Made before the ranks start, which as threads share torch's generator; each works on a copy."""
    torch.manual_seed(3)
    return make(*args, **options)


def shard(name, module, mesh):
    """Tables by rows, linear layers by outputs; the rest is replicated."""
    if isinstance(module, (nn.Embedding, nn.Linear)):
        placements = [Shard(0)] + [Replicate()] * (mesh.ndim - 1)
        module.weight = nn.Parameter(sw.distribute_tensor(module.weight.detach(), mesh, placements))


def on_ranks(check, n_ranks=4, shape=None):
    run_ranks(n_ranks, lambda rank: check(rank, sw.init_device_mesh("cpu", shape or (n_ranks,))))


def assert_same_gradients(model, dense):
    for (name, parameter), (_, expected) in zip(model.named_parameters(), dense.named_parameters(), strict=True):
        torch.testing.assert_close(
            parameter.grad.full_tensor(), expected.grad, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("recompute", [None, False, True], ids=["stored", "recomputed", "recomputed, reentrant"])
def test_a_model_of_plain_ids_is_dense(shape, recompute):
    dense = seeded(Encoder, recompute)
    given = copy.deepcopy(dense)
    loss = dense(IDS, labels=IDS)
    loss.backward()

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        ours = model(IDS.clone(), labels=IDS.clone())
        torch.testing.assert_close(ours.full_tensor(), loss.detach())
        ours.backward()
        assert_same_gradients(model, dense)

    on_ranks(check, shape[0] * (shape[1] if len(shape) > 1 else 1), shape)


def test_what_is_compared_is_one_small_message():
    """It is counted by nobody: what CommDebugMode counts is what the model sends with wrapped ids."""
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        with sw.CommDebugMode() as plain:
            model(IDS)
        with sw.CommDebugMode() as wrapped, sw.implicit_replication():
            model(sw.distribute_tensor(IDS, mesh, [Replicate()], src_data_rank=None))
        assert plain.get_comm_counts() == wrapped.get_comm_counts()
        with sw.communication_policy("error"), pytest.raises(ValueError, match=r"moves .*Partial"):
            model(IDS)  # the rows that were looked up, not the comparison

    on_ranks(check)


@dataclass
class Batch:
    ids: torch.Tensor
    name: str = "batch"


@dataclass(slots=True)
class Slots:
    ids: torch.Tensor


class Opaque:
    """An object of some library."""

    def __init__(self, ids):
        self.ids = ids


class Reader(nn.Module):
    """Takes ids out of whatever it is given."""

    def __init__(self, read):
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.read = read

    def forward(self, *args, **kwargs):
        return self.words(self.read(*args, **kwargs))


# how the ids are given, how the model reads them, what the error calls them
HOLDERS = {
    "positional": (lambda ids: ((ids,), {}), lambda ids: ids, "args[0]"),
    "keyword": (lambda ids: ((), {"ids": ids}), lambda ids: ids, "ids"),
    "dict": (lambda ids: (({"mask": None, "ids": ids},), {}), lambda batch: batch.pop("ids"), "args[0]['ids']"),
    "odd key": (lambda ids: (({object(): ids},), {}), lambda batch: batch.popitem()[1], "args[0][#0]"),
    "list": (lambda ids: (([ids, 3],), {}), lambda batch: batch[0], "args[0][0]"),
    "named tuple": (lambda ids: ((Pair(ids, None),), {}), lambda batch: batch.ids, "args[0][0]"),
    "dataclass": (lambda ids: ((), {"batch": Batch(ids)}), lambda batch: batch.ids, "batch.ids"),
    "slots": (lambda ids: ((Slots(ids),), {}), lambda batch: batch.ids, "args[0].ids"),
    "nested": (lambda ids: (({"a": [(Batch(ids),)]},), {}), lambda a: a["a"][0][0].ids, "args[0]['a'][0][0].ids"),
    "numbers": (lambda ids: ((ids.tolist(),), {}), torch.tensor, "args[0][0][0]"),
}


@pytest.mark.parametrize(("give", "read", "name"), HOLDERS.values(), ids=HOLDERS.keys())
def test_a_batch_that_differs_is_an_error_on_all_ranks(give, read, name):
    given = seeded(Reader, read)
    args, kwargs = give(IDS)
    expected = given(*args, **kwargs)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        model.read = read
        own = IDS.clone()
        own[0, 0] += rank == 2
        args, kwargs = give(own)
        with pytest.raises(ERRORS) as error:
            model(*args, **kwargs)
        assert f"ranks 0 and 2 called Reader with different {name}. Give all ranks the same" in str(error.value)
        assert "DTensor.from_local(x, mesh, [Shard(0)])" in str(error.value)
        args, kwargs = give(IDS.clone())
        with sw.implicit_replication():
            model(*args, **kwargs)
        args, kwargs = give(IDS.clone())
        torch.testing.assert_close(model(*args, **kwargs).full_tensor(), expected.detach())

    on_ranks(check)


NOT_LOOKED_INTO = {
    "object": Opaque,
    "array": lambda ids: ids.numpy(),
    "closure": lambda ids: lambda: ids,
    "generator": lambda ids: (each for each in (ids,)),
    "set": lambda ids: {ids},
    "text": lambda ids: str(ids.tolist()),
    "lock": lambda ids: threading.Lock(),
    "past the first thousand": lambda ids: [0] * 1000 + [ids],
}


@pytest.mark.parametrize("make", NOT_LOOKED_INTO.values(), ids=NOT_LOOKED_INTO.keys())
def test_nothing_else_is_looked_into(make):
    given = seeded(Reader, lambda ids, extra: ids)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        torch.testing.assert_close(model(IDS, make(IDS + rank)).full_tensor(), given(IDS, None).detach())

    on_ranks(check)


def test_large_arguments_cost_nothing():
    array, numbers = np.zeros(60_000_000), list(range(1_000_000))
    given = seeded(Reader, lambda ids, *extra: ids)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        begin = time.thread_time()
        for _ in range(3):
            model(IDS, array, numbers)
        assert time.thread_time() - begin < 0.2  # the array alone took 4 s

    on_ranks(check)


def test_a_signature_is_compared_at_its_first_call():
    """Afterwards no value is read: other values of the same shapes are the program's affair."""
    given, x = seeded(Masked, lambda x, factor: x * factor), torch.ones(2, 6)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        whole = sw.distribute_tensor(x, mesh, [Replicate()], src_data_rank=None)
        model(whole, torch.ones(4))
        own = model(whole, torch.full((4,), float(rank)))
        torch.testing.assert_close(own.to_local(), given(x, torch.full((4,), float(rank))).detach()[:, rank : rank + 1])
        for other in (torch.full((2, 1), float(rank)), torch.full((4,), rank)):  # another shape, another dtype
            with pytest.raises(ValueError, match=r"ranks 0 and 1 called Masked with different args\[1\]"):
                model(whole, other)

    on_ranks(check)


def test_batches_of_other_shapes_and_numbers_of_tensors_are_errors():
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        with pytest.raises(ERRORS, match=r"ranks 0 and 3 called Encoder with different args\[0\]"):
            model(IDS[:, : 4 - (rank == 3)])
        with pytest.raises(ERRORS, match="ranks 0 and 1 called Encoder with different arguments"):
            model(IDS, **({"labels": IDS} if rank == 1 else {}))
        with pytest.raises(ERRORS, match="ranks 0 and 2 called Encoder with different scale"):
            model(IDS, scale=2.0 if rank == 2 else 1.0)

    on_ranks(check)


def test_ranks_of_the_second_mesh_dim_are_compared_too():
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        with pytest.raises(ERRORS, match="ranks 0 and 1 called Encoder"):
            model(IDS + (rank % 2))
        logits = model(DTensor.from_local(IDS[rank // 2 : rank // 2 + 1], mesh, [Shard(0), Replicate()]))
        torch.testing.assert_close(logits.full_tensor(), given(IDS).detach())

    on_ranks(check, shape=(2, 2))


class Masked(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.up = nn.Linear(6, 4)
        self.use = use

    def forward(self, x, chosen):
        return self.use(self.up(x), chosen)


USES = {
    "mask": lambda x, chosen: x.masked_fill(chosen, 0.0),
    "made of it": lambda x, chosen: torch.where(~chosen, x, x + 1),
    "index": lambda x, chosen: x[chosen],
    "positions": lambda x, chosen: x.index_select(0, chosen[:, 0].nonzero()[:, 0]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_masks_and_indices_are_arguments_like_others(use):
    given, x = seeded(Masked, use), torch.arange(24.0).view(4, 6)
    chosen = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4, [True, True, False, False]])

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        whole = sw.distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
        with pytest.raises(ValueError, match=r"ranks 0 and 1 called Masked with different args\[1\]"):
            model(whole, chosen if rank != 1 else ~chosen)
        torch.testing.assert_close(model(whole, chosen).full_tensor(), given(x, chosen).detach())

    on_ranks(check)


def test_outside_the_forward_a_plain_tensor_is_an_error():
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        for call in (lambda: model(IDS), lambda: model.attention(torch.ones(1, 3, 6), torch.ones(1, 3).bool())):
            with pytest.raises(ValueError, match=r"next to a DTensor\. Wrap it with"):
                call() + torch.ones(6)
        with pytest.raises(IndexError):
            model(IDS + 100)
        with pytest.raises(ValueError, match=r"next to a DTensor\. Wrap it with"):
            model.out.weight + torch.ones(6)

    on_ranks(check)


def test_parameters_replaced_by_hand_open_nothing():
    given = seeded(Encoder)

    def check(rank, mesh):
        model = copy.deepcopy(given)
        for name, module in model.named_modules():
            shard(name, module, mesh)
        with pytest.raises(ERRORS, match=r"next to a DTensor, as indices\. Wrap it with"):
            model(IDS)

    on_ranks(check)


def test_a_submodule_may_be_called_alone():
    given, x, is_word = seeded(Encoder), torch.linspace(0, 1, 36).view(2, 3, 6), torch.ones(2, 3).bool()

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        torch.testing.assert_close(model.attention(x, is_word).full_tensor(), given.attention(x, is_word).detach())
        torch.testing.assert_close(model.words(IDS).full_tensor(), given.words(IDS).detach())
        with pytest.raises(ValueError, match="ranks 0 and 1 called Linear with different args"):
            model.out(x + rank)

    on_ranks(check)


def test_copies_and_pickles_of_a_module_keep_its_scope():
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(again(IDS).full_tensor(), given(IDS).detach())

    on_ranks(check)


class Tree(nn.Module):
    """Calls itself."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 6)

    def forward(self, x, depth):
        x = self.mix(x) + torch.ones(6)
        return self(x, depth - 1) * torch.arange(6.0) if depth else x


def test_a_module_that_calls_itself_is_one_forward():
    given, x = seeded(Tree), torch.linspace(0, 1, 12).view(2, 6)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        torch.testing.assert_close(model(x, 3).full_tensor(), given(x, 3).detach())
        with pytest.raises(ValueError, match=r"next to a DTensor\. Wrap it with"):
            model.mix.weight + torch.ones(6)

    on_ranks(check)


def test_arguments_that_input_fn_wraps_are_not_compared():
    given, batch = seeded(Encoder), torch.arange(16).view(4, 4) % 7

    def check(rank, mesh):
        def wrap(module, inputs, mesh):
            return (DTensor.from_local(inputs[0], mesh, [Shard(0)]), *inputs[1:])

        model = sw.distribute_module(copy.deepcopy(given), mesh, shard, wrap)
        logits = model(batch[rank : rank + 1])
        torch.testing.assert_close(logits.full_tensor(), given(batch).detach())

    on_ranks(check)


def test_arguments_of_declared_layouts_are_not_compared():
    given, batch = seeded(Encoder), torch.arange(16).view(4, 4) % 7

    def check(rank, mesh):
        layouts = {"ids": Shard(0), "labels": Shard(0)}
        declared = PrepareModuleInput(input_kwarg_layouts=layouts, desired_input_kwarg_layouts=layouts)
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        parallelize_module(model, mesh, declared)  # after the scope's own hook
        loss = model(ids=batch[rank : rank + 1], labels=batch[rank : rank + 1])
        torch.testing.assert_close(loss.full_tensor(), given(batch, batch).detach())

    on_ranks(check)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 6)

    def forward(self, x):
        return self.down(self.norm(self.up(x)) * torch.linspace(0.5, 1.0, 12))


def test_arguments_that_differ_are_errors_where_a_plain_tensor_meets_a_distributed_one():
    """Inputs that differ from rank to rank, as torch's sequence parallel programs have them."""
    given, x = seeded(Normed), torch.linspace(-1, 1, 48).view(8, 6)

    def check(rank, mesh):
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0), use_local_output=False),
            "norm": SequenceParallel(sequence_dim=0),
            "down": RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0)),
        }
        model = parallelize_module(copy.deepcopy(given), mesh, plan)
        with pytest.raises(ValueError, match=r"ranks 0 and 1 called Normed with different args\[0\]"):
            model(x[rank * 2 : rank * 2 + 2])
        with sw.implicit_replication():
            part = model(x[rank * 2 : rank * 2 + 2])
        torch.testing.assert_close(part, given(x).detach()[rank * 2 : rank * 2 + 2])

    on_ranks(check)


class Logged(nn.Module):
    """Rank 0 alone reads its part of a hidden tensor, as programs do that log, before a plain tensor meets a DTensor."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.log = []

    def forward(self, x):
        hidden = self.up(x)
        if isinstance(hidden, DTensor) and hidden.device_mesh.get_rank() == 0:
            self.log.append(hidden.to_local().norm().item())
        return hidden * torch.linspace(0.5, 1.0, 12)


def test_reading_a_part_changes_nothing():
    given, x = seeded(Logged), torch.ones(2, 6)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        for _ in range(2):
            torch.testing.assert_close(model(x).full_tensor(), given(x).detach())
        assert len(model.log) == (2 if rank == 0 else 0)

    on_ranks(check)


def test_pieces_within_local_map_are_its_own():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(6, 8)

        def forward(self, x):
            from shardwise.experimental import local_map

            doubled = local_map(lambda piece: piece * 2, out_placements=[Shard(1)])(self.up(x))
            return doubled * torch.linspace(0.5, 1.0, 8)

    given, x = seeded(Mapped), torch.ones(2, 6)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, lambda name, module, mesh: None)
        model.up.weight = nn.Parameter(sw.distribute_tensor(given.up.weight.detach(), mesh, [Shard(0)]))
        expected = given.up(x) * 2 * torch.linspace(0.5, 1.0, 8)
        torch.testing.assert_close(model(x).full_tensor(), expected.detach())

    on_ranks(check)


def test_a_mesh_of_some_ranks_compares_those():
    given = seeded(Encoder)

    def check(rank):
        mesh = sw.DeviceMesh("cpu", [1, 3])
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        if rank in (1, 3):
            with pytest.raises(ERRORS, match="ranks 1 and 3 called Encoder"):
                model(IDS if rank == 1 else IDS + 1)
            torch.testing.assert_close(model(IDS).full_tensor(), given(IDS).detach())

    run_ranks(4, check)


def test_a_plain_argument_gets_a_plain_gradient():
    given, x = seeded(Normed), torch.linspace(-1, 1, 12).view(2, 6)
    expected = x.clone().requires_grad_()
    given(expected * 2).sin().sum().backward()

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        own = x.clone().requires_grad_()
        model(own * 2).sin().sum().backward()
        assert type(own.grad) is torch.Tensor
        torch.testing.assert_close(own.grad, expected.grad)

    on_ranks(check)


@pytest.mark.parametrize("prepend", [False, True])
@pytest.mark.parametrize("copies", [lambda model: model, copy.deepcopy], ids=["itself", "copied"])
def test_a_batch_that_a_later_hook_gives_is_compared(prepend, copies):
    given = seeded(Encoder)

    def check(rank, mesh):
        model = copies(sw.distribute_module(copy.deepcopy(given), mesh, shard))
        handle = model.register_forward_pre_hook(
            lambda module, args: (args[0] + (rank == 1), *args[1:]), prepend=prepend
        )
        with pytest.raises(ERRORS, match=r"ranks 0 and 1 called Encoder with different args\[0\]"):
            model(IDS)
        handle.remove()
        torch.testing.assert_close(model(IDS).full_tensor(), given(IDS).detach())

    on_ranks(check)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit], ids=lambda kind: kind.__name__)
def test_an_interrupt_ends_the_forward(interrupt):
    given = seeded(Encoder)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)

        def stop(module, args):
            raise interrupt

        handle = model.attention.register_forward_pre_hook(stop)
        with pytest.raises(interrupt):
            model(IDS)
        handle.remove()
        with pytest.raises(ValueError, match=r"next to a DTensor\. Wrap it with"):
            model.out.weight + torch.ones(6)
        torch.testing.assert_close(model(IDS).full_tensor(), given(IDS).detach())
        with pytest.raises(interrupt):
            model(IDS, scale=Stopping(interrupt))
        with pytest.raises(ERRORS, match=r"ranks 0 and 1 called Encoder with different args\[0\]"):
            model(IDS[:1] + (rank == 1))  # a forward of its own, with its own arguments

    on_ranks(check)


class Stopping(float):
    """A number that stops who multiplies by it."""

    def __new__(cls, interrupt):
        number = super().__new__(cls, 1.0)
        number.interrupt = interrupt
        return number

    def __rmul__(self, other):
        raise self.interrupt

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise next(arg for arg in args if isinstance(arg, cls)).interrupt
