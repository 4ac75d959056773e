"""Replacements in torch's modules: forward pre-hooks registered after distribute_module() also run before the ranks compare arguments, and
`module.to()` and `remove_parametrizations()` set the data of a DTensor, as of a plain tensor.

By itself, torch would swap the two objects, because DTensors can be traced. That fails if others have the parameter, as groups of fully_shard()
and C++ layers do.
"""

from typing import Any

from shardwise.dtensor import DTensor
from shardwise.forward_scope import enters_last


def _must_be_exchanged(original: Any, tensor: Any) -> bool:
    return not isinstance(tensor, DTensor) and original(tensor)


def register_forward_pre_hook(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    handle = original(self, *arguments, **options)
    enters_last(self)
    return handle
