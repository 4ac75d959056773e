"""Files of safetensors: load_model() for models with our tensors, and torch's checkpoints of such files."""

import os
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import nn

from shardwise.interop.accelerator import has_our_tensors


def load_model(
    original: Callable[..., tuple[list[str], list[str]]],
    model: nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
) -> tuple[list[str], list[str]]:
    """Has each rank read all values and take its part of them. Returns the missing and the unexpected names; raises RuntimeError for any if
    `strict`. A file has tied values once, and all tied tensors get them."""
    if not has_our_tensors(model):
        return original(model, filename, strict=strict, device=device)
    from safetensors.torch import load_file

    values = load_file(filename, device=device)
    named = list(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))
    names = {id(tensor): name for name, tensor in named if name in values}
    values |= {name: values[names[id(tensor)]] for name, tensor in named if name not in values and id(tensor) in names}
    keys = model.load_state_dict(values, strict=strict)
    return keys.missing_keys, keys.unexpected_keys


def prepare_local_plan(original: Any, self: Any, plan: Any) -> Any:
    """Makes HuggingFaceStorageWriter raise ValueError if this rank has several pieces of a tensor, of which a file would have one. torch raises the
    error on all ranks, before anything is written."""
    counts = Counter(item.index.fqn for item in plan.items if item.type.name == "SHARD")
    several = [f"{n} of {name}" for name, n in counts.items() if n > 1]
    if several:
        raise ValueError(
            f"[checkpoint] a safetensors file holds one piece per name, but this rank has {', '.join(several)}. Redistribute to Shard or "
            "Replicate before, or save with torch's or shardwise.checkpoint's FileSystemWriter."
        )
    return original(self, plan)
