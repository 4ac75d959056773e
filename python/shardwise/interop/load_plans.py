"""The error for a checkpoint of another model, which names every wrong entry before anything is read."""

from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from shardwise.dtensor import DTensor
from shardwise.interop.state_differences import facts, other_sizes
from shardwise.local_shards_wrapper import LocalShardsWrapper


def create_plan(original: Any, state_dict: dict[str, Any], metadata: Metadata, strict: bool = True) -> Any:
    """Compares the whole state dict with the checkpoint first. torch compares name by name, and its error has only the first missing name."""
    if any(isinstance(value, (DTensor, LocalShardsWrapper)) for value in state_dict.values()):
        check_names(state_dict, metadata, strict)
    return original(state_dict, metadata, strict)


def check_names(state_dict: dict[str, Any], metadata: Metadata, strict: bool = True) -> None:
    """Raises RuntimeError that names all entries of `state_dict` that the checkpoint lacks or has in another size.

    The error also names other entries of the checkpoint, but these alone are no error; neither are missing names if `strict` is False. The size of
    a LocalShardsWrapper is not compared: it knows only its own pieces.
    """
    saved = metadata.state_dict_metadata
    missing = [name for name in state_dict if name not in saved] if strict else []
    sizes = other_sizes(
        {name: entry.size for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)},
        {name: value.size() for name, value in state_dict.items() if isinstance(value, DTensor)},
    )
    if not missing and not sizes:
        return
    extra = [name for name in saved if name not in state_dict]
    raise RuntimeError(
        f"[checkpoint] the checkpoint is of another model; nothing has been loaded. {facts(missing, sizes, extra)} Rename the "
        "entries, or load a part with DefaultLoadPlanner(allow_partial_load=True)."
    )
