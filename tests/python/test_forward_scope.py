"""Plain tensors within the forward of a distributed module: replicas where its arguments are equal on all ranks, else errors."""

import array
import copy
import functools
import itertools
import pickle
from collections import UserDict, deque
from dataclasses import dataclass

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


class Bag:
    """An object of some library."""

    def __init__(self, ids):
        self.ids, self.size = ids, len(ids)

    def first(self):
        return self.ids


class Slots:
    __slots__ = ("ids",)

    def __init__(self, ids):
        self.ids = ids


def holding(ids):
    """A module with ids as its buffer."""
    module = nn.Module()
    module.register_buffer("ids", ids)
    return module


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
    "positional": (lambda ids, rank: ((ids,), {}), lambda ids: ids, "args[0]"),
    "keyword": (lambda ids, rank: ((), {"ids": ids}), lambda ids: ids, "ids"),
    "dict, taken out": (
        lambda ids, rank: (({"mask": None, "ids": ids},), {}),
        lambda batch: batch.pop("ids"),
        "args[0]['ids']",
    ),
    "UserDict": (lambda ids, rank: ((UserDict(ids=ids),), {}), lambda batch: batch["ids"], "args[0]['ids']"),
    "list": (lambda ids, rank: (([ids, 3],), {}), lambda batch: batch[0], "args[0][0]"),
    "dataclass": (lambda ids, rank: ((), {"batch": Batch(ids)}), lambda batch: batch.ids, "batch.ids"),
    "object": (lambda ids, rank: ((Bag(ids),), {}), lambda batch: batch.ids, "args[0].ids"),
    "slots": (lambda ids, rank: ((Slots(ids),), {}), lambda batch: batch.ids, "args[0].ids"),
    "array": (lambda ids, rank: ((ids.numpy(),), {}), torch.from_numpy, "args[0]"),
    "numbers": (lambda ids, rank: ((ids.tolist(),), {}), torch.tensor, "args[0][0]"),
    "deque": (lambda ids, rank: ((deque([ids]),), {}), lambda batch: batch[0], "args[0][0]"),
    "values of a dict": (
        lambda ids, rank: (({"ids": ids}.values(),), {}),
        lambda batch: next(iter(batch)),
        "args[0][0]",
    ),
    "bytearray": (
        lambda ids, rank: ((bytearray(ids[0].tolist()),), {}),
        lambda data: torch.tensor(list(data)),
        "args[0]",
    ),
    "number in an object": (
        lambda ids, rank: ((Bag(ids.tolist()),), {}),
        lambda bag: torch.tensor(bag.ids),
        "args[0].ids",
    ),
    "closure": (lambda ids, rank: ((lambda: ids,), {}), lambda read: read(), "args[0].ids"),
    "default": (lambda ids, rank: ((eval("lambda ids=ids: ids", {"ids": ids}),), {}), lambda read: read(), "args[0]"),
    "partial": (lambda ids, rank: ((functools.partial(torch.clone, ids),), {}), lambda read: read(), "args[0][1][0]"),
    "method": (lambda ids, rank: ((Bag(ids).first,), {}), lambda read: read(), "args[0].ids"),
    "method of a list": (lambda ids, rank: (([ids].pop,), {}), lambda read: read(), "args[0][0]"),
    "iterator": (lambda ids, rank: ((iter([ids]),), {}), next, "args[0][1][0]"),
    "chained iterators": (lambda ids, rank: ((itertools.chain([ids], [3]),), {}), next, "args[0]"),
    "in C": (
        lambda ids, rank: ((array.array("q", ids[0].tolist()),), {}),
        lambda data: torch.tensor(list(data)),
        "args[0]",
    ),
    "module": (lambda ids, rank: ((holding(ids),), {}), lambda module: module.ids, "args[0].ids"),
    "generator of numbers": (
        lambda ids, rank: ((torch.Generator().manual_seed(int(ids[0, 0])),), {}),
        lambda generator: torch.randint(7, (3,), generator=generator),
        "args[0]",
    ),
    "text": (
        lambda ids, rank: ((" ".join(map(str, ids[0].tolist())),), {}),
        lambda text: torch.tensor([int(word) for word in text.split()]),
        "args[0]",
    ),
}


@pytest.mark.parametrize(("give", "read", "name"), HOLDERS.values(), ids=HOLDERS.keys())
def test_a_batch_that_differs_is_an_error_on_all_ranks(give, read, name):
    given = seeded(Reader, read)
    expected = given(*give(IDS, 0)[0], **give(IDS, 0)[1])

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        model.read = read
        args, kwargs = give(IDS.clone(), rank)
        torch.testing.assert_close(model(*args, **kwargs).full_tensor(), expected.detach())
        own = IDS.clone()
        own[0, 0] += rank == 2
        args, kwargs = give(own, rank)
        with pytest.raises(ERRORS) as error:
            model(*args, **kwargs)
        assert f"ranks 0 and 2 called Reader with different {name}" in str(error.value)
        assert ". Give all ranks the same" in str(error.value)
        assert "DTensor.from_local(x, mesh, [Shard(0)])" in str(error.value)
        with sw.implicit_replication():
            model(*give(IDS.clone(), rank)[0], **give(IDS.clone(), rank)[1])

    on_ranks(check)


