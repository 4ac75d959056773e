"""Adapters of PEFT on sharded models: losses, gradients, trained adapters and generated ids are those of one rank. Also on frozen weights of 4 bits."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
from test_uneven_models import fully_sharded, styles
from uneven_models_program import (
    IDS,
    PLACEMENTS,
    distributed,
    expect_same,
    generated,
    gpt2,
    language_loss,
    llama,
    trained,
)

TARGETS = {"Llama": ["q_proj", "v_proj", "o_proj", "down_proj"], "GPT-2": ["c_attn", "c_proj"]}
PARTS = {ColwiseParallel: "lora_B", RowwiseParallel: "lora_A"}


def adapted(model, name="Llama"):
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=TARGETS[name], init_lora_weights=False, fan_in_fan_out=name == "GPT-2", task_type="CAUSAL_LM"
    )  # fmt: skip
    return peft.get_peft_model(model, config)


def by_styles(model, load, mesh):
    """A style for each layer, and then for the part of its adapter that has the features that it shards."""
    plan = styles()
    model = load(parallelize_module(model, mesh, plan))
    targets = {path: style for path, style in plan.items() if path.endswith(tuple(TARGETS["Llama"]))}
    plan = {f"base_model.model.{path}.{PARTS[type(style)]}.*": style for path, style in targets.items()}
    return parallelize_module(model, mesh, plan)


def by_fully_shard(model, load, mesh):
    """generate() of a PeftModel calls the model within, so that is the outermost one to shard."""
    model = load(model)
    fully_sharded(model.get_base_model(), mesh)
    return model


WAYS = {
    "distribute_module, then PEFT": lambda model, load, mesh: load(distributed(model, mesh, PLACEMENTS["Llama"])),
    "PEFT, then distribute_module": lambda model, load, mesh: distributed(load(model), mesh, PLACEMENTS["Llama"]),
    "styles": by_styles,
    "fully_shard": by_fully_shard,
    "styles and fully_shard": lambda model, load, mesh: by_fully_shard(
        model, lambda each: by_styles(each, load, mesh["tp"]), mesh["dp"]
    ),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The model, a folder with its adapters before training, and of one rank the steps, generated ids and logits afterwards."""
    folder, model = str(tmp_path_factory.mktemp("adapters")), llama()
    one = adapted(copy.deepcopy(model))
    one.save_pretrained(folder)
    return model, folder, trained(one), generated(one), one(input_ids=IDS).logits.detach()


def load_from(folder, model):
    return peft.PeftModel.from_pretrained(model, folder, is_trainable=True)


@pytest.mark.parametrize("way", WAYS)
def test_adapters_train_and_are_saved(way, dense, tmp_path):
    given, folder, expected, ids, logits = dense

    def check(rank):
        is_grid = way == "styles and fully_shard"
        shape, names = ((2, 2), ("dp", "tp")) if is_grid else ((4,), ("tp",))
        mesh = sw.init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = WAYS[way](copy.deepcopy(given), partial(load_from, folder), mesh)
        expect_same(trained(model), expected)
        assert torch.equal(generated(model), ids)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, ignore_frozen_params=True))
        assert all("lora" in name for name in state)
        if rank == 0:
            model.save_pretrained(str(tmp_path), state_dict=state)

    run_ranks(4, check)
    loaded = load_from(str(tmp_path), copy.deepcopy(given)).eval()
    torch.testing.assert_close(loaded(input_ids=IDS).logits, logits, rtol=1e-3, atol=1e-4)


def test_adapters_are_merged(dense):
    given, folder, *_ = dense
    expected = generated(load_from(folder, copy.deepcopy(given)).merge_and_unload())

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = WAYS["PEFT, then distribute_module"](copy.deepcopy(given), partial(load_from, folder), mesh)
        assert torch.equal(generated(model.merge_and_unload()), expected)
        model = WAYS["distribute_module, then PEFT"](copy.deepcopy(given), partial(load_from, folder), mesh)
        with sw.implicit_replication():  # the adapters are plain
            assert torch.equal(generated(model.merge_and_unload()), expected)

    run_ranks(4, check)


