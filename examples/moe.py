"""A mixture of experts learns to spell: expert parallelism x data parallelism on four ranks.

The text is the reference that Python's own help() quotes, letter by letter. In each of two layers, every letter goes to 2 of 7 experts. Two
ranks hold the experts: 4 on one, 3 on the other. The other two ranks have copies of them. Each of the four ranks has its own letters, and a
letter may go to any expert: no letter is dropped or padded. The load of an expert is its share of the letters' choices; a term of the loss
keeps the loads even (Switch Transformers, Fedus, Zoph and Shazeer, 2021).

    $ torchrun --nproc-per-node 4 examples/moe.py
    Text of Python 3.11.7: 464,970 letters, 103 different; 7 experts on the mesh DeviceMesh((dp=2, ep=2), 'cpu')
    Step   loss  load per expert, per cent
       0   4.71   18  16  14  15  12  10  16 |  10  11   9  12  24  20  15
      10   3.34   14  25   8  15  16   3  19 |   4   7   3  24  17  37   8
      20   3.04   18  16  14  12  15   8  16 |  26  36  10   6   9   0  12
      30   2.97   13  14  12  10  17  16  19 |  22   8  19  10  18   1  22
      40   2.90   14  11  13  17  12  14  19 |  14  13  13  12  15  11  22
    letters per second: ...
"""

import argparse
import platform
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardwise as sw
from shardwise.parallel import ExpertParallel, parallelize_module

WIDTH, HIDDEN, HEADS, LAYERS = 48, 64, 4, 2
EXPERTS, CHOICES = 7, 2
LENGTH, BATCH = 32, 8  # letters of a sample, samples of each rank
BALANCE = 0.02  # how much uneven loads count


class Experts(nn.Module):
    """Two layers per expert, stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * HIDDEN**-0.5)

    def forward(self, hidden: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        choices = expert_ids.flatten()
        order = choices.argsort(stable=True)
        offs = choices.bincount(minlength=len(self.up)).cumsum(0, dtype=torch.int32)
        rows = F.gelu(F.grouped_mm(hidden[order // expert_ids.shape[1]], self.up, offs=offs))
        rows = F.grouped_mm(rows, self.down, offs=offs) * weights.flatten()[order, None]
        return torch.zeros_like(hidden).index_add(0, order // expert_ids.shape[1], rows)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_experts = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()
        self.load = torch.zeros(EXPERTS)  # choices of each expert in this rank's last batch
        self.unevenness = torch.zeros(())

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        heads = self.qkv(self.before_attention(hidden)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        tokens = self.before_experts(hidden).flatten(0, 1)
        chances = self.router(tokens).softmax(-1)
        weights, ids = chances.topk(CHOICES)
        self.load = ids.flatten().bincount(minlength=EXPERTS) / ids.numel()
        self.unevenness = EXPERTS * (self.load * chances.mean(0)).sum()
        return hidden + self.experts(tokens, ids, weights / weights.sum(-1, keepdim=True)).view_as(hidden)


class Speller(nn.Module):
    def __init__(self, n_letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(n_letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_letters)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))


def average_gradients(model: nn.Module, mesh: sw.DeviceMesh) -> None:
    """Each gradient becomes the gradient of the mean over all ranks' samples. The gradient of an expert has the terms of the two ranks in
    its mesh["ep"]."""
    for parameter in model.parameters():
        is_expert = isinstance(parameter, sw.DTensor)
        grad = parameter.grad.to_local() if is_expert else parameter.grad
        dist.all_reduce(grad, group=mesh.get_group("dp") if is_expert else None)
        grad.div_(mesh.size())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    text = "".join(topics.values())
    alphabet = sorted(set(text))
    number = {letter: i for i, letter in enumerate(alphabet)}
    letters = torch.tensor([number[letter] for letter in text])

    def say(words: str) -> None:
        if dist.get_rank() == 0:
            print(words, flush=True)

    torch.manual_seed(0)
    model = parallelize_module(Speller(len(alphabet)), mesh["ep"], {"layers.*.experts": ExpertParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    say(
        f"Text of Python {platform.python_version()}: {len(text):,} letters, {len(alphabet)} different; {EXPERTS} experts on the mesh {mesh}"
    )
    say("Step   loss  load per expert, per cent")
    random = torch.Generator().manual_seed(1)
    start = time.perf_counter()
    for step in range(steps + 1):
        first = torch.randint(len(letters) - LENGTH, (mesh.size(), BATCH), generator=random)[dist.get_rank()]
        samples = letters[first[:, None] + torch.arange(LENGTH + 1)]
        spelled = F.cross_entropy(model(samples[:, :-1]).flatten(0, 1), samples[:, 1:].flatten())
        optimizer.zero_grad()
        (spelled + BALANCE * sum(layer.unevenness for layer in model.layers)).backward()
        average_gradients(model, mesh)
        optimizer.step()
        if step % 10 == 0:
            seen = torch.cat([spelled.detach()[None], *(layer.load for layer in model.layers)])
            dist.all_reduce(seen)
            loss, *loads = (seen / mesh.size()).tolist()
            shares = [f"{100 * load:3.0f}" for load in loads]
            say(f"{step:4} {loss:6.2f}  {' '.join(shares[:EXPERTS])} | {' '.join(shares[EXPERTS:])}")
    seconds = time.perf_counter() - start
    say(f"letters per second: {(steps + 1) * mesh.size() * BATCH * LENGTH / seconds:,.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
