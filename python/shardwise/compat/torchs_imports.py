"""Gives torch's own names to modules of torch that are imported while Shardwise's names are installed."""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Literal

from shardwise.compat.earlier_bindings import is_torchs
from shardwise.interop.when_imported import Action, AroundImports


class TorchsImports(AroundImports):
    """`put("theirs")` is called before the code of a module of torch runs, `put("ours")` after it."""

    def __init__(self, put: Callable[[Literal["ours", "theirs"]], None]) -> None:
        super().__init__()
        self._put = put
        self._lock = threading.RLock()
        self._depth = 0

    def concerns(self, name: str) -> bool:
        return is_torchs(name)

    def execute(self, code: Action, module: ModuleType) -> None:
        self._count(1, "theirs")
        try:
            code(module)
        finally:
            self._count(-1, "ours")

    def _count(self, change: int, kind: Literal["ours", "theirs"]) -> None:
        """Counts the modules that are being imported, and puts the names there when the first begins or the last ends."""
        with self._lock:
            self._depth += change
            if self._depth == (1 if change > 0 else 0):
                self._put(kind)