def test_adapters_of_packed_layers():
    """Of GPT-2's Conv1D, which has its weight as [in, out]."""
    one = adapted(gpt2(), "GPT-2")
    given = copy.deepcopy(one)
    expected = trained(one)

    def check(rank):
        model = distributed(copy.deepcopy(given), sw.init_device_mesh("cpu", (4,)), PLACEMENTS["GPT-2"])
        expect_same(trained(model), expected)

    run_ranks(4, check)


class Packed(nn.Parameter):
    """Numbers of 8 bits whose scale is an attribute, as in bitsandbytes: only the layer reads them."""


class PackedLinear(nn.Linear):
    def pack(self):
        scale = self.weight.detach().abs().max() / 127
        self.weight = Packed((self.weight.detach() / scale).round().to(torch.int8).view(-1, 1), requires_grad=False)
        self.weight.scale = scale
        return self

    def forward(self, x):
        weight = self.weight.to(x.dtype).view(self.out_features, self.in_features) * self.weight.scale
        return nn.functional.linear(x, weight, self.bias)


def test_a_weight_that_only_its_library_reads_stays_plain():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 4), PackedLinear(4, 4).pack(), nn.Linear(4, 2))
    given, x = copy.deepcopy(dense), torch.randn(5, 3)
    dense(x).square().sum().backward()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = copy.deepcopy(given)
        model[1].weight.scale = dense[1].weight.scale  # which a copy of a parameter does not have
        model = distributed(model, mesh, {r"[02]\.weight": Shard(0)})
        assert type(model[1].weight) is Packed and isinstance(model[1].bias, sw.DTensor)
        model(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), dense.parameters(), strict=True):
            if theirs.requires_grad:
                torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)

    run_ranks(2, check)


def quantized(model, bnb):
    """The linear layers of the blocks in 4 bits, as transformers' BitsAndBytesConfig makes them."""
    for module in [*model.model.layers.modules()]:
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                new = bnb.nn.Linear4bit(
                    layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
                )
                new.weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=new)
                setattr(module, name, new.to("cpu"))  # which packs it
    model.is_loaded_in_4bit = True
    return model


@pytest.mark.parametrize("way", ["distribute_module", "styles", "fully_shard"])
def test_adapters_on_weights_of_bitsandbytes(way):
    bnb = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = quantized(llama(vocab_size=101, hidden_size=64, intermediate_size=64, num_attention_heads=4), bnb)
    dense = adapted(model)
    given, ids = copy.deepcopy(dense), IDS % 101
    expected = trained(dense, loss_of=language_loss(ids))

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = copy.deepcopy(given)
        if way == "distribute_module":
            model = distributed(model, mesh, {r"embed_tokens\.weight|lm_head\.weight": Shard(0)})
        elif way == "styles":
            head = ColwiseParallel(output_layouts=Replicate())
            parallelize_module(model.get_base_model(), mesh, {"lm_head": head})
        else:
            fully_sharded(model.get_base_model(), mesh)
            weight = model.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight
            assert weight.to_local().shape == (weight.shape[0] / 4, 1)
        expect_same(trained(model, loss_of=language_loss(ids)), expected)

    run_ranks(4, check)


class AdaptedFloat8(nn.Module):
    """A linear layer of torchao's float8 weights, and its adapter."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.lora_A, self.lora_B = nn.Linear(weight.shape[1], 3, bias=False), nn.Linear(3, weight.shape[0], bias=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + self.lora_B(self.lora_A(x))


def test_adapters_on_weights_of_torchao():
    """test_torchao.py has weights of 4 bits under fully_shard."""
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)]
    for layer in layers:
        quantization.quantize_(layer, quantization.Float8WeightOnlyConfig())
    given = nn.Sequential(*(AdaptedFloat8(layer.weight.detach()) for layer in layers))
    dense, x = copy.deepcopy(given), torch.randn(4, 64)
    expected = trained(dense, loss_of=lambda model: model(x).square().mean())

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = distributed(copy.deepcopy(given), mesh, {r"\d\.weight": Shard(0)})
        assert model[0].weight.to_local().shape == (32, 64)
        expect_same(trained(model, loss_of=lambda model: model(x).square().mean()), expected)

    run_ranks(4, check)
