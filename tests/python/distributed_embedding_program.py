"""Run by test_distributed_embedding.py under torchrun: distributed_embedding_program.py PARTS FOLDER, see run_parts()."""

import os
import resource

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils._pytree import tree_leaves
from torchrun import run_parts

import shardwise as sw
from shardwise import _C
from shardwise.checkpoint import FileSystemReader

SHAPES = [(60, 8), (9, 8), (200, 4), (33, 8), (5, 4)]
PLANS = [
    {"strategy": "basic"},
    {"strategy": "memory_balanced", "column_slice_threshold": 200, "data_parallel_threshold": 30},
    {"strategy": "memory_optimized", "row_slice_threshold": 400},
    {"strategy": "cost_balanced"},
]


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = sw.DistributedEmbedding([sw.TableConfig(f"t{t}", *s) for t, s in enumerate(SHAPES)], **options)
        self.over = nn.Linear(sum(columns for _, columns in SHAPES), 1)

    def forward(self, ids):
        return self.over(torch.cat(self.embedding(ids), 1)).square().mean()


def batch(rank, step, n=6):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randint(rows, (n, 2), generator=generator) for rows, _ in SHAPES]


def torch_data_parallel(folder):
    model = nn.parallel.DistributedDataParallel(Model(data_parallel_threshold=30, strategy="memory_optimized"))
    whole = [torch.from_numpy(array) for array in model.module.embedding.get_weights(all_ranks=True)]
    dense = nn.ModuleList([nn.EmbeddingBag.from_pretrained(table, freeze=False, mode="sum") for table in whole])
    over = nn.Linear(model.module.over.in_features, 1)
    over.load_state_dict(model.module.over.state_dict())
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD([*dense.parameters(), *over.parameters()], lr=0.1)
    for step in range(3):
        ours.zero_grad()
        loss = model(batch(dist.get_rank(), step))
        loss.backward()
        ours.step()
        theirs.zero_grad()
        losses = [
            over(torch.cat([table(ids) for table, ids in zip(dense, batch(rank, step), strict=True)], 1))
            .square()
            .mean()
            for rank in range(dist.get_world_size())
        ]
        (sum(losses) / len(losses)).backward()
        theirs.step()
        torch.testing.assert_close(loss, losses[dist.get_rank()])
    for array, table in zip(model.module.embedding.get_weights(all_ranks=True), dense, strict=True):
        torch.testing.assert_close(torch.from_numpy(array), table.weight.detach())
    torch.testing.assert_close(model.module.over.weight, over.weight)


def replicas_are_broadcast(folder):
    model = Model(data_parallel_threshold=100)
    some = sw.DeviceMesh("cpu", [1, 3])
    model.of_some_ranks = nn.Parameter(sw.distribute_tensor(torch.zeros(3), some, [sw.Replicate()]))
    sharded = {name: [piece.clone() for piece, _, _ in model.embedding.pieces(name)] for name in ("t0", "t2", "t3")}
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local() if isinstance(parameter, sw.DTensor) else parameter
            if not isinstance(parameter, sw.DTensor) or parameter.placements[0].is_replicate():
                local.fill_(dist.get_rank())
    sw.broadcast_parameters(model, src=2)
    assert (model.of_some_ranks.to_local() == dist.get_rank()).all()
    assert (model.over.weight == 2).all()
    for name in ("t1", "t4"):
        assert (model.embedding.tables[name].to_local() == 2).all()
    for name, pieces in sharded.items():
        for piece, (now, _, _) in zip(pieces, model.embedding.pieces(name), strict=True):
            torch.testing.assert_close(now, piece)
    pair, rank = dist.new_group([0, 1]), dist.get_rank()
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, rank)
    sw.broadcast_parameters(layer, src=1, group=pair)
    assert (layer.weight == (1 if rank < 2 else rank)).all()


def pipeline_overlaps(folder):
    layer = Model().embedding
    batches = [batch(dist.get_rank(), step) for step in range(5)]
    expected = [layer(ids) for ids in batches]
    for vectors, (_, own) in zip(expected, sw.EmbeddingPipeline(layer, batches, lambda ids: ids), strict=True):
        torch.testing.assert_close(own, vectors)


def gradients_of_lookups_in_flight(folder):
    """Ranks write gradients into each other's memory in the first backward of a lookup, and send them in later ones."""
    layer = Model().embedding
    batches = [batch(dist.get_rank(), step) for step in range(3)]
    with torch.no_grad():
        layer(batches[0])
    n_bytes = layer._core.buffer_bytes()
    layer(batches[0])
    assert layer._core.buffer_bytes() > n_bytes, "a lookup without gradients takes no memory for them"

    def gradients(backward):
        layer.zero_grad()
        backward()
        return [parameter.grad.full_tensor() for parameter in layer.parameters()]

    def one_by_one():
        for ids in batches:
            torch.cat(layer(ids), 1).square().sum().backward()

    def all_at_once():
        lookups = [layer.start(ids) for ids in batches]
        losses = [torch.cat(lookup.wait(), 1).square().sum() for lookup in lookups]
        for loss in reversed(losses):
            loss.backward()

    def twice():
        losses = [torch.cat(layer(ids), 1).square().sum() for ids in batches]
        for loss in losses:
            loss.backward(retain_graph=True)
        for loss in losses:
            loss.backward()

    def fetched_without_grad_on_some():
        with torch.set_grad_enabled(dist.get_rank() % 2 == 0):
            lookups = [layer.start(ids) for ids in batches]
        for lookup in lookups:
            torch.cat(lookup.wait(), 1).square().sum().backward()

    expected = gradients(one_by_one)
    torch.testing.assert_close(gradients(all_at_once), expected)
    torch.testing.assert_close(gradients(fetched_without_grad_on_some), expected)
    torch.testing.assert_close(gradients(twice), [2 * grad for grad in expected])


