"""torch.nn.utils.clip_grad_norm_ over sharded gradients: torch.distributed.tensor and Shardwise side by side.

    export PYTHONPATH=build/python                            # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/clipping.py        # half a minute

Four ranks over Gloo, float32, one thread each. A call starts behind a barrier and lasts until the slowest rank is done; sides take turns.
The measured call includes replicating the norm, because a program that prints it needs that.
"""

import argparse
import functools
import importlib

import torch
import torch.distributed as dist
from comparison import aligned
from sides import SHARDWISE, TORCH, machine_line
from turns import min_and_median, ms_in_turns


def gradients(package, n, shape):
    mesh = package.init_device_mesh("cpu", (dist.get_world_size(),))
    parameters = []
    for i in range(n):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(i))
        parameter = torch.nn.Parameter(package.distribute_tensor(torch.zeros(shape), mesh, [package.Shard(0)]))
        parameter.grad = package.distribute_tensor(values, mesh, [package.Shard(0)])
        parameters.append(parameter)
    return parameters


def clip(parameters):
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0).full_tensor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=40)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shape = (options.rows, options.columns)
    packages = {name: importlib.import_module(name) for name in (TORCH, SHARDWISE)}
    sides = {name: gradients(package, options.parameters, shape) for name, package in packages.items()}
    values, counts = {}, {}
    for name, parameters in sides.items():
        with importlib.import_module(f"{name}.debug").CommDebugMode() as mode:
            values[name] = clip(parameters)
        counts[name] = mode.get_total_counts()
    torch.testing.assert_close(values[SHARDWISE], values[TORCH])
    calls = {name: functools.partial(clip, parameters) for name, parameters in sides.items()}
    ms = ms_in_turns(calls, options.repeats)
    if dist.get_rank() == 0:
        print(machine_line())
        print(
            f"clip_grad_norm_ of {options.parameters} gradients of {shape[0]} x {shape[1]}, sharded over {dist.get_world_size()} ranks"
        )
        rows = [("side", "min ms", "median ms", "/torch", "/torch", "collectives")]
        rows += [(name, *min_and_median(ms[name], ms[TORCH], 2), str(counts[name])) for name in sides]
        print("\n".join(aligned(rows)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
