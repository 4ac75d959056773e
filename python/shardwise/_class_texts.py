"""The __repr__ of the classes that C++ defines."""

from functools import partialmethod

from shardwise import _C


def give_texts_a_hash() -> None:
    """Makes each class's __repr__ one that has a hash. pprint, with which torch.compile's log prints a graph's metadata, looks its printer up by the
    class's __repr__, and pybind11's kind of method has none."""
    for cls in vars(_C).values():
        text = vars(cls).get("__repr__") if isinstance(cls, type) else None
        if text is not None and text.__hash__ is None:
            cls.__repr__ = partialmethod(text)
