"""Small models with random weights on four ranks: `truth_models.py llama`, `qwen` or `dlrm`. test_dry_run_truth.py runs each, also in a dry run.

Values decide over some messages. Here they are those that a dry run plans for: choices of experts go round, and ids are spread evenly over the rows.
"""

import sys

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardwise as sw
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, ExpertParallel, RowwiseParallel, parallelize_module

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}


def train(model, parameters):
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for _ in range(2):
        ids = torch.arange(2 * 64).view(2, 64)
        model(input_ids=ids, labels=ids).loss.backward()
        for parameter in parameters:
            if not isinstance(parameter, sw.DTensor):
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def llama():
    mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    layer = "model.layers.*"
    styles = {f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    styles |= {f"{layer}.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    styles |= {f"{layer}.self_attn.o_proj": RowwiseParallel(), f"{layer}.mlp.down_proj": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], styles)
    for each in model.model.layers:
        fully_shard(each, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    train(model, list(model.parameters()))


class InTurn(nn.Module):
    """A router whose choices go round the experts."""

    def __init__(self, router):
        super().__init__()
        self.weight, self.n, self.n_chosen = router.weight, router.num_experts, router.top_k

    def forward(self, hidden):
        hidden = hidden.flatten(0, -2)
        logits = nn.functional.linear(hidden, self.weight)
        chosen = torch.arange(len(hidden) * self.n_chosen).view(-1, self.n_chosen) % self.n
        return logits, logits.softmax(-1).gather(1, chosen), chosen


def qwen():
    mesh = sw.init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
    sizes = {**SIZES, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16}
    config = transformers.Qwen3MoeConfig(**sizes, experts_implementation="grouped_mm")
    model = transformers.Qwen3MoeForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp.gate = InTurn(layer.mlp.gate)
    parallelize_module(model, mesh, {"model.layers.*.mlp.experts": ExpertParallel()})
    train(model, list(model.parameters()))


class DLRM(nn.Module):
    ROWS, WIDTH = (4000, 1000, 40, 8), 16

    def __init__(self):
        super().__init__()
        tables = [sw.TableConfig(f"t{i}", n_rows, self.WIDTH) for i, n_rows in enumerate(self.ROWS)]
        self.embedding = sw.DistributedEmbedding(tables, data_parallel_threshold=1000, row_slice_threshold=60_000)
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, self.WIDTH))
        self.top = nn.Sequential(nn.Linear((len(self.ROWS) + 1) * self.WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, ids):
        lookup = self.embedding.start(ids)
        hidden = self.bottom(dense)
        return self.top(torch.cat([hidden, *lookup.wait()], 1))


def dlrm():
    model = DLRM()
    trained = DistributedDataParallel(model)
    optimizers = [
        sw.optim.FusedAdagrad(model.embedding.parameters(), lr=0.1, row_wise=True),
        torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()]),
    ]
    n = 128
    ids = [torch.arange(n) * n_rows // n for n_rows in model.ROWS]
    for _ in range(2):
        trained(torch.rand(n, 13), ids).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    {"llama": llama, "qwen": qwen, "dlrm": dlrm}[sys.argv[1]]()
    dist.destroy_process_group()
