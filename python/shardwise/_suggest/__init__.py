"""Finds layouts for the parameters of a model: see docs/suggest.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from shardwise._dry_run.figures import Machine
from shardwise.dtensor import DTensor

if TYPE_CHECKING:
    from shardwise._dry_run.meta_mode import Value
    from shardwise._suggest.search import Suggestion


def suggest(
    model: nn.Module,
    batch: Any,
    *,
    ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
    memory: float | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
    flops: float = 400,
    memory_bandwidth: float = 2000,
    links: Sequence[tuple[float, float]] = ((5, 300), (20, 25)),
    ranks_per_host: int = 8,
    device_type: str = "cuda",
    value: Value = None,
) -> Suggestion:
    """Finds the plan for `model` with the shortest training step that fits into `memory`, by dry runs: docs/suggest.md.

        found = sw.suggest(model, torch.zeros(16, 4096, dtype=torch.long), ranks=8, memory=80 * 10**9)
        print(found)  # tables, and the code that applies the plan

    `batch`: the arguments of the model for the batch of all ranks, a tensor, a tuple or a dict. Values do not matter. Tensors with as many rows as
    the first one are divided over the ranks. `ranks`: meshes of all shapes of so many ranks are weighed. `mesh`: this one is, as {"shard": 64, "tp": 8}, outermost dim
    first. The batch is divided over "replicate" and "shard", parameters are fully sharded over "shard", and layers are divided over "tp".
    `memory`: bytes of a rank. `loss`: makes the loss of the model's result; default: its `loss`, or its mean. `optimizer`: makes the optimizer.
    `flops` in TFLOP/s, `memory_bandwidth` in GB/s, `links` in (us, GB/s), within a host and between hosts: the rates of a rank's device.
    `value`: what the model gets where it reads a value of a tensor, as in dry_run().

    The model does not change. Needs a process without ranks. Raises TypeError and ValueError for arguments that do not fit each other; ValueError
    if the model does not take the batch, and if no plan fits, with the least memory of the plans that were weighed.

    >>> sw.suggest(torch.nn.Linear(8, 8), torch.zeros(4, 8), ranks=4, mesh={"shard": 2, "tp": 4})
    Traceback (most recent call last):
    ValueError: [suggest] ranks is 4, but the mesh {'shard': 2, 'tp': 4} has 8. Give one of them, or make them agree.
    """
    from shardwise._dry_run.meta_mode import NoValue
    from shardwise._suggest.costs import Meter, loss_of  # the search is imported when it is used
    from shardwise._suggest.layers import blocks_of, kinds_of, on_meta
    from shardwise._suggest.plans import Subject
    from shardwise._suggest.search import Search, Suggestion, meshes_of

    if not (flops > 0 and memory_bandwidth > 0 and ranks_per_host > 0):
        raise ValueError(
            f"[suggest] no device has {flops} TFLOP/s, {memory_bandwidth} GB/s and {ranks_per_host} ranks per host. Give rates above 0."
        )
    n_ranks = checked(model, ranks, mesh, memory)
    batch = tree_map(lambda each: each.to("meta") if isinstance(each, torch.Tensor) else each, batch)
    sizes = [len(each) for each in tree_leaves(batch) if isinstance(each, torch.Tensor) and each.dim() > 0]
    args = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    arguments = ((), dict(batch)) if isinstance(batch, Mapping) else (args, {})
    n_samples = sizes[0] if sizes else 0
    given = [mesh] if mesh else meshes_of(n_ranks, ranks_per_host)
    meshes = [{name: size for name, size in each.items() if size > 1} for each in given]
    meshes = [each for each in meshes if each.get("replicate", 1) * each.get("shard", 1) <= n_samples]
    if not meshes:
        raise ValueError(
            f"[suggest] the batch has {n_samples} samples in its first tensor, fewer than the ranks that divide it. Give a larger batch, "
            'or more ranks for "tp".'
        )
    machine = Machine.of(flops, memory_bandwidth, links, ranks_per_host)
    copied = on_meta(model)
    subject = Subject(copied, kinds_of(copied), list(blocks_of(copied)), device_type)
    meter = Meter(subject, arguments, n_samples, loss or loss_of, optimizer, n_ranks, machine, value)
    search = Search(meter, memory or inf)
    try:
        failure = meter.inspect()
        best = None if failure else search.run(meshes)
    except NoValue as error:
        line = os.path.basename(error.place.split(" in ")[0])
        raise ValueError(
            f"[suggest] {error.place} reads a value ({error.function}), which no tensor has here. Give the one that it goes on with: value=1, or "
            f'value={{"{line}": 1}} for this line alone.'
        ) from None
    if failure:
        raise ValueError(
            f"[suggest] the model does not take the batch: {failure.rstrip('.')}. Give what the model is called with, and a `loss` of its result."
        )
    if best is None or search.cost(best).failure:
        failures = sorted({cost.failure for cost in meter.found.values() if cost.failure})
        raise ValueError(f"[suggest] no plan runs: {'; '.join(failures[:3])}. Give another mesh, or ranks alone.")
    found = Suggestion(best, search)
    if found.peak_bytes > search.memory:
        raise ValueError(
            f"[suggest] none of {len(meter.found)} plans fits into {memory:,.0f} bytes on a rank: the least is {found.peak_bytes:,}, as {best}. "
            "Give so much memory, more ranks or a smaller batch."
        )
    return found


def checked(model: nn.Module, ranks: int | None, mesh: Mapping[str, int] | None, memory: float | None) -> int:
    """The number of ranks. Raises TypeError and ValueError."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"[suggest] the model is a {type(model).__name__}. Give an nn.Module.")
    parameters = list(model.parameters())
    if not any(each.requires_grad for each in parameters) or any(isinstance(each, DTensor) for each in parameters):
        raise ValueError(
            f"[suggest] {type(model).__name__} has no parameters to train, or is sharded already. Give the model as it was made."
        )
    if memory is not None and not (isinstance(memory, (int, float)) and memory > 0):
        raise ValueError(f"[suggest] memory is {memory!r}. Give the bytes of a rank, as in 80 * 10**9.")
    if mesh is None:
        if ranks is None or ranks < 1:
            raise ValueError(f"[suggest] ranks is {ranks} and there is no mesh. Give 1 or more ranks.")
        return ranks
    if not mesh or not set(mesh) <= {"replicate", "shard", "tp"} or min(mesh.values()) < 1:
        raise ValueError(
            f'[suggest] the mesh is {dict(mesh)}. Name its dims "replicate", "shard" and "tp", and give each 1 or more ranks.'
        )
    n_ranks = prod(mesh.values())
    if ranks not in (None, n_ranks):
        raise ValueError(
            f"[suggest] ranks is {ranks}, but the mesh {dict(mesh)} has {n_ranks}. Give one of them, or make them agree."
        )
    return n_ranks
