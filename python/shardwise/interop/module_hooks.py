"""torch's modules: a forward pre-hook that is registered after distribute_module runs before the ranks compare arguments, too; and what
`module.to()` and `remove_parametrizations()` make of a DTensor becomes its data, as of a plain tensor.

torch would exchange the two objects, for DTensors can be traced. That fails where anybody else has the parameter, as groups of
fully_shard() and layers in C++ do.
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
