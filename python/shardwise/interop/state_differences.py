"""Errors that name every entry in which a state dict differs from the tensors that it is loaded into."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper


def create_plan(original: Any, state_dict: dict[str, Any], metadata: Any, strict: bool = True) -> Any:
    """Compares the whole state dict with the checkpoint first. torch compares name by name, and its error has only the first missing name.

    Raises RuntimeError that names all entries of `state_dict` that the checkpoint lacks or has in another size. It also names other entries of the
    checkpoint, but these alone are no error; neither are missing names if `strict` is False. The size of a LocalShardsWrapper is not compared: it
    knows only its own pieces.
    """
    if not any(isinstance(value, DTensor | LocalShardsWrapper) for value in state_dict.values()):
        return original(state_dict, metadata, strict)
    saved = metadata.state_dict_metadata
    missing = [name for name in state_dict if name not in saved] if strict else []
    sizes = other_sizes(
        {name: entry.size for name, entry in saved.items() if hasattr(entry, "size")},
        {name: value.size() for name, value in state_dict.items() if isinstance(value, DTensor)},
    )
    if missing or sizes:
        extra = [name for name in saved if name not in state_dict]
        raise RuntimeError(
            f"[checkpoint] the checkpoint is of another model; nothing has been loaded. {facts(missing, sizes, extra)} Rename the "
            "entries, or load a part with DefaultLoadPlanner(allow_partial_load=True)."
        )
    return original(state_dict, metadata, strict)


def other_sizes(there: Mapping[str, torch.Size], here: Mapping[str, torch.Size]) -> list[str]:
    """The names that both have with different sizes, each with the two sizes."""
    return [
        f"{name} is {list(there[name])} there and {list(size)} here"
        for name, size in here.items()
        if name in there and there[name] != size
    ]


def facts(missing: Sequence[str], sizes: Sequence[str], extra: Sequence[str]) -> str:
    """A sentence for each kind of difference, for an error."""
    kinds = (("It lacks", ", ", missing), ("Other sizes:", "; ", sizes), ("It has besides:", ", ", extra))
    return " ".join(f"{words} {separator.join(names)}." for words, separator, names in kinds if names)
