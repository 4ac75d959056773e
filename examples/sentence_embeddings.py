"""A published model, all-MiniLM-L6-v2, on four ranks: the same module and the same results, with sharded weights.

minilm.py has the model, without any code for ranks. This program replaces its parameters by DTensors. The word table is given
as TorchRec-style local shards with different numbers of rows. The linear layers are sharded by outputs and then by inputs, so that
three of the twelve attention heads run on each rank. All other parameters are small, and replicated.

    $ torchrun --nproc-per-node 4 examples/sentence_embeddings.py
    [30522, 384] as [Shard(0, sizes=[4000, 6000, 9000, 11522])] on 4 ranks (0-3), 46,881,792 bytes
            0                                                384
          0 ┌────────────────────────────────────────────────┐
            │                     rank 0                     │
            │                                                │
       4000 ├────────────────────────────────────────────────┤
            │                     rank 1                     │
            │                                                │
      10000 ├────────────────────────────────────────────────┤
            │                                                │
            │                     rank 2                     │
            │                                                │
            │                                                │
      19000 ├────────────────────────────────────────────────┤
            │                                                │
            │                                                │
            │                     rank 3                     │
            │                                                │
            │                                                │
      30522 └────────────────────────────────────────────────┘
      rank  shape         offsets          bytes  share
         0  [4000, 384]   [0, 0]       6,144,000  13.1%
         1  [6000, 384]   [4000, 0]    9,216,000  19.7%
         2  [9000, 384]   [10000, 0]  13,824,000  29.5%
         3  [11522, 384]  [19000, 0]  17,697,792  37.7%
      imbalance 1.51: rank 3 holds 17,697,792 bytes, the mean is 11,720,448

    Similarity                                                     1      2      3      4      5      6      7      8
      1  The central bank raised interest rates again.             --   [0.53]  0.13  -0.00   0.10  -0.01   0.03   0.11
      2  Borrowing money just became more expensive.             [0.53]   --    0.09   0.00   0.06   0.05   0.13   0.16
      3  We picnicked on the bank of the river.                   0.13   0.09    --   [0.41]  0.09  -0.02   0.01   0.06
      4  Lunch on the grass, feet in the water.                  -0.00   0.00  [0.41]   --    0.12   0.06   0.01   0.06
      5  My kitten is napping again.                              0.10   0.06   0.09   0.12    --   [0.62]  0.04   0.04
      6  Cats sleep most of the day.                             -0.01   0.05  -0.02   0.06  [0.62]   --    0.01  -0.04
      7  No single machine could hold all of the data.            0.03   0.13   0.01   0.01   0.04   0.01    --   [0.47]
      8  The table was too large, so four computers share it.     0.11   0.16   0.06   0.06   0.04  -0.04  [0.47]   --

    Parameters     rank 0     rank 1     rank 2     rank 3  unsharded
            MB       17.6       20.7       25.3       29.2       90.3
    Messages   13 all_reduce in a forward pass: 3.35 MB received by each rank
    Largest difference from the unsharded model: 1.1e-07
"""

from functools import partial
from itertools import accumulate

import minilm
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

import shardwise as sw

# Frequent words stand early in the vocabulary, so the first ranks get few rows and the last ones many.
TABLE_ROWS = [4_000, 6_000, 9_000, 11_522]

SHARDED_BY_OUTPUTS = {"query", "key", "value", "up"}  # weight and bias: each rank makes its part of the outputs
SHARDED_BY_INPUTS = {"mix", "down"}  # weight: each rank takes its part of the inputs; outputs are a sum over ranks

SENTENCES = [
    "The central bank raised interest rates again.",
    "Borrowing money just became more expensive.",
    "We picnicked on the bank of the river.",
    "Lunch on the grass, feet in the water.",
    "My kitten is napping again.",
    "Cats sleep most of the day.",
    "No single machine could hold all of the data.",
    "The table was too large, so four computers share it.",
]


