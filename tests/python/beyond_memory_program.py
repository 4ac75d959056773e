"""Run by test_tables_beyond_memory.py under torchrun: beyond_memory_program.py PARTS FOLDER, see run_parts()."""

import os

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torchrun import run_parts

import shardwise as sw

SHAPES = [(300, 8), (50, 8), (700, 4), (120, 8), (64, 4)]


def layer_of(**options):
    torch.manual_seed(0)
    return sw.DistributedEmbedding([sw.TableConfig(f"t{t}", *shape) for t, shape in enumerate(SHAPES)], **options)


def train(layer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        ids = [torch.randint(rows, (5, 2), generator=generator) for rows, _ in SHAPES]
        torch.cat(layer(ids), 1).square().mean().backward()


def optimizers_of(layer):
    return [sw.optim.FusedAdam(list(layer.parameters()), lr=0.1)]


def saves_and_loads(folder):
    os.makedirs(f"{folder}/files", exist_ok=True)
    storage = {t: sw.FileStorage(f"{folder}/files", cache_rows=60) for t in (0, 2)}
    plain = layer_of()
    own = optimizers_of(plain)
    train(plain, range(12))

    stored = layer_of(storage=storage, strategy="memory_optimized", row_slice_threshold=1000)
    optimizers = optimizers_of(stored)
    train(stored, range(6))
    weights, states = get_state_dict(stored, optimizers)
    dcp.save({"model": weights, "optimizers": states}, checkpoint_id=f"{folder}/saved")
    train(stored, range(6, 9))  # what is not saved

    # Another placement, other tables in files.
    again = layer_of(storage={2: storage[2], 3: storage[0]}, strategy="memory_balanced")
    optimizers = optimizers_of(again)
    weights, states = get_state_dict(again, optimizers)
    dcp.load({"model": weights, "optimizers": states}, checkpoint_id=f"{folder}/saved")
    set_state_dict(again, optimizers, model_state_dict=weights, optim_state_dict=states)
    train(again, range(6, 12))
    for loaded, expected in zip(again.get_weights(all_ranks=True), plain.get_weights(all_ranks=True), strict=True):
        np.testing.assert_allclose(loaded, expected, rtol=1e-5, atol=1e-6)
    evictions = torch.tensor(sum(counts.evictions for counts in again.cache_counts().values()))
    dist.all_reduce(evictions)
    assert evictions > 0
    del own


if __name__ == "__main__":
    run_parts(globals())
