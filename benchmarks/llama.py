"""A training step of an unmodified Llama, tensor-parallel: transformers' own tp_plan and Shardwise side by side.

    export PYTHONPATH=build/python                          # where Shardwise is built and not installed
    torchrun --nproc-per-node 4 benchmarks/llama.py         # about a minute; --explain lists Shardwise's communication

Four ranks over Gloo, float32, one thread each. Each side runs forward and backward of the same weights on the same ids:

- "transformers tp_plan": from_pretrained(..., tp_plan="auto"), on torch.distributed.tensor, with transformers' hooks;
- "shardwise": parameters sharded by a plan of names; the rest of the model is unchanged;
- "shardwise, declared": the same, and the styles of parallelize_module declare the layouts between layers.

A step starts behind a barrier and lasts until the slowest rank is done; sides take turns. Collectives and bytes received are rank 0's,
counted in one step. "work" is the number of multiply-adds of the busiest rank, divided by an even share.
"""

import argparse
import contextlib
import functools
import tempfile

import torch
import torch.distributed as dist
from comparison import aligned
from sides import machine_line
from torch.distributed.tensor.debug import CommDebugMode as TorchCommDebugMode
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.utils import logging
from turns import min_and_median, ms_in_turns

import shardwise as sw
from shardwise.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BY_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
BY_INPUTS = ("o_proj", "down_proj")
TARGET_TIME, TARGET_COLLECTIVES, TARGET_MB, TARGET_WORK = 0.75, 20, 16, 1.1
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
TP_PLAN, OURS, DECLARED = "transformers tp_plan", "shardwise", "shardwise, declared"


def matmul_work(call):
    """Floating-point operations of the matrix products that `call()` computes on this rank. A product of distributed tensors counts
    by those on pieces within it."""
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profile:
        call()

    def work(event):
        within = sum(map(work, event.cpu_children))
        return within or (event.flops or 0) * (event.name in PRODUCTS)

    return sum(work(event) for event in profile.events() if event.cpu_parent is None)


def config(options):
    return LlamaConfig(
        hidden_size=options.width,
        intermediate_size=options.width * 8 // 3 // 32 * 32,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=4096,
        max_position_embeddings=options.length,
        use_cache=False,
    )


def by_plan_of_names(name, module, mesh):
    """Shards parameters by the last part of their module's name, as a user would write it."""
    last = name.rsplit(".", 1)[-1]
    placement = {**dict.fromkeys((*BY_OUTPUTS, "embed_tokens"), sw.Shard(0)), **dict.fromkeys(BY_INPUTS, sw.Shard(1))}
    if last in placement:
        weight = sw.distribute_tensor(module.weight.detach(), mesh, [placement[last]])
        module.weight = torch.nn.Parameter(weight)


def type_of(folder):
    return LlamaForCausalLM if "with_head" in folder else LlamaModel


def unmodified(folder, mesh):
    return sw.distribute_module(type_of(folder).from_pretrained(folder), mesh, by_plan_of_names)


def declared(folder, mesh):
    model = type_of(folder).from_pretrained(folder)
    layer = "model.layers.*" if isinstance(model, LlamaForCausalLM) else "layers.*"
    layers = {f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    layers |= {f"{layer}.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    layers |= {f"{layer}.self_attn.o_proj": RowwiseParallel(), f"{layer}.mlp.down_proj": RowwiseParallel()}
    return parallelize_module(model, mesh, layers)


def tp_plan(folder, mesh):
    return type_of(folder).from_pretrained(folder, tp_plan="auto")


MAKERS = {TP_PLAN: tp_plan, OURS: unmodified, DECLARED: declared}


def step(model, ids):
    model.zero_grad(set_to_none=True)
    if isinstance(model, LlamaForCausalLM):
        loss = model(input_ids=ids, labels=ids).loss
    else:
        loss = model(input_ids=ids).last_hidden_state.pow(3).mean()
    loss.backward()
    return loss


def counted(side, model, ids):
    """Collectives, megabytes received (0 where torch does not say), and multiply-adds of the busiest rank."""
    with TorchCommDebugMode() if side == TP_PLAN else sw.CommDebugMode() as mode:
        step(model, ids)
    received = 0 if side == TP_PLAN else mode.bytes_received()
    flops = torch.tensor(matmul_work(lambda: step(model, ids)))
    dist.all_reduce(flops, op=dist.ReduceOp.MAX)
    return mode.get_total_counts(), received / 1e6, flops.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sides", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument(
        "--head", action="store_true", help="with the head and the loss of next tokens, not the layers alone"
    )
    parser.add_argument("--explain", action="store_true", help="list each message of Shardwise's step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    dist.init_process_group("gloo")
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    folder = [tempfile.mkdtemp(suffix="with_head" if options.head else "") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    torch.manual_seed(0)
    dense = (LlamaForCausalLM if options.head else LlamaModel)(config(options))
    if dist.get_rank() == 0:
        dense.save_pretrained(folder[0])
    dist.barrier()
    ids = torch.randint(4096, (options.batch, options.length), generator=torch.Generator().manual_seed(1))
    expected = step(dense, ids).item()
    whole = matmul_work(lambda: step(dense, ids))

    models = {side: MAKERS[side](folder[0], mesh) for side in options.sides}
    if options.explain:
        return explain(models[OURS], ids)
    for side, model in models.items():
        loss = step(model, ids)
        value = loss.full_tensor().item() if isinstance(loss, sw.DTensor) else loss.item()
        assert abs(value - expected) < 1e-3, f"{side} has loss {value}, dense {expected}"
    calls = {side: functools.partial(step, model, ids) for side, model in models.items()}
    ms = ms_in_turns(calls, options.repeats)
    report(options, models, ms, {side: counted(side, model, ids) for side, model in models.items()}, whole)
    dist.destroy_process_group()


def report(options, models, ms, counts, whole):
    if dist.get_rank() != 0:
        return
    print(machine_line())
    print(
        f"Llama, {options.layers} layers of width {options.width}, {options.batch} x {options.length} ids, 4 ranks, forward and backward"
    )
    rows = [("side", "min ms", "median ms", "/tp_plan", "/tp_plan", "collectives", "MB", "work")]
    for side in models:
        calls, megabytes, flops = counts[side]
        work = flops / (whole / dist.get_world_size())
        cells = min_and_median(ms[side], ms.get(TP_PLAN), 0)
        rows.append((side, *cells, str(calls), f"{megabytes:.1f}" if megabytes else "-", f"{work:.2f}"))
    print("\n".join(aligned(rows)))
    print(
        f"targets: {TARGET_TIME} of tp_plan's time, {TARGET_COLLECTIVES} collectives, {TARGET_MB} MB, work {TARGET_WORK}"
    )


def explain(model, ids):
    with contextlib.redirect_stdout(None):
        records = sw.explain(step, model, ids)
    if dist.get_rank() == 0:
        for record in records:
            if record.n_collectives:
                print(
                    record.n_collectives,
                    f"{record.bytes_received:>10,}",
                    record.op,
                    record.given,
                    "->",
                    record.used,
                    record.results,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
