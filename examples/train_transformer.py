"""A transformer learns to spell on a mesh (dp, tp): layers are sharded along "tp", and the shards are sharded again along "dp".

The text is the reference that Python's own help() quotes, letter by letter. Tensor parallelism gives a rank some heads of each attention
and 85 or 86 of the 171 features of each hidden layer. fully_shard shards these parts and all other parameters over the data-parallel ranks,
which have 14 samples together. A checkpoint has the model, the optimizer and the position in the text, and does not depend on the mesh.
Three data-parallel ranks, and two tensor-parallel ranks with compiled blocks, continue from it with the same losses as the four ranks that
wrote it.

    $ torchrun --nproc-per-node 4 examples/train_transformer.py --mesh 2 2 --save-at 20 --folder /tmp/shardwise-transformer
    Text of Python 3.11.7: 464,970 letters, 103 different; 28,214 of 94,614 parameters on rank 0 of DeviceMesh((dp=2, tp=2), 'cpu')
    steps   1 to  10: loss 3.645
    steps  11 to  20: loss 3.075
    saved after step 20
    steps  21 to  30: loss 2.812
    steps  31 to  40: loss 2.697
    letters per second: ...
    $ torchrun --nproc-per-node 3 examples/train_transformer.py --mesh 3 1 --resume --folder /tmp/shardwise-transformer
    Text of Python 3.11.7: 464,970 letters, 103 different; 32,240 of 94,614 parameters on rank 0 of DeviceMesh((dp=3, tp=1), 'cpu')
    resumed after step 20
    steps  21 to  30: loss 2.812
    steps  31 to  40: loss 2.697
    letters per second: ...
    $ torchrun --nproc-per-node 2 examples/train_transformer.py --mesh 1 2 --resume --compile --folder /tmp/shardwise-transformer
    Text of Python 3.11.7: 464,970 letters, 103 different; 56,300 of 94,614 parameters on rank 0 of DeviceMesh((dp=1, tp=2), 'cpu')
    resumed after step 20
    steps  21 to  30: loss 2.812
    steps  31 to  40: loss 2.697
    letters per second: ...
"""

import argparse
import platform
import time
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

import shardwise as sw
from shardwise.checkpoint import FileSystemReader, FileSystemWriter
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HIDDEN, HEADS, BLOCKS = 64, 171, 4, 2
LENGTH, BATCH = 64, 14  # letters of a sample, samples of all ranks
RATE, LONGEST = 6e-3, 1.0  # of learning; of a gradient
SHOWN = 10  # steps whose mean loss is printed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_hidden = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before_attention(x)
        projected = self.query(normed), self.key(normed), self.value(normed)
        heads = [each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in projected]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_hidden(x))))


class Transformer(nn.Module):
    def __init__(self, n_letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(n_letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, n_letters, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


PLAN = {f"blocks.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}
PLAN |= {f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")}


def sharded(model: nn.Module, mesh: sw.DeviceMesh, is_compiled: bool) -> nn.Module:
    parallelize_module(model, mesh["tp"], PLAN)
    for block in model.blocks:
        if is_compiled:
            block.compile(fullgraph=True)  # one graph for all blocks
        sw.fully_shard(block, mesh=mesh["dp"])
    return sw.fully_shard(model, mesh=mesh["dp"])


class Reader:
    """The text in batches of samples, in another random order each time it is read."""

    def __init__(self) -> None:
        text = "".join(topics.values())
        self.alphabet = sorted(set(text))
        number = {letter: i for i, letter in enumerate(self.alphabet)}
        self.letters = torch.tensor([number[letter] for letter in text])
        self.samples = self.letters.unfold(0, LENGTH + 1, LENGTH)
        self.n_read = 0

    def next_batch(self) -> Tensor:
        epoch, i = divmod(self.n_read, len(self.samples) // BATCH)
        order = torch.randperm(len(self.samples), generator=torch.Generator().manual_seed(epoch))
        self.n_read += 1
        return self.samples[order[i * BATCH : (i + 1) * BATCH]]


class Training(Stateful):
    """The contents of a checkpoint."""

    def __init__(self, model: nn.Module, reader: Reader) -> None:
        self.model, self.reader = model, reader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments, "batches read": self.reader.n_read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.reader.n_read = state["batches read"]


def loss_sum(model: nn.Module, samples: Tensor) -> Tensor:
    return F.cross_entropy(model(samples[:, :-1]).flatten(0, 1), samples[:, 1:].flatten(), reduction="sum")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs=2, default=(2, 2), metavar=("DP", "TP"), help="its sizes")
    parser.add_argument("--compile", action="store_true", help="the blocks, by inductor")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", help="of the checkpoint")
    parser.add_argument("--save-at", type=int, metavar="STEP", help="write it after this step")
    parser.add_argument("--resume", action="store_true", help="read it, and go on")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", tuple(options.mesh), mesh_dim_names=("dp", "tp"))
    n_parts, part = mesh["dp"].size(), mesh.get_local_rank("dp")

    def say(words: str) -> None:
        if dist.get_rank() == 0:
            print(words, flush=True)

    torch.manual_seed(0)
    reader = Reader()
    whole = Transformer(len(reader.alphabet))
    n_parameters = sum(each.numel() for each in whole.parameters())
    model = sharded(whole, mesh, options.compile)
    n_own = sum(each.to_local().numel() for each in model.parameters())
    text = f"{len(reader.letters):,} letters, {len(reader.alphabet)} different"
    say(
        f"Text of Python {platform.python_version()}: {text}; {n_own:,} of {n_parameters:,} parameters on rank 0 of {mesh}"
    )
    training = Training(model, reader)
    if options.resume:
        dcp.load({"training": training}, storage_reader=FileSystemReader(options.folder))
        say(f"resumed after step {reader.n_read}")

    mean, first, start = torch.zeros(()), reader.n_read, time.perf_counter()
    for step in range(first + 1, options.steps + 1):
        own = reader.next_batch().tensor_split(n_parts)[part]
        loss = loss_sum(model, own) * n_parts / (BATCH * LENGTH)  # their mean over ranks is that over all letters
        training.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
        training.optimizer.step()
        mean += loss.detach() / SHOWN
        if step % SHOWN == 0:
            dist.all_reduce(mean)
            say(f"steps {step - SHOWN + 1:3} to {step:3}: loss {mean.item() / mesh.size():.3f}")
            mean.zero_()
        if step == options.save_at:
            dcp.save({"training": training}, storage_writer=FileSystemWriter(options.folder))
            say(f"saved after step {step}")
    n_letters = (reader.n_read - first) * BATCH * LENGTH
    say(f"letters per second: {n_letters / (time.perf_counter() - start):,.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
