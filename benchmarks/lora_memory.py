"""A step of adapters (LoRA) over a stack of frozen linear layers: the memory that it takes with DTensors and with plain tensors.

    export PYTHONPATH=build/python                          # where Shardwise is built and not installed
    torchrun --nproc-per-node 1 benchmarks/lora_memory.py
    torchrun --nproc-per-node 2 benchmarks/lora_memory.py --layers 8 --width 512

Each rank has its rows of the batch, and all weights. The plain side sums the adapters' gradients by all-reduces, as Shardwise does. "kept"
is the memory that the graph of one forward keeps. "peak" is the most that torch's allocator held during forward, backward and the update,
minus what it held before. Both are MiB of rank 0. The losses are also compared.
"""

import argparse

import torch
import torch.distributed as dist
from attention import kept_bytes
from embedding_memory import MIB, measure
from sides import PLAIN, SHARDWISE, Distributed, Plain, machine_line
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer plus a trained product of two narrow linear layers."""

    def __init__(self, side, width, rank):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def placed(*shape, is_trained=True):
            data = torch.randn(shape, generator=generator) / width**0.5
            return nn.Parameter(side.distribute(data, None), requires_grad=is_trained)

        self.weight, self.bias = placed(width, width, is_trained=False), placed(width, is_trained=False)
        self.down, self.up = placed(rank, width), placed(width, rank)

    def forward(self, rows):
        adapted = nn.functional.linear(nn.functional.linear(rows, self.down), self.up)
        return nn.functional.linear(rows, self.weight, self.bias) + adapted


def made(side, options):
    """A step and its forward: the loss of the whole batch."""
    layers = [Adapted(side, options.width, options.rank) for _ in range(options.layers)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.GELU())])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    n_ranks = dist.get_world_size()
    batch = torch.randn(n_ranks * options.rows, options.width, generator=torch.Generator().manual_seed(1))
    own = batch.chunk(n_ranks)[dist.get_rank()].clone()
    batch = own if side.name == PLAIN else side.from_local(0)(own)

    def forward():
        return model(batch).square().sum()

    def step():
        loss = forward()
        loss.backward()
        if side.name == PLAIN and n_ranks > 1:
            for parameter in trained:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, forward


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rank", type=int, default=8, help="of the adapters (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=512, help="of a rank (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures = []
    for side in (Plain(), Distributed(SHARDWISE)):
        step, forward = made(side, options)
        loss = step()  # what a first step sets up is not counted
        if side.name == PLAIN:
            dist.all_reduce(loss)
        total = loss if side.name == PLAIN else side.full_tensor()(loss)
        figures.append((kept_bytes(forward), measure(step).peak, total.item()))
    if dist.get_rank() == 0:
        print(f"{machine_line()}, {dist.get_world_size()} ranks")
        print(f"{options.layers} layers of {options.width}, adapters of {options.rank}, {options.rows} rows per rank")
        for name, (kept, peak, loss) in zip((PLAIN, SHARDWISE), figures, strict=True):
            print(f"{name:<10} kept {kept / MIB:8.3f}  peak {peak / MIB:8.3f}  loss {loss:.4f}")
        (kept, peak, _), (our_kept, our_peak, _) = figures
        print(f"shardwise / plain: kept {our_kept / kept:.4f}, peak {our_peak / peak:.4f}; target 1.0000")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
