"""The sides of benchmarks/embedding.py: for each kind of lookup, functions by name. Each takes a Problem and returns the call to be timed."""

import contextlib
import functools
import importlib

import embedding_by_hand as by_hand
import embedding_torchrec as torchrec
import torch.distributed as dist
import torch.nn.functional as F
from embedding_problem import LEARNING_RATE
from sides import SHARDWISE, TORCH

import shardwise

BY_HAND = "by hand"
TORCHREC = "TorchRec, FUSED SGD"
FUSED = f"{SHARDWISE}, FusedSGD"
EXCHANGES = ("reduce_scatter", "all_to_all")


@functools.cache
def mesh_of(package):
    """A mesh of all ranks."""
    return package.init_device_mesh("cpu", (dist.get_world_size(),))


def by_names(package_name, problem, exchange="auto", is_fused=False, has_whole_ids=False):
    """A call of a package that has the names of torch.distributed.tensor. `has_whole_ids`: every rank has the ids of the whole batch, as
    programs written for torch.distributed.tensor have, and results are redistributed."""
    package = importlib.import_module(package_name)
    mesh = mesh_of(package)
    placements = [package.Shard(0) if problem.is_batch_sharded else package.Replicate()]

    def distributed(own, placements, n_rows):
        shape = (n_rows, *own.shape[1:])
        strides = own.new_empty(shape, device="meta").stride()
        return package.DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=strides)

    table = distributed(problem.table(), [package.Shard(0)], problem.n_rows).requires_grad_()
    if has_whole_ids:
        ids = distributed(problem.ids, [package.Replicate()], len(problem.ids))
    else:
        ids = distributed(problem.own(problem.ids), placements, len(problem.ids))
    grad = distributed(problem.own(problem.gradient()), placements, len(problem.ids))
    look_up = looked_up if not problem.is_pooled else summed if package_name == TORCH else bagged
    exchanges = getattr(package, "lookup_exchange", lambda _: contextlib.nullcontext())
    if is_fused:
        optimizer = package.optim.FusedSGD([table], lr=LEARNING_RATE)

    def call():
        with exchanges(exchange):
            result = look_up(ids, table).redistribute(placements=placements)
        result.backward(grad)
        if is_fused:
            optimizer.step()
            return result.detach().to_local(), lambda: (problem.table() - table.to_local().detach()) / LEARNING_RATE
        table_grad, table.grad = table.grad, None  # torch's may have other placements than the table
        return result.detach().to_local(), lambda: table_grad.redistribute(placements=[package.Shard(0)]).to_local()

    return call


def looked_up(ids, table):
    return F.embedding(ids, table)


def bagged(ids, table):
    return F.embedding_bag(ids, table, mode="sum")


def summed(ids, table):
    """torch.distributed.tensor has no embedding_bag of a sharded table."""
    return F.embedding(ids, table).sum(1)


def package(name, **choices):
    return functools.partial(by_names, name, **choices)


def unpooled_sides(is_batch_sharded):
    exchanges = EXCHANGES if is_batch_sharded else EXCHANGES[:1]  # of replicated ids "auto" is the other
    forced = {f"{SHARDWISE}, {exchange}": package(SHARDWISE, exchange=exchange) for exchange in exchanges}
    ways = {"all_reduce": by_hand.all_reduce, "reduce_scatter": by_hand.reduce_scatter}
    if is_batch_sharded:
        ways |= {"all_to_all": by_hand.all_to_all, "all_to_all, unique ids": by_hand.all_to_all_of_unique}
    else:
        ways |= {"rows broadcast, unique ids": by_hand.broadcast_rows}
    if is_batch_sharded:
        forced |= {f"{SHARDWISE}, whole ids": package(SHARDWISE, has_whole_ids=True)}
    return {
        SHARDWISE: package(SHARDWISE),
        **forced,
        **{f"{BY_HAND}: {name}": way for name, way in ways.items()},
        TORCH: package(TORCH),
    }


def has_fused_optimizers():
    return hasattr(shardwise, "optim") and hasattr(shardwise.optim, "FusedSGD")


def pooled_sides():
    fused = {FUSED: package(SHARDWISE, is_fused=True)} if has_fused_optimizers() else {}
    rec = {TORCHREC: torchrec.pooled} if torchrec.is_installed() else {}
    return {
        SHARDWISE: package(SHARDWISE),
        **fused,
        f"{BY_HAND}: bags, reduce_scatter": by_hand.pooled,
        TORCH: package(TORCH),
        **rec,
    }