def memory_is_shared_at_the_first_lookup(folder):
    """Later lookups open nothing, and so cannot fail for lack of files. A rank whose files have a limit sends messages to all others."""
    layer, half_shared = Model().embedding, Model().embedding
    rank, n_ids = dist.get_rank(), (6, 300, 1, 40)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    layer(batch(rank, 0))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    half_shared(batch(rank, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    n_files = len(os.listdir("/proc/self/fd"))
    for step, n in enumerate(n_ids):
        both = []
        for each in (layer, half_shared):
            each.zero_grad()
            vectors = torch.cat(each(batch(rank, step, n * (rank + 1))), 1)
            vectors.square().sum().backward()
            both.append([vectors, *(parameter.grad.full_tensor() for parameter in each.parameters())])
        torch.testing.assert_close(*both)
    assert len(os.listdir("/proc/self/fd")) == n_files


def trained(model, optimizers, steps):
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        # All ranks' samples on each: the same loss and, but for their sum, the same gradients on any number of ranks.
        parts = [batch(part, step) for part in range(12)]
        own = parts[dist.get_rank() :: dist.get_world_size()]
        loss = model([torch.cat(ids) for ids in zip(*own, strict=True)])
        loss.backward()
        for parameter in model.over.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for optimizer in optimizers:
            optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
    return total / dist.get_world_size()


def optimizers_of(model):
    return [
        sw.optim.FusedAdagrad(list(model.embedding.parameters())[:3], lr=0.1),
        torch.optim.Adam([*list(model.embedding.parameters())[3:], *model.over.parameters()], lr=0.05),
    ]


def saved(folder, number, model, optimizers):
    weights, states = get_state_dict(model, optimizers)
    dcp.save({"model": weights, "optimizers": states}, checkpoint_id=f"{folder}/{number}")


def pieces_of(state):
    """This rank's parts of all tensors, and an empty tensor of each one's shape."""
    return [
        (piece, torch.empty(each.shape, dtype=each.dtype, device="meta"))
        for each in tree_leaves(state)
        if isinstance(each, torch.Tensor)
        for piece in (_C.to_pieces(each.detach()) if isinstance(each, sw.DTensor) else [each])
    ]


def loaded(folder, number):
    model = Model(**PLANS[number + 1])
    optimizers = optimizers_of(model)
    weights, states = get_state_dict(model, optimizers)
    state = {"model": weights, "optimizers": states}
    dcp.load(state, checkpoint_id=f"{folder}/{number}")
    by_torch = [piece for piece, _ in pieces_of(state)]
    expected = [piece.clone() for piece in by_torch]
    for piece in by_torch:
        piece.zero_()
    reader = FileSystemReader(f"{folder}/{number}")
    dcp.load(state, storage_reader=reader)
    torch.testing.assert_close([piece for piece, _ in pieces_of(state)], expected, rtol=0, atol=0)
    own = sum(piece.nbytes for piece in expected)
    of_whole_rows = sum(
        len(piece) * whole[0].nbytes if whole.dim() == 2 else piece.nbytes for piece, whole in pieces_of(state)
    )
    # Columns of the few bytes that a row has here are read with what lies between them.
    assert own <= reader.n_bytes_read <= (of_whole_rows if number == 0 else own), (
        own,
        reader.n_bytes_read,
        of_whole_rows,
    )
    set_state_dict(model, optimizers, model_state_dict=weights, optim_state_dict=states)
    return model, optimizers


def reference(n_steps):
    """The loss of step `n_steps` - 1 of a run without checkpoints, on these ranks."""
    model = Model(**PLANS[0])
    return trained(model, optimizers_of(model), range(n_steps))


def save_0(folder):
    model = Model(**PLANS[0])
    optimizers = optimizers_of(model)
    trained(model, optimizers, range(2))
    saved(folder, 0, model, optimizers)


def load_and_save(folder, number):
    model, optimizers = loaded(folder, number)
    loss = trained(model, optimizers, range(2 + number, 3 + number))
    torch.testing.assert_close(loss, reference(3 + number), rtol=1e-4, atol=1e-5)
    saved(folder, number + 1, model, optimizers)


def load_0_save_1(folder):
    load_and_save(folder, 0)


def load_1_save_2(folder):
    load_and_save(folder, 1)


def load_2(folder):
    load_and_save(folder, 2)


if __name__ == "__main__":
    run_parts(globals())
