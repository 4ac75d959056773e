"""Run by test_training_steps.py in processes: training_step_program.py PARTS FOLDER, see run_parts(). One rank does something that the others
do not.
"""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torchrun import run_parts

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.fsdp import fully_shard

CHECKED = os.environ.get("SHARDWISE_CHECK") == "1"


def error_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("no error")


def expect_named(text, *words):
    """All ranks have one error; it names two ranks and lines of this file."""
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    assert len(set(texts)) == 1, texts
    for word in ("[check] rank 0 is about to", "training_step_program.py:", *words):
        assert word in text, text


def layers(width=8):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)
    )


def sharded(model, **options):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def reads(model):
    return {
        "state_dict": model.state_dict,
        "to": lambda: model.to("cpu").to(torch.float32),
        "parameters": lambda: [each.shape for each in model.parameters()],
        "named_parameters": lambda: dict(model.named_parameters()),
        "repr": lambda: repr(model),
    }


def read_alone(folder):
    """Rank 0 alone reads between forward and backward, and between steps: the training is that of a model that nobody reads."""
    for keeps in (True, False):
        results = []
        for is_read in (False, True):
            model = sharded(layers(), reshard_after_forward=not keeps)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.rand(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
            for _ in range(3):
                for read in reads(model).values():
                    loss = model(x).square().mean()
                    if is_read and dist.get_rank() == 0:
                        read()
                    loss.backward()
                    if is_read and dist.get_rank() == 0:
                        read()
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        model(x)
                        if is_read and dist.get_rank() == 0:
                            read()
            results.append([each.full_tensor() for each in model.parameters()])
        assert all(map(torch.equal, *results))


def resharded_alone(folder):
    """The next backward gathers on that rank only."""
    model = sharded(layers(), reshard_after_forward=False)
    x = torch.rand(4, 8)
    loss = model(x).square().mean()
    if dist.get_rank() == 0:
        model[4].reshard()
    expect_named(
        error_of(loss.backward),
        "for fully_shard (gather of group 2: weight Float [8, 8] as [Shard(0)]",
        "gradients of group",
    )


def another_batch(folder):
    """Rank 1 makes one more step, while rank 0 computes the norm of its gradients."""
    model = sharded(layers())
    x = torch.rand(4, 8)
    model(x).square().mean().backward()

    def end():
        if dist.get_rank() == 1:
            model(x)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    expect_named(error_of(end), "for total_norm", "for fully_shard (gather of group 0: weight")


def other_seeds(folder):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    x = sw.ones(4, 4, device_mesh=mesh, placements=[Replicate()])
    torch.manual_seed(3)
    F.dropout(x)
    torch.manual_seed(dist.get_rank() // 2)
    expect_named(error_of(lambda: F.dropout(x)), "to draw", "random numbers on (3) from seed", "torch.manual_seed")


def fused_alone(folder):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    table = nn.Parameter(sw.distribute_tensor(torch.rand(12, 4), mesh, [Replicate()]))
    ids = sw.distribute_tensor(torch.arange(8), mesh, [Shard(0)])
    optimizer = sw.optim.FusedSGD([table], lr=0.1)
    if dist.get_rank() == 1:
        optimizer.close()
    for lookup in (F.embedding, lambda ids, table: F.embedding_bag(ids.view(4, 2), table)):
        text = error_of(lambda lookup=lookup: lookup(ids, table))
        expect_named(text, "to look_up for aten::", "fused optimizer, SGD", "dense gradient")


def layer_of_tables(**options):
    return sw.DistributedEmbedding(
        [sw.TableConfig("user", 40, 4), sw.TableConfig("item", 24, 4)],
        strategy="memory_optimized",
        row_slice_threshold=100,
        **options,
    )


def ids_of(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    n = 2 + 3 * dist.get_rank() + 7 * step
    return [torch.randint(40, (n,), generator=generator), torch.randint(24, (n,), generator=generator)]


def same_on_all(text):
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text.replace(f" (on rank {dist.get_world_size() - 1})", ""))
    assert len(set(texts)) == 1, texts


def expect_rows(layer, step):
    whole = [torch.from_numpy(each) for each in layer.get_weights(all_ranks=True)]
    for vectors, table, ids in zip(layer(ids_of(step)), whole, ids_of(step), strict=True):
        assert torch.equal(vectors, table[ids])


def lookups_dropped(folder):
    """In evaluation, on one rank alone by a failure or an interrupt: the others wait, and the next lookup is an error on all ranks."""
    layer = layer_of_tables()
    last = dist.get_world_size() - 1
    for failure in (RuntimeError, KeyboardInterrupt):
        expect_rows(layer, 0)
        with torch.no_grad():
            try:
                lookup = layer.start(ids_of(1))
                if dist.get_rank() == last:
                    raise failure
                lookup.wait()
            except failure:
                del lookup
            text = error_of(lambda: layer(ids_of(2)))
        assert "Call wait() of a lookup on all ranks, or drop the lookup on all ranks" in text, text
        same_on_all(text)
        for step in range(4):
            expect_rows(layer, step)
        layer.start(ids_of(3))  # dropped on all
        expect_rows(layer, 2)


def lookup_dropped_in_training(folder):
    layer = layer_of_tables()

    def step():
        lookup = layer.start(ids_of(1))
        if dist.get_rank() == 0:
            layer(ids_of(2))
        else:
            sum(each.sum() for each in lookup.wait()).backward()

    expect_named(error_of(step), "for DistributedEmbedding (ids of lookup 2", "_backward (gradients of lookup 1")


def table_replaced(folder):
    """On one rank, before a lookup or while one is on its way."""
    for dp_input in (True, False):
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("user", 40, 4), sw.TableConfig("item", 24, 4)], dp_input=dp_input
        )
        n = dist.get_world_size()
        ids = [torch.arange(2 * n), torch.arange(2 * n)] if not dp_input else ids_of(0)
        if not dp_input:
            ids = [each if any(len(rows) for rows, *_ in layer.pieces(t)) else None for t, each in enumerate(ids)]
        lookup = layer.start(ids)
        kept = layer.tables["user"]
        if dist.get_rank() == 1:
            layer.tables["user"] = nn.Parameter(kept.detach().clone())
        lookup.wait()
        text = error_of(lambda layer=layer, ids=ids: layer(ids))
        assert "the parameter of table user is not the layer's own any more" in text, text
        layer.tables["user"] = kept
        layer(ids)


