"""Llama with 6 heads and 2 of keys, and GPT-2, on 4 ranks: they train, generate and are checkpointed as on one rank."""

import copy

import pytest
import torch
from torchrun import IMPORTED, expect_all_well

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.fsdp import fully_shard
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from shardwise.testing import run_ranks

pytest.importorskip("transformers")

from uneven_models_program import (
    IDS,
    MODELS,
    PLACEMENTS,
    distributed,
    expect_same,
    generated,
    language_loss,
    llama,
    trained,
    whole,
)

PROGRAM = "uneven_models_program.py"


def styles(*, q=None, o=None):
    """For any numbers of heads: attention computes with DTensors, because queries, keys and values stay some."""
    kept = ColwiseParallel(use_local_output=False)
    layers = {
        "self_attn.q_proj": q or kept,
        "self_attn.k_proj": kept,
        "self_attn.v_proj": kept,
        "self_attn.o_proj": o or RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        **{f"model.layers.*.{name}": style for name, style in layers.items()},
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }


def fully_sharded(model, mesh):
    for layer in model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def expect_as_dense(name, shard, shape=(4,)):
    """`shard(model, mesh)` returns the model, and the mesh dim along which ranks read different rows of the batch, if there is one."""
    dense = MODELS[name]()
    given = copy.deepcopy(dense)
    expected, ids = trained(dense), generated(dense)

    def check(rank):
        mesh = sw.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[-len(shape) :])
        model, rows = shard(copy.deepcopy(given), mesh)
        options = {}
        if rows is not None:
            own = IDS.chunk(rows.size())[rows.get_local_rank()]
            mean = lambda loss: sw.DTensor.from_local(whole(loss), rows, [Partial("avg")]).full_tensor()  # noqa: E731
            options = {"loss_of": language_loss(own), "whole_loss": mean}
        expect_same(trained(model, **options), expected)
        assert torch.equal(generated(model), ids)

    run_ranks(4, check)


@pytest.mark.parametrize("name", MODELS)
def test_by_distribute_module(name):
    expect_as_dense(name, lambda model, mesh: (distributed(model, mesh, PLACEMENTS[name]), None))


@pytest.mark.parametrize("name", MODELS)
def test_fully_sharded(name):
    expect_as_dense(name, lambda model, mesh: (fully_sharded(model, mesh), None))


WHOLE_HEADS = Shard(-1, sizes=[16, 16, 8, 8])


@pytest.mark.parametrize(
    "plan",
    [styles(), styles(q=ColwiseParallel(output_layouts=WHOLE_HEADS, use_local_output=False), o=RowwiseParallel(input_layouts=WHOLE_HEADS))],
    ids=["cut heads", "2, 2, 1 and 1 heads"],
)  # fmt: skip
def test_by_styles(plan):
    expect_as_dense("Llama", lambda model, mesh: (parallelize_module(model, mesh, plan), None))


def test_on_a_mesh_of_two_dims():
    def shard(model, mesh):
        model = parallelize_module(model, mesh["tp"], styles())
        return fully_sharded(model, mesh["dp"]), mesh["dp"]

    expect_as_dense("Llama", shard, (2, 2))


def test_local_attention_by_whole_heads():
    """As many heads of keys as of queries: attention then computes with this rank's heads as plain tensors, and sends nothing."""
    dense = llama(vocab_size=40, num_key_value_heads=6)
    ids = IDS % 40
    expected = dense(input_ids=ids).logits.detach()
    colwise, rowwise = ColwiseParallel(output_layouts=WHOLE_HEADS), RowwiseParallel(input_layouts=WHOLE_HEADS)
    plan = {f"model.layers.*.self_attn.{name}_proj": colwise for name in "qkv"}

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = parallelize_module(copy.deepcopy(dense), mesh, {**plan, "model.layers.*.self_attn.o_proj": rowwise})
        assert model.model.layers[0].self_attn.q_proj.weight.to_local().shape == ([16, 16, 8, 8][rank], 24)
        with sw.CommDebugMode() as comm:
            torch.testing.assert_close(model(input_ids=ids).logits, expected)
        assert comm.get_comm_counts() == {"all_reduce": 2}  # one per layer

    run_ranks(4, check)


def test_packed_queries_keys_and_values_stay_where_they_are():
    dense = MODELS["GPT-2"]()

    def check(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        model = distributed(copy.deepcopy(dense), mesh, PLACEMENTS["GPT-2"])
        with sw.CommDebugMode() as comm:
            model.transformer(input_ids=IDS)
        assert comm.get_comm_counts() == {"all_reduce": 5}  # rows of the table, and two sums per layer

    run_ranks(4, check)


def test_in_mixed_precision():
    dense = llama()
    given = copy.deepcopy(dense)

    def gradients(model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = language_loss()(model)
        loss.backward()
        return [whole(loss).float(), *(whole(each.grad) for each in model.parameters())]

    expected = gradients(dense)

    def check(rank):
        model = distributed(copy.deepcopy(given), sw.init_device_mesh("cpu", (4,)), PLACEMENTS["Llama"])
        for ours, theirs in zip(gradients(model), expected, strict=True):
            assert (ours - theirs).norm() <= 0.02 * theirs.norm()

    run_ranks(4, check)


def test_checkpoints(tmp_path):
    imported = (*IMPORTED, "transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2")
    expect_all_well(PROGRAM, 4, "save", tmp_path, imported=imported)
    expect_all_well(PROGRAM, 2, "load", tmp_path, imported=imported)
