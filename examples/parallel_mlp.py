"""A model-parallel MLP: an embedding sharded by columns, a column-parallel layer, and a row-parallel layer.

Between the two layers nothing is sent: each rank continues with its hidden units. The communication trace shows the messages: an
all-gather of the embedding's columns, then one all-reduce in the forward and one in the backward. The sizes are not multiples of
four. torch.nn's layers with the same values, on one rank, have the same losses.

    $ torchrun --nproc-per-node 4 examples/parallel_mlp.py
    layer                 weight     placement rank 0     rank 3
    ParallelEmbedding     [100, 30]  Shard(1)  [100, 8]   [100, 6]
    ColumnParallelLinear  [50, 30]   Shard(0)  [13, 30]   [11, 30]
    RowParallelLinear     [30, 50]   Shard(1)  [30, 13]   [30, 11]
    embedding             {'all_gather': 1}, 1,408 bytes received by rank 0
    column and row layer  {'all_reduce': 1}, 2,880 bytes received by rank 0
    backward              {'all_reduce': 1}, 2,880 bytes received by rank 0
    losses, model-parallel 0.8409 0.5637 0.4442 0.3717 0.3199
    losses, torch.nn       0.8409 0.5637 0.4442 0.3717 0.3199
"""

import torch
import torch.distributed as dist
from torch import nn

import shardwise as sw
from shardwise.parallel import ColumnParallelLinear, ParallelEmbedding, RowParallelLinear

WORDS, WIDTH, HIDDEN, BATCH = 100, 30, 50, 16


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = ParallelEmbedding(WORDS, WIDTH, init_type="normal")
        self.up = ColumnParallelLinear(WIDTH, HIDDEN, gather_output=False)
        self.down = RowParallelLinear(HIDDEN, WIDTH, input_is_parallel=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.table(ids))))


def dense(model: Mlp) -> nn.Sequential:
    """torch.nn's layers with the same values."""
    layers = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    whole = {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}
    for ours, theirs in (("table", "0"), ("up", "1"), ("down", "3")):
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in whole:
                layers.get_parameter(f"{theirs}.{kind}").data.copy_(whole[f"{ours}.{kind}"])
    return layers


def show(model: Mlp) -> None:
    """Prints each weight, its placement, and its local shapes on the first and the last rank."""
    lines = []
    for layer in (model.table, model.up, model.down):
        shapes: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(shapes, list(layer.weight.to_local().shape))
        (placement,) = layer.weight.placements
        lines.append((type(layer).__name__, list(layer.weight.shape), placement, shapes[0], shapes[-1]))
    say(f"{'layer':22}{'weight':11}{'placement':10}{'rank 0':11}rank 3")
    for name, shape, placement, first, last in lines:
        say(f"{name:22}{shape!s:11}{placement!s:10}{first!s:11}{last}")


def trace(model: Mlp, ids: torch.Tensor) -> None:
    """Prints the messages of one step."""
    with sw.CommDebugMode() as looked_up:
        rows = model.table(ids)
    with sw.CommDebugMode() as forward:
        y = model.down(torch.relu(model.up(rows)))
    with sw.CommDebugMode() as backward:
        y.sum().backward()
    for name, comm in (("embedding", looked_up), ("column and row layer", forward), ("backward", backward)):
        say(f"{name:22}{comm.get_comm_counts()}, {comm.bytes_received():,} bytes received by rank 0")


def train(model: nn.Module, ids: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(ids), wanted)  # each rank has the whole output, and the one loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mlp()  # on all ranks in a row; each draws its own part
    plain = dense(model)
    ids = torch.arange(BATCH) * 7 % WORDS
    wanted = torch.linspace(-1, 1, BATCH * WIDTH).view(BATCH, WIDTH)

    show(model)
    trace(model, ids)
    for name, layers in (("model-parallel", model), ("torch.nn", plain)):
        say(f"losses, {name:15}{' '.join(f'{loss:.4f}' for loss in train(layers, ids, wanted))}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
