"""safetensors' load_model() for models with our tensors: each rank reads all values and takes its part of them."""

import os
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
    """Returns the missing and the unexpected names; raises RuntimeError for any if `strict`. A file has tied values once, and all tied tensors get
    them."""
    if not has_our_tensors(model):
        return original(model, filename, strict=strict, device=device)
    from safetensors.torch import load_file

    values = load_file(filename, device=device)
    named = list(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))
    names = {id(tensor): name for name, tensor in named if name in values}
    values |= {name: values[names[id(tensor)]] for name, tensor in named if name not in values and id(tensor) in names}
    keys = model.load_state_dict(values, strict=strict)
    return keys.missing_keys, keys.unexpected_keys
