"""The parameters of a DistributedEmbedding, by the names of their tables."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import cast

from torch import nn

# The attributes of every module, such as "training": no parameter can have such a name.
TAKEN = frozenset(vars(nn.Module()))


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for names that no parameter can have."""
    wrong = [name for name in names if "." in name or name in TAKEN]
    if wrong:
        raise ValueError(
            f"[DistributedEmbedding] tables cannot be called {wrong}: names in state dicts have no dots, and modules use these words. Give "
            "other names."
        )


class TableParameters(nn.Module):
    """A mapping of parameters, like nn.ParameterDict, but names may be those of methods: a table may be called "items"."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._parameters.update(parameters)

    def __getitem__(self, name: str) -> nn.Parameter:
        return cast("nn.Parameter", self._parameters[name])

    def __setitem__(self, name: str, parameter: nn.Parameter) -> None:
        self._parameters[name] = parameter

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def keys(self) -> KeysView[str]:
        return self._parameters.keys()

    def values(self) -> ValuesView[nn.Parameter]:
        return cast("ValuesView[nn.Parameter]", self._parameters.values())

    def items(self) -> ItemsView[str, nn.Parameter]:
        return cast("ItemsView[str, nn.Parameter]", self._parameters.items())
