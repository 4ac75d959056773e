"""Models of transformers whose sizes 4 ranks do not divide. test_uneven_models.py compares them with one rank, and starts this program.

torchrun uneven_models_program.py save FOLDER    on 4 ranks: trains both models, and saves them
torchrun uneven_models_program.py load FOLDER    on 2 ranks: goes on from there, as one rank does that was never stopped
"""

import copy
import re

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torchrun import run_parts
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import shardwise as sw
from shardwise import Shard
from shardwise.placement_types import _StridedShard

IDS = torch.tensor([[5, 9, 2, 31, 7, 1], [3, 8, 50256, 4, 1, 0]])
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def llama(**sizes):
    """6 heads of queries, 2 of keys and values."""
    torch.manual_seed(0)
    config = {
        "vocab_size": 50257, "hidden_size": 24, "intermediate_size": 42, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, **TOKENS, **sizes,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**config))


def gpt2():
    """The published model but for its width and number of layers: packed queries, keys and values, and a head that is tied to the table."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=12, n_positions=16, **TOKENS)).eval()  # no dropout


MODELS = {"Llama": llama, "GPT-2": gpt2}

# Placements by the ends of parameters' names; all others are replicated. Conv1D, GPT-2's linear layer, has its weight as [in, out].
PLACEMENTS = {
    "Llama": {
        r"(q|k|v|gate|up)_proj\.weight|embed_tokens\.weight|lm_head\.weight": Shard(0),
        r"(o|down)_proj\.weight": Shard(1),
    },
    "GPT-2": {
        r"c_attn\.weight": _StridedShard(1, split_factor=3),
        r"c_attn\.bias": _StridedShard(0, split_factor=3),
        r"c_fc\.weight": Shard(1),
        r"(c_fc\.bias|c_proj\.weight|wte\.weight)": Shard(0),
    },
}


def distributed(model, mesh, placements):
    """The model with its parameters placed by their names, which an adapter around a layer does not change."""

    def shard(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            path = f"{name}.{key}".replace(".base_layer", "")
            placement = next((each for ends, each in placements.items() if re.search(rf"({ends})$", path)), None)
            if placement is not None and not isinstance(parameter, sw.DTensor):
                made = sw.distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
                setattr(module, key, nn.Parameter(made, requires_grad=parameter.requires_grad))

    return sw.distribute_module(model, mesh, shard)


def whole(tensor):
    return (tensor.detach().full_tensor() if isinstance(tensor, sw.DTensor) else tensor.detach()).clone()


def adamw(model):
    """With an epsilon above the rounding errors of gradients that are zero, such as those of GPT-2's biases of keys."""
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2, eps=1e-3)


def language_loss(ids=IDS):
    return lambda model: model(input_ids=ids, labels=ids).loss


def trained(model, *, loss_of=None, whole_loss=whole, optimizer=None, n_steps=2):
    """The loss and all gradients of each step, and the parameters at the end."""
    optimizer, seen = optimizer or adamw(model), []
    parameters = [each for each in model.parameters() if each.requires_grad]
    for _ in range(n_steps):
        loss = (loss_of or language_loss())(model)
        loss.backward()
        seen += [whole_loss(loss), *(whole(each.grad) for each in parameters)]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [whole(each) for each in parameters]


def generated(model):
    mask = torch.ones_like(IDS)
    return model.eval().generate(input_ids=IDS, attention_mask=mask, max_new_tokens=4, do_sample=False)


def expect_same(found, expected, tolerance=1e-3):
    assert len(found) == len(expected)
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=1e-5, msg=lambda text, i=i: f"value {i} of {len(found)}: {text}"
        )


def made(name):
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    model = distributed(MODELS[name](), mesh, PLACEMENTS[name])
    return model, adamw(model)


def save(folder):
    for name in MODELS:
        model, optimizer = made(name)
        trained(model, optimizer=optimizer)
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(states, checkpoint_id=f"{folder}/{name}")
        model.save_pretrained(f"{folder}/{name} whole")


def load(folder):
    for name, make in MODELS.items():
        dense = make()
        of_dense = adamw(dense)
        trained(dense, optimizer=of_dense)
        plain = type(dense).from_pretrained(f"{folder}/{name} whole")
        expect_same([*plain.parameters()], [*dense.parameters()])
        expected = trained(copy.deepcopy(dense), n_steps=0), trained(dense, optimizer=of_dense), generated(dense)

        model, optimizer = made(name)
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(states, checkpoint_id=f"{folder}/{name}")
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        expect_same(trained(model, n_steps=0), expected[0])
        expect_same(trained(model, optimizer=optimizer), expected[1])
        assert torch.equal(generated(model), expected[2])


if __name__ == "__main__":
    run_parts({"save": save, "load": load})