def some_ids():
    yield IDS


UNKNOWN = {
    "args[0] (generator)": (some_ids, next),
    "args[0][0] (generator)": (lambda: [some_ids()], lambda batch: next(batch[0])),
    "args[0].ids (generator)": (lambda: Slots(some_ids()), lambda batch: next(batch.ids)),
    "args[0] (memoryview)": (lambda: memoryview(bytes(IDS[0].tolist())), lambda data: torch.tensor(list(data))),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_looked_into_is_an_error(name):
    make, read = UNKNOWN[name]
    given = seeded(Reader, read)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        with pytest.raises(ERRORS) as error:
            model(make())
        assert f"Reader was called with {name}, whose values cannot be compared between ranks" in str(error.value)

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
        with pytest.raises(ERRORS, match="Encoder was called with labels, whose values cannot be compared"):
            model(IDS, labels=IDS.to_sparse())

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
        torch.testing.assert_close(model(whole, chosen).full_tensor(), given(x, chosen).detach())
        with pytest.raises(ValueError, match=r"ranks 0 and 1 called Masked with different args\[1\]"):
            model(whole, chosen if rank != 1 else ~chosen)

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
    def __init__(self, takes_part=False):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 6)
        self.takes_part = takes_part

    def forward(self, x):
        hidden = self.up(x)
        if self.takes_part:
            hidden = hidden.to_local()
        return self.down(self.norm(hidden) * torch.linspace(0.5, 1.0, 12))


def test_styles_that_wrap_all_there_is_send_nothing_more():
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


def test_parts_that_the_model_takes_out_are_no_replicas():
    """A part of a tensor next to a DTensor would count as the whole, without a word where shapes happen to fit."""
    given = seeded(Normed, takes_part=True)

    def check(rank, mesh):
        model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
        with pytest.raises(ValueError, match=r"within Normed a rank's part of a tensor placed as \[Shard\(1\)\]"):
            model(torch.ones(2, 6))
        styled = parallelize_module(copy.deepcopy(given), mesh, {"up": ColwiseParallel()})  # its output is a part, too
        styled.norm = sw.distribute_module(styled.norm, mesh)
        styled.takes_part = False
        with pytest.raises(ValueError, match="next to a DTensor, and within Normed a rank's part"):
            styled(torch.ones(2, 6))

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
            torch.testing.assert_close(model(IDS).full_tensor(), given(IDS).detach())
            with pytest.raises(ERRORS, match="ranks 1 and 3 called Encoder"):
                model(IDS if rank == 1 else IDS + 1)

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
            model(IDS + (rank == 1))  # a forward of its own, with its own arguments

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


class Energy(nn.Module):
    """Uses a gradient, or a shard, within its forward."""

    def __init__(self, take):
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.take = take

    def forward(self, x):
        hidden = self.up(x)
        return hidden * self.take(self, hidden)


def gradient_of_a_part(module, hidden):
    """Of each rank's own part of what comes in."""
    part = torch.ones(hidden.shape[0], hidden.shape[1] // 4, requires_grad=True)
    wrapped = DTensor.from_local(part, hidden.device_mesh, [Shard(1)])
    (gradient,) = torch.autograd.grad((wrapped * hidden.detach()).sum(), part)
    return gradient.mean() * torch.ones(8)


def gradient_of_a_replica(module, hidden):
    leaf = torch.ones(hidden.shape[1], requires_grad=True)
    (gradient,) = torch.autograd.grad((hidden.detach() * leaf).sum(), leaf)
    return gradient


def a_checkpoints_shard(module, hidden):
    from torch.distributed.checkpoint.metadata import MetadataIndex

    weight = module.up.weight
    offsets = [2 * weight.device_mesh.get_rank(), 0]
    return weight.detach().__get_tensor_shard__(MetadataIndex("weight", offsets)).mean() * torch.ones(8)


def test_parts_that_backward_and_checkpoints_give_are_no_replicas():
    x = torch.linspace(-1, 1, 12).view(2, 6)
    takers = {
        gradient_of_a_part: "a gradient placed as",
        a_checkpoints_shard: "__get_tensor_shard__ gave a plain tensor",
    }
    for take, words in takers.items():
        given = seeded(Energy, take)

        def check(rank, mesh, given=given, words=words):
            model = sw.distribute_module(copy.deepcopy(given), mesh, shard)
            with pytest.raises(ValueError, match=f"next to a DTensor, and within Energy .*{words}"):
                model(x)

        on_ranks(check)
    given = seeded(Energy, gradient_of_a_replica)
    expected = given(x).detach()
    on_ranks(
        lambda rank, mesh: torch.testing.assert_close(
            sw.distribute_module(copy.deepcopy(given), mesh, shard)(x).full_tensor().detach(), expected
        )
    )
