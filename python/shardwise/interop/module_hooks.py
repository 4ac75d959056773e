"""torch's modules: a forward pre-hook that is registered after distribute_module runs before the ranks compare arguments, too."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from shardwise.forward_scope import enters_last
from shardwise.interop.replacements import replace_methods


def teach(module: ModuleType) -> None:
    replace_methods(module, {"register_forward_pre_hook": _before_the_comparison})


def _before_the_comparison(original: Any) -> Any:
    @functools.wraps(original)
    def register(self: Any, *arguments: Any, **options: Any) -> Any:
        handle = original(self, *arguments, **options)
        enters_last(self)
        return handle

    return register
