"""save_pretrained of transformers, for models with our tensors."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from shardwise.dtensor import DTensor
from shardwise.interop.state_dicts import full_state_dict


def teach(module: ModuleType) -> None:
    """Has save_pretrained, which all ranks call, gather our tensors as it gathers those that it sharded itself."""
    for model_class in vars(module).values():
        original = vars(model_class).get(_GATHER) if isinstance(model_class, type) else None
        if original is not None:
            setattr(model_class, _GATHER, _gathering(original))


_GATHER = "gather_sharded_state_dict_for_save"


def _gathering(original: Any) -> Any:
    @functools.wraps(original)
    def gather(
        self: Any,
        model_to_save: Any,
        state_dict: dict[str, Any],
        *arguments: Any,
        save_on_this_rank: bool = True,
        **options: Any,
    ) -> Any:
        if not any(isinstance(value, DTensor) for value in state_dict.values()):
            return original(self, model_to_save, state_dict, *arguments, save_on_this_rank=save_on_this_rank, **options)
        full = full_state_dict(state_dict, cpu_offload=True, keep=save_on_this_rank)
        return full if save_on_this_rank else {}

    return gather
