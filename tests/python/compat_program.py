"""A program for torch.distributed.tensor alone, run by test_compat.py on Shardwise: compat_program.py PART FOLDER prints PART-RANK
where all is well, and the library that its tensors are of."""

import copy
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, zeros
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel, local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def parallel(folder):
    """A block by styles: the dense values and gradients."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    block = Block()
    dense = copy.deepcopy(block)
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    parallelize_module(block, mesh["tp"], plan)
    x = torch.randn(6, 8)
    with CommDebugMode() as comm:
        out = block(x)
    assert comm.get_total_counts() > 0 and out.placements == (Shard(0),)
    torch.testing.assert_close(out.full_tensor(), dense(x))
    assert isinstance(block.up.weight, DTensor) and block.up.weight.placements == (Shard(0),)


def tensors(folder):
    """What a program does with tensors by hand."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.arange(32.0).view(8, 4)
    tensor = distribute_tensor(x, mesh, [Shard(0)])
    torch.testing.assert_close((tensor @ tensor.t()).full_tensor(), x @ x.t())
    local = local_map(lambda a: a * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)
    torch.testing.assert_close(local(tensor).full_tensor(), 2 * x)
    assert zeros(3, device_mesh=mesh).placements == (Replicate(),)
    sums = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    assert sums.full_tensor().tolist() == [dist.get_world_size()] * 2
    layer = distribute_module(nn.Linear(4, 3), mesh)
    assert layer.weight.device_mesh == mesh
    q = torch.randn(1, 2, 8, 4)
    dist.broadcast(q, 0)
    dense = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    with context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
        out = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert out.size(2) * dist.get_world_size() == dense.size(2)


def fully_sharded(folder):
    """fully_shard over one mesh dim of a block that styles sharded over the other: the dense gradients, on other samples per rank, and the
    dense state."""
    from torch.distributed._composable.fsdp import fully_shard as by_old_name

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    block = Block()
    dense = copy.deepcopy(block)
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    by_old_name(block.up, mesh=mesh["dp"])
    assert fully_shard(block, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy()) is block
    assert isinstance(block, FSDPModule) and isinstance(block.up, FSDPModule) and not isinstance(block.down, FSDPModule)
    x = torch.randn(6, 8)
    samples = x.chunk(2)[mesh.get_local_rank("dp")]
    torch.testing.assert_close(block(samples), dense(samples))
    for model, given in ((block, samples), (dense, x)):
        model(given).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    for ours, theirs in zip(block.parameters(), dense.parameters(), strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
    state = get_model_state_dict(block, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.testing.assert_close(state, dict(dense.state_dict()))


def saved(folder):
    """save_pretrained of a model of transformers that styles and fully_shard have sharded: transformers loads the whole values."""
    from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=37, hidden_size=12, num_hidden_layers=2, num_attention_heads=4, intermediate_size=18)
    model = BertForSequenceClassification(config)
    expected = copy.deepcopy(dict(model.state_dict()))
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    plan = {"intermediate.dense": ColwiseParallel(), "output.dense": RowwiseParallel()}
    for layer in model.bert.encoder.layer:
        fully_shard(parallelize_module(layer, mesh["tp"], plan), mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model.save_pretrained(folder)
    dist.barrier()
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.testing.assert_close(dict(loaded.state_dict()), expected, rtol=0, atol=0)
    assert loaded.config.architectures == ["BertForSequenceClassification"]


def tp_plan(folder):
    """transformers loads a Llama by its tensor-parallel plan: the dense logits, loss and gradients."""
    from transformers import AutoModelForCausalLM

    ids = torch.arange(14).view(2, 7) % 50
    dense = AutoModelForCausalLM.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    assert isinstance(model.model.layers[0].mlp.up_proj.weight, DTensor)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, dense(ids).logits)
    expected, loss = dense(ids, labels=ids).loss, model(ids, labels=ids).loss
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), dense.parameters(), strict=True):
        grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        torch.testing.assert_close(grad, theirs.grad, msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    part, folder = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    {"parallel": parallel, "tensors": tensors, "fully_sharded": fully_sharded, "saved": saved, "tp_plan": tp_plan}[
        part
    ](folder)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"{part}-{os.environ['RANK']} {DTensor.__module__}\n")
