"""Writes to lists of tensors on meta, which optimizers make: torch would go through each tensor in Python to find its new shape, the old one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

NAMES = ("add", "mul", "div", "lerp", "addcmul", "addcdiv")
OVERLOADS = ("Scalar", "List", "ScalarList")


@contextmanager
def lists_in_place() -> Iterator[None]:
    """A `with` block with short kernels for them."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in NAMES:
            packet = getattr(torch.ops.aten, f"_foreach_{name}")
            for overload in set(OVERLOADS) & set(packet.overloads()):
                library.impl(f"_foreach_{name}_.{overload}", partial(write, getattr(packet, overload)), "Meta")
        yield


def write(
    result_of: Callable[..., list[torch.Tensor]], written: list[torch.Tensor], *others: Any, **options: Any
) -> None:
    """Nothing, if all lists have the same shapes and one dtype of floats. Otherwise torch makes the result, and says what does not fit."""
    lists = [written, *(each for each in others if isinstance(each, list) and isinstance(each[0], torch.Tensor))]
    facts = [[(each.shape, each.dtype) for each in tensors] for tensors in lists]
    dtypes = {dtype for each in facts for _, dtype in each}
    if any(each != facts[0] for each in facts) or len(dtypes) > 1 or not written[0].is_floating_point():
        torch._foreach_copy_(written, result_of(written, *others, **options))
