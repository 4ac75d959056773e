"""Two ranks that train a sharded layer under SHARDWISE_WATCH, until a file tells them to go on; then rank 1 fails."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import shardwise as sw


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(torch.nn.Linear(30, 7, bias=False))
    weight = sw.distribute_tensor(model[0].weight.detach(), mesh, [sw.Shard(0, sizes=[5, 2])])
    model[0].weight = torch.nn.Parameter(weight)
    x = sw.ones(4, 30, device_mesh=mesh, placements=[sw.Replicate()])
    is_over = torch.zeros(1)
    while not is_over:
        model(x).full_tensor().sum().backward()
        time.sleep(0.01)
        is_over.fill_(float(dist.get_rank() == 0 and (folder / "fail").exists()))
        dist.broadcast(is_over, 0)
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has had enough <b>")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
