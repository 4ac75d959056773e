"""Takes an object of a tensor class apart into the plain tensors that its `__tensor_flatten__` names, and builds one from other tensors."""

import pickle
from collections.abc import Iterator
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
TRACERS = ("torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor")


def flatten(tensor: Any) -> tuple[list[str], list[torch.Tensor], bytes]:
    """The names of the plain tensors ("qdata", or "inner.qdata" for an object within the object), these tensors, and a recipe: everything else
    that unflatten() needs. Raises AttributeError for a class without `__tensor_flatten__`."""
    own_names, context = tensor.__tensor_flatten__()
    names: list[str] = []
    plain: list[torch.Tensor] = []
    entries: list[tuple[str, Any]] = []
    for name in own_names:
        inner = getattr(tensor, name)
        if type(inner) in PLAIN:
            names.append(name)
            plain.append(inner.detach())
            entries.append((name, None))
            continue
        inner_names, inner_plain, recipe = flatten(inner)
        names += [f"{name}.{each}" for each in inner_names]
        plain += inner_plain
        entries.append((name, (type(inner), tuple(inner.shape), inner.stride(), recipe)))
    try:
        return names, plain, pickle.dumps((context, entries))
    except Exception as error:
        raise TypeError(
            f"the context of {type(tensor).__name__}.__tensor_flatten__ cannot be pickled: {error}. Return a context of "
            "numbers, strings and other values that pickle takes."
        ) from error


def contexts(tensor: Any) -> Any:
    """The context that `__tensor_flatten__` returns, with those of objects within the object by their names."""
    names, context = tensor.__tensor_flatten__()
    inner = {name: contexts(getattr(tensor, name)) for name in names if type(getattr(tensor, name)) not in PLAIN}
    return (context, inner) if inner else context


def unflatten(like: Any, recipe: bytes, plain: list[torch.Tensor], size: list[int], stride: list[int]) -> torch.Tensor:
    """Builds an object of the class of `like` from a recipe of that class."""
    return _unflatten(type(like), recipe, iter(plain), tuple(size), tuple(stride))


def _unflatten(
    cls: Any, recipe: bytes, plain: Iterator[torch.Tensor], size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    context, entries = pickle.loads(recipe)
    inner = {}
    for name, nested in entries:
        if nested is None:
            inner[name] = next(plain)
        else:
            inner_cls, inner_size, inner_stride, inner_recipe = nested
            inner[name] = _unflatten(inner_cls, inner_recipe, plain, inner_size, inner_stride)
    made: torch.Tensor = cls.__tensor_unflatten__(inner, context, torch.Size(size), stride)
    return made


def have_same_context(recipe: bytes, other: bytes) -> bool:
    """Whether two recipes have equal contexts, or equal bytes where contexts cannot be compared, as those with tensors."""
    try:
        return bool(pickle.loads(recipe) == pickle.loads(other))
    except Exception:
        return recipe == other


def says_places(tensor: Any) -> bool:
    """Whether the class holds local shards, such as TorchRec's, whose sizes differ between ranks."""
    return hasattr(tensor, "shard_offsets") or hasattr(tensor, "local_offsets")


def holds_traced(tensor: Any) -> bool:
    """Whether a tracer made any of the plain tensors in the object."""
    try:
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    except Exception:  # a class that cannot be taken apart is not traced
        return False
    return any(type(each).__module__ in TRACERS or (type(each) not in PLAIN and holds_traced(each)) for each in inner)
