"""Describes how a state dict differs from the tensors that it is loaded into."""

from collections.abc import Mapping, Sequence

import torch


def other_sizes(there: Mapping[str, torch.Size], here: Mapping[str, torch.Size]) -> list[str]:
    """The names that both have with different sizes, each with the two sizes."""
    return [
        f"{name} is {list(there[name])} there and {list(size)} here"
        for name, size in here.items()
        if name in there and there[name] != size
    ]


def facts(missing: Sequence[str], sizes: Sequence[str], extra: Sequence[str]) -> str:
    """A sentence for each kind of difference, for an error."""
    kinds = (("It lacks", ", ", missing), ("Other sizes:", "; ", sizes), ("It has besides:", ", ", extra))
    return " ".join(f"{words} {separator.join(names)}." for words, separator, names in kinds if names)
