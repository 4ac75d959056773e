"""Reading a DTensor sends nothing: one rank may print, copy, save or collect any tensor alone, and the next operator of all ranks is right."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from layouts import CASES
from torch.utils._python_dispatch import TorchDispatchMode

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.debug import CommDebugMode
from shardwise.testing import run_ranks


def saved(x):
    torch.save(x, io.BytesIO())


def shown_in_a_failed_assertion(x):
    """What pytest prints of the operands of a failed comparison."""
    from _pytest._io.saferepr import saferepr

    return saferepr(x), len(x) if x.dim() else None


def shown_by_a_debugger(x):
    return repr(locals())


def dropped(x):
    alias = [x.detach()]
    alias.append(alias)  # a cycle
    del alias
    gc.collect()


READERS = {
    "repr": repr,
    "str": str,
    "f-string": lambda x: f"{x}",
    "format": format,
    "len": lambda x: len(x) if x.dim() else None,
    "shape": lambda x: (x.shape, x.stride(), x.numel(), x.storage_offset(), x.is_contiguous(), x.dtype, x.device),
    "placements": lambda x: (x.placements, x.device_mesh, x._spec),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": pickle.dumps,
    "torch.save": saved,
    "to_local": lambda x: x.to_local(),
    "_local_tensor": lambda x: x._local_tensor,
    "storage": lambda x: x.untyped_storage(),
    "data_ptr": lambda x: x.data_ptr(),
    "is_pinned": lambda x: x.is_pinned(),
    "sparse_dim": lambda x: (x.sparse_dim(), x.dense_dim()),
    "is_coalesced": lambda x: x.is_coalesced() if x.is_sparse else None,
    "dlpack": lambda x: x.__dlpack__(),
    "is_": lambda x: x is x.data,
    "hash": hash,
    "__dict__": lambda x: (x.__dict__, dir(x)),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "grad": lambda x: (x.grad, x.requires_grad, x.grad_fn, x.is_leaf),
    "debugger": shown_by_a_debugger,
    "pytest": shown_in_a_failed_assertion,
    "garbage collection": dropped,
    "visualize_sharding": lambda x: sw.visualize_sharding(x, file=io.StringIO()),
}


def stale_view(mesh):
    base = sw.distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    row = base[3]
    base.mul_(2)
    return row, torch.tensor([18.0, 20.0, 22.0])


def fresh_view(mesh):
    base = sw.distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    return base[3], torch.tensor([9.0, 10.0, 11.0])


def view_of_a_stale_view(mesh):
    row, dense = stale_view(mesh)
    return row.view(3, 1), dense.view(3, 1)


def on_its_way(mesh):
    dense = torch.arange(12.0).view(4, 3)
    return sw.distribute_tensor(dense, mesh, [Shard(0)]).redistribute(placements=[Replicate()], async_op=True), dense


def looked_up(mesh):
    table = torch.arange(20.0).view(10, 2)
    ids = torch.tensor([9, 0, 9, 4])
    own = sw.distribute_tensor(ids, mesh, [Replicate()])
    return F.embedding(own, sw.distribute_tensor(table, mesh, [Shard(0)])), table[ids]


def looked_up_before_a_write(mesh):
    table = sw.distribute_tensor(torch.arange(20.0).view(10, 2), mesh, [Shard(0)])
    ids = torch.tensor([9, 0, 9, 4])
    rows = F.embedding(sw.distribute_tensor(ids, mesh, [Replicate()]), table)
    table.mul_(3)
    return rows, torch.arange(20.0).view(10, 2)[ids]


def reduced(mesh):
    terms = sw.distribute_tensor(torch.ones(3, 2), mesh, [Partial()])
    torch.relu(terms)
    return terms, torch.ones(3, 2)


def sparse(mesh):
    dense = torch.eye(4)
    return sw.distribute_tensor(dense, mesh, [Shard(0)]).to_sparse(), dense


def wrapped(mesh):
    rows = mesh.get_local_rank() + 1
    local = sw.LocalShardsWrapper([torch.ones(rows, 2)], [(rows * (rows - 1) // 2, 0)])
    x = sw.DTensor.from_local(local, mesh, [Shard(0, sizes=[1, 2, 3])], shape=(6, 2), stride=(2, 1))
    return x, torch.ones(6, 2)


def leaf(mesh):
    return sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]).requires_grad_(), torch.ones(4, 3)


KINDS = [
    fresh_view,
    stale_view,
    view_of_a_stale_view,
    on_its_way,
    looked_up,
    looked_up_before_a_write,
    reduced,
    sparse,
    wrapped,
    leaf,
]


def read_alone(rank, reader, x):
    """Reads on rank 0. Nothing is sent, and an error says what to do instead."""
    if rank != 0:
        return
    with CommDebugMode() as sent:
        try:
            READERS[reader](x)
        except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            assert (
                str(error).startswith("[")
                or "numpy() on Tensor that requires grad" in str(error)
                or "len() of a 0-d" in str(error)
            ), repr(error)
    assert sent.get_total_counts() == 0


def check_values(x, dense):
    if x.device_mesh.get_coordinate() is None:
        return
    whole = x.detach()
    whole = (whole.to_dense() if whole.is_sparse else whole).redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    local = whole.to_local()
    torch.testing.assert_close(local.local_shards()[0] if isinstance(local, sw.LocalShardsWrapper) else local, dense)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_rank_reads_alone(kind, reader):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x, dense = kind(mesh)
        read_alone(rank, reader, x)
        check_values(x, dense)

    run_ranks(3, body, timeout=20)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_rank_reads_every_layout_alone(case):
    def body(rank):
        for reader in READERS:
            x = case.distributed()
            read_alone(rank, reader, x)
            check_values(x, case.dense())

    run_ranks(case.n_ranks, body, timeout=20)


def test_what_one_rank_keeps_alive_decides_nothing():
    """A lookup's result that rank 0 alone holds, in a cycle, when the table is written to."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        table = sw.distribute_tensor(torch.arange(20.0).view(10, 2), mesh, [Shard(0)])
        held = [F.embedding(sw.distribute_tensor(torch.tensor([9, 0]), mesh, [Replicate()]), table), table[3]]
        held.append(held)
        if rank != 0:
            held.clear()
        table.mul_(2)
        assert table.full_tensor()[9].tolist() == [36, 38]

    run_ranks(2, body, timeout=20)


