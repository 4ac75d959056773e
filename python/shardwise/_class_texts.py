"""The __repr__ of the classes that C++ defines."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from shardwise import _C


def give_texts_a_hash() -> None:
    """Makes each class's __repr__ a function of Python's. pprint, with which torch.compile's log prints a graph's metadata, looks its printer up by the
    class's __repr__, and pybind11's kind of method has no hash."""
    for cls in vars(_C).values():
        if isinstance(cls, type) and "__repr__" in vars(cls) and vars(cls)["__repr__"].__hash__ is None:
            cls.__repr__ = _function(vars(cls)["__repr__"])  # type: ignore[assignment]


def _function(method: Callable[[Any], str]) -> Callable[[Any], str]:
    @wraps(method)
    def text(self: Any) -> str:
        return method(self)

    return text
