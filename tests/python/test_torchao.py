"""torchao's tensor classes as local tensors: the same class on one device is the judge."""

import copy

import pytest
import torch
from torchrun import expect_all_well

import shardwise as sw
from shardwise import Replicate, Shard
from shardwise.checkpoint import inner_tensors
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

quantization = pytest.importorskip("torchao.quantization")
F = torch.nn.functional


def quantised(config, rows=64, columns=128):
    torch.manual_seed(0)
    layer = torch.nn.Linear(columns, rows, bias=False)
    quantization.quantize_(layer, getattr(quantization, config)())
    return layer.weight.detach()


def equal(a, b):
    names, context = a.__tensor_flatten__()
    assert (names, context) == b.__tensor_flatten__()
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_weights_move(config, n_ranks):
    weight = quantised(config)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        rows = sw.distribute_tensor(weight, mesh, [Shard(0)])
        assert equal(rows.full_tensor(), weight)
        assert equal(rows.redistribute(placements=[Replicate()]).to_local(), weight)
        columns = sw.distribute_tensor(weight, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
        assert equal(columns.to_local(), sw.distribute_tensor(weight, mesh, [Shard(1)]).to_local())
        assert equal(rows.redistribute(placements=[Shard(1)]).to_local(), columns.to_local())
        if config.startswith("Float8") and n_ranks == 2:  # its aten.cat takes parts of one size
            assert equal(columns.full_tensor(), weight)
        x = sw.distribute_tensor(torch.ones(4, 128), mesh, [Replicate()])
        torch.testing.assert_close(F.linear(x, rows).full_tensor(), F.linear(torch.ones(4, 128), weight))

    run_ranks(n_ranks, body)


def test_what_a_class_cannot_join_is_an_error_of_it():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = sw.distribute_tensor(quantised("Int8WeightOnlyConfig"), mesh, [Shard(1)])
        with pytest.raises(
            NotImplementedError, match=r"a Int8Tensor has no aten.cat for these parts.*and a slice along dim 1 changes"
        ):
            x.full_tensor()

    run_ranks(2, body)


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_inner_tensors_of_weights(config):
    weight = quantised(config)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        inner = inner_tensors(sw.distribute_tensor(weight, mesh, [Shard(0, sizes=[16, 48])]))
        assert inner["qdata"].placements == inner["scale"].placements == (Shard(0, sizes=[16, 48]),)
        assert torch.equal(inner["qdata"].full_tensor(), weight.qdata)

    run_ranks(2, body)


def test_weights_of_a_class_take_no_gradient():
    """As on one device, where the class has none: the gradient goes to the input alone."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        weight = sw.distribute_tensor(quantised("Float8WeightOnlyConfig"), mesh, [Shard(0)])
        x = sw.distribute_tensor(torch.ones(4, 128), mesh, [Replicate()]).requires_grad_()
        F.linear(x, weight).sum().backward()
        assert x.grad is not None and weight.grad is None and not weight.requires_grad

    run_ranks(2, body)


def test_nf4_weights():
    nf4 = pytest.importorskip("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
    weight = nf4.to_nf4(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), 64, 16)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        whole = sw.distribute_tensor(weight, mesh, [Replicate()])
        x = sw.distribute_tensor(torch.ones(4, 64), mesh, [Shard(0)])
        assert whole.to_local() is weight
        torch.testing.assert_close(
            torch.mm(x, whole.t()).full_tensor(), torch.mm(torch.ones(4, 64), weight.get_original_weight().t())
        )
        rows = sw.distribute_tensor(weight, mesh, [Shard(0)])
        assert rows.to_local().shape == (32, 64)
        torch.testing.assert_close(
            rows.to_local().get_original_weight(), weight.get_original_weight()[32 * rank :][:32]
        )

        assert equal(whole.redistribute(placements=[Shard(0)]).to_local(), rows.to_local())
        with pytest.raises(NotImplementedError, match=r"a NF4Tensor has no aten.cat for these parts: it returns plain"):
            rows.full_tensor()

    run_ranks(2, body)


@pytest.mark.parametrize("part", ["optimizer", "float8_styles", "adapters_of_nf4"])
def test_training_on_processes(part, tmp_path):
    expect_all_well("torchao_program.py", 2, part, tmp_path, timeout=600)


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_a_quantised_model_generates_as_on_one_device(config):
    """The weights are quantised before they are sharded, so their scales are those of the whole weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 67, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    quantization.quantize_(dense.model.layers, getattr(quantization, config)())
    ids = torch.tensor([[5, 9, 61, 31], [3, 8, 40, 11]])
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    expected = dense.generate(ids, attention_mask=torch.ones_like(ids), **options)
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    plan = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in rows}

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = parallelize_module(copy.deepcopy(dense), mesh, plan)
        assert model.model.layers[0].self_attn.q_proj.weight.placements == (Shard(0),)
        result = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert torch.equal(result.sequences, expected.sequences)
        torch.testing.assert_close(torch.stack(result.logits), torch.stack(expected.logits))

    run_ranks(2, body)
