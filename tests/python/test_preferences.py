"""Losses of DPO and GRPO with a reference model, on sharded models: losses, gradients and trained parameters are those of one rank."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw
from shardwise.parallel import parallelize_module
from shardwise.testing import run_ranks

pytest.importorskip("transformers")

from test_uneven_models import fully_sharded, styles
from uneven_models_program import PLACEMENTS, distributed, expect_same, llama, trained

# Two prompts of two ids, each with a chosen and a rejected answer. The mask has the ids of the answers.
IDS = torch.tensor([[5, 9, 2, 31, 7, 1], [3, 8, 8, 4, 1, 0], [5, 9, 12, 30, 1, 0], [3, 8, 18, 44, 1, 20]])
MASK = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
ADVANTAGES = torch.tensor([[1.0], [-0.5], [-1.0], [0.5]])


def log_probabilities(model):
    """The logarithms of the probabilities of the ids, [rows, ids - 1], whole and plain on every rank."""
    logits = model(input_ids=IDS).logits[:, :-1]
    result = logits.log_softmax(-1).gather(-1, IDS[:, 1:, None]).squeeze(-1)
    return result.full_tensor() if isinstance(result, sw.DTensor) else result


def dpo(model, reference, beta=0.1):
    """Direct preference optimization (Rafailov et al., 2023)."""
    ours = log_probabilities(model)
    with torch.no_grad():
        theirs = log_probabilities(reference)
    chosen, rejected = ((ours - theirs) * MASK).sum(-1).chunk(2)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def grpo(model, reference, old, beta=0.04):
    """Group relative policy optimization (Shao et al., 2024): clipped ratios to the model that wrote the answers, and a divergence from the
    reference."""
    ours = log_probabilities(model)
    with torch.no_grad():
        theirs = log_probabilities(reference)
    ratio = (ours - old).exp()
    gain = torch.minimum(ratio * ADVANTAGES, ratio.clamp(0.8, 1.2) * ADVANTAGES)
    divergence = (theirs - ours).exp() - (theirs - ours) - 1
    return -(((gain - beta * divergence) * MASK).sum(-1) / MASK.sum(-1)).mean()


def results(model, reference):
    with torch.no_grad():
        old = log_probabilities(model)
    seen = trained(model, loss_of=lambda model: dpo(model, reference))
    return seen + trained(model, loss_of=lambda model: grpo(model, reference, old))


WAYS = {
    "distribute_module": lambda model, mesh: distributed(model, mesh, PLACEMENTS["Llama"]),
    "styles": lambda model, mesh: parallelize_module(model, mesh, styles()),
    "fully_shard": fully_sharded,
    "styles and fully_shard": lambda model, mesh: fully_sharded(
        parallelize_module(model, mesh["tp"], styles()), mesh["dp"]
    ),
}


def mesh_for(way):
    shape, names = ((2, 2), ("dp", "tp")) if way == "styles and fully_shard" else ((4,), ("tp",))
    return sw.init_device_mesh("cpu", shape, mesh_dim_names=names)


@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_copy_is_the_reference(way):
    given = llama(vocab_size=101)
    expected = results(copy.deepcopy(given), copy.deepcopy(given).requires_grad_(False))

    def check(rank):
        mesh = mesh_for(way)
        model, reference = (WAYS[way](copy.deepcopy(given), mesh) for _ in range(2))
        expect_same(results(model, reference.requires_grad_(False)), expected)

    run_ranks(4, check)


def without_adapters(model, **inputs):
    with model.disable_adapter():
        return model(**inputs)


@pytest.mark.parametrize("way", ["distribute_module", "fully_shard"])
def test_the_model_without_its_adapters_is_the_reference(way):
    pytest.importorskip("peft")
    from test_adapters import adapted

    given = adapted(llama(vocab_size=101))
    dense = copy.deepcopy(given)
    expected = results(dense, partial(without_adapters, dense))

    def check(rank):
        model = copy.deepcopy(given)
        mesh = sw.init_device_mesh("cpu", (4,))
        if way == "fully_shard":
            fully_sharded(model.get_base_model(), mesh)
        else:
            model = distributed(model, mesh, PLACEMENTS["Llama"])
        expect_same(results(model, partial(without_adapters, model)), expected)

    run_ranks(4, check)
