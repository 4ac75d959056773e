"""A program that saves and loads, for test_dry_run_checkpoints.py: dry_run_checkpoint.py FOLDER [ours [other]].

`ours`: by Shardwise's writer and reader. `other`: loads another number of rows. A run with memory writes FOLDER-RANK.json, the bytes of elements that the
rank read, and those of the step.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.checkpoint import FileSystemReader, FileSystemWriter


def main(folder, *ours):
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state = {
        "rows": sw.zeros(9, 5, device_mesh=mesh, placements=[Shard(0), Shard(1)]),
        "copies": sw.zeros(8, 6, device_mesh=mesh, placements=[Replicate(), Shard(0)]),
        "step": 3,
    }
    if ours:
        dcp.save(state, storage_writer=FileSystemWriter(folder))
    else:
        dcp.save(state, checkpoint_id=folder)
    n_rows = 10 if "other" in ours else 9
    other = {
        "rows": sw.zeros(n_rows, 5, device_mesh=mesh, placements=[Replicate(), Shard(0)]),
        "copies": sw.zeros(8, 6, device_mesh=mesh, placements=[Shard(0), Replicate()]),
        "step": 0,
    }
    reader = FileSystemReader(folder) if ours else None
    dcp.load(other, checkpoint_id=None if ours else folder, storage_reader=reader)
    torch.save(other["step"], f"{folder}.pt")
    if reader and not torch.empty(()).is_meta:
        (of_step,) = (info.length for index, info in reader.storage_data.items() if index.fqn == "step")
        Path(f"{folder}-{dist.get_rank()}.json").write_text(json.dumps([reader.n_bytes_read, of_step]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
