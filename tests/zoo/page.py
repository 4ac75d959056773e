"""The page of the zoo's results, docs/model_zoo.md."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from known import EQUAL, NO_PLAN, expected_failure

HEAD = """# Which models of transformers run

This page is written by `tests/zoo/zoo.py --page docs/model_zoo.md`. Do not edit it.

For each architecture of transformers {transformers}, `tests/zoo/tiny.py` makes a config by rules: two layers, 32 features, 4 heads, 67 ids.
The model of that config gets random weights, and is not changed. {n_models} of {n_architectures} architectures give a loss with such a config.
Each of these models is sharded in four ways. In each way the loss and all gradients are compared with those of one process
(torch {torch}, CPU, float32).

- **sharded**: `distribute_module` shards every parameter over 3 ranks: the n-th parameter along its dim n modulo its number of dims. Most
  shards are uneven, heads are cut, and convolutions are sharded along any of their dims.
- **fully_shard**: `fully_shard` of every layer and of the model, on 2 ranks.
- **tp_plan**: `from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))` under `shardwise.compat`: the plan that transformers
  has for the model. "-" says that it has none.
- **ep_plan**: the same with `ep_size=2`: the plan shares out the experts of a layer, and shards the other layers as the plan before.

{sums}

Image and audio models get pictures or sounds. Models of pictures and text get text alone, except the CLIP family.

| model_type | class | sharded | fully_shard | tp_plan | ep_plan |
|---|---|---|---|---|---|
"""
NOT_RUN = "not run"
WAYS = ("sharded", "fully_shard", "tp_plan", "ep_plan")
WORDS = {EQUAL: "equal", NO_PLAN: "-", NOT_RUN: NOT_RUN}


def write(results: Sequence[Any], file: Path) -> None:
    """Writes the table of `results`, the expected failures with their reasons, and the names of what is left out."""
    judged = sorted((result for result in results if result.outcomes), key=lambda result: result.architecture.name)
    left_out = sorted(result.architecture.name for result in results if result.left_out)
    rows, notes = [], {}
    for result in judged:
        name, cells = result.architecture.name, []
        for way in WAYS:
            text = result.outcomes.get(way, NOT_RUN)
            if text not in WORDS:
                reason = expected_failure(name, way) or "not expected"
                notes.setdefault(reason, {})[name] = True  # once, if it fails in two ways
            cells.append(WORDS.get(text, "fails"))
        rows.append(f"| {name} | {result.architecture.class_name} | {' | '.join(cells)} |\n")
    head = HEAD.format(
        transformers=version("transformers"),
        torch=version("torch").partition("+")[0],
        n_models=len(judged),
        n_architectures=len(results),
        sums=sums_of(judged),
    )
    parts = [head, *rows]
    if notes:
        parts.append("\n## Failures\n\n")
        parts += [f"- {', '.join(names)}: {reason}.\n" for reason, names in notes.items()]
    parts.append("\n## Architectures that are left out\n\nThe rules make no tiny model of these that gives a loss:\n")
    parts.append(f"{', '.join(left_out)}.\n")
    file.write_text("".join(parts))


def sums_of(judged: Sequence[Any]) -> str:
    equal = {way: sum(result.outcomes.get(way) == EQUAL for result in judged) for way in WAYS}
    run = {way: sum(result.outcomes.get(way, NO_PLAN) != NO_PLAN for result in judged) for way in WAYS}
    late = sum(any(way not in result.outcomes for way in WAYS) for result in judged)
    return (
        f"Loss and gradients are equal for {equal['sharded']} of {run['sharded']} models that are sharded, for {equal['fully_shard']} of "
        f"{run['fully_shard']} under fully_shard,\nfor {equal['tp_plan']} of {run['tp_plan']} plans, and for {equal['ep_plan']} of "
        f"{run['ep_plan']} plans for experts." + (f" {late} models have not been run in all ways yet." if late else "")
    )