def fused_alone_in_a_layer(folder):
    for dp_input in (True, False):
        layer = sw.DistributedEmbedding([sw.TableConfig("user", 4, 4)], dp_input=dp_input, data_parallel_threshold=100)
        optimizer = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1)
        ids = [torch.arange(2)]
        layer(ids)
        if dist.get_rank() == 1:
            optimizer.close()
        text = error_of(lambda layer=layer, ids=ids: layer(ids))
        words = "ranks treat table user differently: it has a fused optimizer, Adagrad, on rank 0, and has a dense gradient on rank 1"
        assert words in text, text
        same_on_all(text)


def gradient_missing(folder):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    parameters = [nn.Parameter(sw.ones(n, device_mesh=mesh, placements=[Shard(0)])) for n in (4, 5, 6)]
    for each in parameters:
        each.grad = sw.ones(*each.shape, device_mesh=mesh, placements=[Shard(0)])
    before = copy.deepcopy([each.grad.to_local() for each in parameters])
    if dist.get_rank() == 1:
        parameters[1].grad = None
    for order in (2.0, float("inf"), -float("inf"), 1.0):
        text = error_of(lambda order=order: nn.utils.clip_grad_norm_(parameters, 0.1, order))
        words = "rank 0 gives 3 gradients and rank 1 gives 2. The first difference is gradient 1: Float [5] as [Shard(0)] on rank 0 and Float [6]"
        assert words in text, text
        same_on_all(text)
    for each, values in zip(parameters, before, strict=True):
        assert each.grad is None or torch.equal(each.grad.to_local(), values)
    assert sw.ones(4, device_mesh=mesh, placements=[Shard(0)]).sum().item() == 4


if __name__ == "__main__":
    run_parts(globals())
