"""save_pretrained and the Trainer of transformers, for models with our tensors."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from shardwise.dtensor import DTensor
from shardwise.interop.state_dicts import full_state_dict


def teach(module: ModuleType) -> None:
    """Has all ranks take part in saving, as they do for models that transformers itself sharded."""
    for owner in list(vars(module).values()):
        if not isinstance(owner, type) or owner.__module__ != module.__name__:
            continue
        for method, replacement in _REPLACEMENTS.items():
            if method in vars(owner):
                setattr(owner, method, replacement(vars(owner)[method]))


def _gathering(original: Any) -> Any:
    """In save_pretrained, which all ranks call: full values on the rank that saves."""

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


def _staying(original: Any) -> Any:
    """In Trainer._save: ranks that save nothing would leave before save_pretrained, and the first one would wait for them."""

    @functools.wraps(original)
    def save(self: Any, *arguments: Any, **options: Any) -> Any:
        before = self.is_distributed_loading_by_transformers
        if any(isinstance(parameter, DTensor) for parameter in self.model.parameters()):
            self.is_distributed_loading_by_transformers = True
        try:
            return original(self, *arguments, **options)
        finally:
            self.is_distributed_loading_by_transformers = before

    return save


_REPLACEMENTS = {"gather_sharded_state_dict_for_save": _gathering, "_save": _staying}
