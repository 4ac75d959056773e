"""A plan for a model: the mesh, the layouts of its layers, and the code that applies them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from shardwise._suggest.layers import STYLES, WHOLE, Blocks, Kind
from shardwise.parallel.api import _matches

REPLICATE, SHARD, TP = "replicate", "shard", "tp"  # mesh dims; the first two divide the batch


@dataclass(frozen=True)
class Plan:
    mesh: tuple[tuple[str, int], ...]  # outermost dims first
    layouts: tuple[str, ...]  # of each kind, over "tp"
    keeps: bool = False  # gathered parameters from the forward to the backward
    tables: str = ""  # options of the DistributedEmbedding, or no such layer

    def size(self, dim: str) -> int:
        return dict(self.mesh).get(dim, 1)

    @property
    def n_parts(self) -> int:
        """The number of parts of the batch."""
        return self.size(REPLICATE) * self.size(SHARD)

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.mesh) or "one rank"


@dataclass
class Subject:
    """A model on meta, and the parts of it that plans are about."""

    model: nn.Module
    kinds: Sequence[Kind]
    blocks: Sequence[Blocks]
    device_type: str
    gives_tensor: bool = True  # the model's result is one tensor
    lookups: Sequence[str] = ()  # paths of modules that a DistributedEmbedding may replace

    def code(self, plan: Plan, model: nn.Module | None = None) -> str:
        """The function that applies `plan` to the model, or to one with fewer blocks."""
        body = "\n".join(f"    {line}" for line in self._lines(plan, model or self.model))
        head = "import torch\nimport shardwise as sw\n" if "torch." in body else "import shardwise as sw\n"
        styles = ", ".join(sorted(set(re.findall(r"\b([A-Z]\w+(?:Parallel|Output))\(", body))))
        if styles:
            head += f"from shardwise import Replicate\nfrom shardwise.parallel import {styles}, parallelize_module\n"
        return f"{head}\n\ndef shard(model):\n{body}\n    return model\n"

    def _lines(self, plan: Plan, model: nn.Module) -> Iterator[str]:
        dims = dict(plan.mesh)
        if REPLICATE in dims and SHARD not in dims:  # fully_shard() replicates over the first of two dims
            dims = {REPLICATE: dims.pop(REPLICATE), SHARD: 1} | dims
        names = str(tuple(dims)).replace("'", '"')
        yield f'mesh = sw.init_device_mesh("{self.device_type}", {tuple(dims.values())}, mesh_dim_names={names})'
        for path in self.lookups if plan.tables else ():
            yield f"tables = [each for each in model.{path}.modules() if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag)]"
            yield f'model.{path} = sw.DistributedEmbedding(tables, mesh=mesh["{plan.mesh[0][0]}"], {plan.tables})'
        styles = [
            f'    "{name}": {STYLES[layout]},'
            for kind, layout in zip(self.kinds, plan.layouts)
            for name in kind.names
            if layout != WHOLE and _matches(model, name)
        ]
        if styles and self.gives_tensor:
            styles.append(
                '    "": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Replicate()),'
            )
        if styles:
            yield from (f'parallelize_module(model, mesh["{TP}"], {{', *styles, "})")
        if plan.n_parts > 1:
            data = ", ".join(f'"{name}"' for name in dims if name != TP)
            yield from self._data_lines(plan, f"mesh=mesh[{data}]")

    def _data_lines(self, plan: Plan, mesh: str) -> Iterator[str]:
        paths = list(dict.fromkeys(path for path, _ in self.blocks))
        options = mesh + ", reshard_after_forward=False" * plan.keeps
        for path in paths:
            yield f"for block in {expression(path)}:\n        sw.fully_shard(block, {options})"
        within = tuple(f"{path}.".lstrip(".") for path in (*paths, *(self.lookups if plan.tables else ())))
        for kind in self.kinds if paths else ():  # the large layers outside of blocks
            if len(kind.layouts) > 1 and not kind.names[0].startswith(within):
                yield f"sw.fully_shard({expression(kind.names[0])}, {options})"
        yield f"sw.fully_shard(model, {mesh})"


def expression(path: str) -> str:
    """The submodule `path` of `model`, in Python."""
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)