def test_what_one_rank_writes_to_its_piece_decides_nothing():
    """Rank 0 alone writes past operators: no view is fetched again on that rank alone."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        base = sw.distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
        row = base[3]
        if rank == 0:
            base.to_local().add_(1)
        assert (row + 1).full_tensor().tolist() == [7, 8]
        base.mul_(2)
        assert (row + 1).full_tensor().tolist() == [13, 15]

    run_ranks(2, body, timeout=20)


def test_the_layout_of_a_sum_does_not_depend_on_what_was_read_before():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        terms = sw.distribute_tensor(torch.ones(3), mesh, [Partial()])
        before = (terms + terms).placements
        torch.relu(terms)
        repr(terms)
        assert (terms + terms).placements == before == (Partial(),)

    run_ranks(2, body)


def test_a_partial_plus_a_replica_is_reduced():
    """A residual stream stays replicated, whatever its readers."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        stream = sw.distribute_tensor(torch.ones(3, 4), mesh, [Replicate()])
        terms = sw.distribute_tensor(torch.ones(3, 4), mesh, [Partial()])
        with CommDebugMode() as sent:
            stream = stream + terms
            F.layer_norm(stream, (4,)), torch.relu(stream)
        assert stream.placements == (Replicate(),) and sent.get_total_counts() == 1

    run_ranks(2, body)


@pytest.mark.parametrize("records", [False, True])
def test_a_backward_reduces_the_gradient_of_a_layer_s_input_once(records):
    """Three layers read it, and the residual: their gradients are three Partials and a replica."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        generator = torch.Generator().manual_seed(0)  # ranks that are threads share the default one
        dense = [torch.randn(n, 4, generator=generator) for n in (3, 4, 4, 4, 4)]
        layouts = [[Replicate()], [Replicate()], *[[Shard(0)]] * 3]
        ours = [sw.distribute_tensor(each, mesh, layout) for each, layout in zip(dense, layouts, strict=True)]

        def loss(x, first, *weights):
            y = F.layer_norm(x @ first, (4,))
            return sum(F.linear(y, weight).sum() for weight in weights) + (y * y).sum()

        x, own = dense[0].requires_grad_(), ours[0].requires_grad_()
        expected = torch.autograd.grad(loss(*dense), x)[0]
        out = loss(*ours)
        with CommDebugMode() as sent:
            out.backward(create_graph=records)
        assert sent.get_total_counts() == (3 if records else 1)
        torch.testing.assert_close(own.grad.detach().full_tensor(), expected)

    run_ranks(2, body)


def test_a_replicated_value_in_a_text_is_its_number():
    """As in transformers' Switch Transformers, which names an expert by an index: f"expert_{index}"."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        indices = sw.distribute_tensor(torch.tensor([3, 1]), mesh)
        with CommDebugMode() as sent:
            assert f"expert_{indices[0]}" == "expert_3"
            terms = sw.DTensor.from_local(torch.tensor(1.5), mesh, [sw.Partial()])
            assert f"{terms}" == repr(terms) and f"{indices}" == repr(indices)
        assert sent.get_total_counts() == 0
        assert f"{terms:.1f}" == "3.0"  # collective

    run_ranks(2, body)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators.append(str(operator))
        return operator(*args, **(kwargs or {}))


def test_detach_shares_memory_and_writes_without_history_and_modes_see_it():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.distribute_tensor(torch.ones(7, 4), mesh, [Shard(0)]).requires_grad_() * 2
        y = x.detach()
        assert type(y) is DTensor and y.is_leaf and not y.requires_grad and y.placements == x.placements
        y.add_(1).transpose_(0, 1)
        assert x._version == y._version > 0 and (x.shape, y.shape) == ((7, 4), (4, 7))
        assert torch.equal(x.full_tensor(), torch.full((7, 4), 3.0))
        with Seen() as seen:
            x.detach()
        assert seen.operators == ["aten.detach.default"]

    run_ranks(3, body)


def test_detach_of_a_given_wrapper_requires_no_gradient():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        piece = torch.ones(2, 4, requires_grad=True)
        table = DTensor.from_local(sw.LocalShardsWrapper([piece], [(2 * rank, 0)]), mesh, [Shard(0)])
        wrapper = table.detach().to_local()
        assert type(wrapper) is sw.LocalShardsWrapper and not wrapper.requires_grad
        assert wrapper.local_shards()[0].data_ptr() == piece.data_ptr()

    run_ranks(3, body)