def word_table(file: safe_open, mesh: sw.DeviceMesh) -> sw.DTensor:
    """The word table. Each rank reads only its own rows."""
    table = file.get_slice(minilm.name_in_file("words.weight"))
    n_rows, width = table.get_shape()
    end = list(accumulate(TABLE_ROWS))[mesh.get_rank()]
    begin = end - TABLE_ROWS[mesh.get_rank()]
    shards = sw.LocalShardsWrapper(local_shards=[table[begin:end]], offsets=[(begin, 0)])
    return sw.DTensor.from_local(shards, mesh, [sw.Shard(0)], shape=(n_rows, width), stride=(width, 1))


def placement_of(layer: str, parameter: str) -> sw.Placement:
    if layer in SHARDED_BY_OUTPUTS:
        return sw.Shard(0)
    if layer in SHARDED_BY_INPUTS and parameter == "weight":
        return sw.Shard(1)
    return sw.Replicate()


def exchange_parameters(file: safe_open, name: str, module: nn.Module, mesh: sw.DeviceMesh) -> None:
    """Loads the weights of `module`, the part of the model called `name`, as DTensors."""
    layer = name.rpartition(".")[2]
    for parameter, _ in list(module.named_parameters(recurse=False)):
        if layer == "words":
            weight = word_table(file, mesh)
        else:
            whole = file.get_tensor(minilm.name_in_file(f"{name}.{parameter}"))
            weight = sw.distribute_tensor(whole, mesh, [placement_of(layer, parameter)], src_data_rank=None)
        module.register_parameter(parameter, nn.Parameter(weight, requires_grad=False))


def load_sharded_model(mesh: sw.DeviceMesh) -> nn.Module:
    with safe_open(minilm.WEIGHTS, "pt") as file:
        return sw.distribute_module(minilm.empty_model(), mesh, partial(exchange_parameters, file))


def print_similarities(vectors: Tensor) -> None:
    """The cosine of each pair of sentences; the largest in a row stands in brackets."""
    cosines = (vectors @ vectors.T).fill_diagonal_(0)
    print(f"{'Similarity':57}" + "".join(f"{i:7}" for i in range(1, len(SENTENCES) + 1)))
    for i, (sentence, row) in enumerate(zip(SENTENCES, cosines.tolist(), strict=True)):
        cells = [f"[{cosine:.2f}]" if cosine == max(row) else f" {cosine:.2f} " for cosine in row]
        cells[i] = "  --  "
        print(f"  {i + 1}  {sentence:55}" + "".join(f"{cell:>7}" for cell in cells).rstrip())


def print_parameters(bytes_by_rank: list[int], bytes_unsharded: int) -> None:
    columns = [f"rank {rank}" for rank in range(len(bytes_by_rank))] + ["unsharded"]
    print("Parameters" + "".join(f"{column:>11}" for column in columns))
    print("        MB" + "".join(f"{n / 1e6:11.1f}" for n in [*bytes_by_rank, bytes_unsharded]))


def print_messages(comm: sw.CommDebugMode) -> None:
    for collective, n in comm.get_comm_counts().items():
        n_bytes = sum(event.bytes_received for event in comm.events if event.collective == collective)
        print(f"Messages   {n} {collective} in a forward pass: {n_bytes / 1e6:.2f} MB received by each rank")


def main() -> None:
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (len(TABLE_ROWS),))
    model = load_sharded_model(mesh)
    ids = minilm.tokenize(SENTENCES)

    with sw.CommDebugMode() as comm:
        vectors = model(sw.DTensor.from_local(ids, mesh, [sw.Replicate()])).full_tensor()

    own_bytes = sum(weight.to_local().numel() * weight.element_size() for weight in model.parameters())
    bytes_by_rank = sw.DTensor.from_local(torch.tensor([own_bytes]), mesh, [sw.Shard(0)]).full_tensor()
    if mesh.get_rank() == 0:
        unsharded = minilm.load_model()
        difference = (vectors - unsharded(ids)).abs().max().item()

        sw.visualize_sharding(model.words.weight)
        print_similarities(vectors)
        print()
        print_parameters(bytes_by_rank.tolist(), sum(weight.nbytes for weight in unsharded.parameters()))
        print_messages(comm)
        print(f"Largest difference from the unsharded model: {difference:.1e}")
        assert difference <= 1e-5
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
