"""Plans that suggest() finds, beside plans that people publish, all by the same dry runs.

    python benchmarks/suggest.py [--layers 32] [--sequences 1]

Llama has the shapes of Llama-3-8B in transformers' model. transformers' plan is its tp_plan. Megatron-LM's differs from it outside of the blocks, where
it divides the rows of the embedding. The loss is the mean of the logits.
"""

import argparse
import time
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import shardwise as sw
from shardwise._suggest.layers import COLUMN, ROW, WHOLE
from shardwise._suggest.plans import Plan

N_RANKS = 8
LAYOUTS = {"colwise": COLUMN, "colwise_gather_output": COLUMN, "rowwise": ROW}


def llama(n_layers):
    config = LlamaConfig(
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        num_hidden_layers=n_layers,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config).bfloat16()


def published(model, kinds, **others):
    """transformers' plan on one dim, with `others` by layer."""
    given = {**model.config.base_model_tp_plan, **(type(model)._tp_plan or {})}
    by_layer = {pattern.split(".")[-1]: LAYOUTS.get(style, WHOLE) for pattern, style in given.items()} | others
    return Plan((("tp", N_RANKS),), tuple(by_layer.get(kind.names[0].split(".")[-1], WHOLE) for kind in kinds))


def row(name, plan, cost, least):
    if cost.failure:
        raise RuntimeError(f"{name}: {cost.failure}")
    figures = f"{cost.seconds * 1e3:,.1f} ms | {cost.seconds / least:.2f} | {cost.n_bytes / 2**30:.1f} GiB"
    print(f"| {name} | {plan} | {figures} |", flush=True)


def compare(model, n_sequences):
    ids = torch.zeros(n_sequences, 4096, dtype=torch.long)
    begin = time.process_time()
    found = sw.suggest(
        model, {"input_ids": ids}, ranks=N_RANKS, memory=80 * 10**9, loss=lambda result: result.logits.mean()
    )
    spent, meter = time.process_time() - begin, found.search.meter
    print(
        f"\n{n_sequences} x 4096 tokens; found in {spent:.0f} s of CPU time, of {len(found.search.weighed())} plans\n"
    )
    print("| Plan | Mesh | Step | Over the bound | Memory |\n|---|---|---|---|---|")
    row("suggest()", found.plan, meter.cost(found.plan), found.bound_seconds)
    plans = {
        "transformers' tp_plan": published(model, meter.subject.kinds),
        "Megatron-LM's": published(model, meter.subject.kinds, embed_tokens=ROW),
    }
    for name, plan in plans.items():
        row(name, plan, meter.cost(plan), found.bound_seconds)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--layers", type=int, default=32)
    arguments.add_argument("--sequences", type=int, default=1)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    compare(llama(options.layers), options.sequences)


if __name__ == "__main__":
    main()
