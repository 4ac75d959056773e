"""The tables of a DistributedEmbedding, and its parameters by their names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from torch import nn

from shardwise import _C
from shardwise._C import EmbeddingPlan, TableConfig
from shardwise.device_mesh import DeviceMesh

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


class TableParameters(nn.Module, Mapping[str, nn.Parameter]):
    """A mapping of parameters, like nn.ParameterDict, but names may be those of methods: a table may be called "items"."""

    __eq__, __hash__ = object.__eq__, object.__hash__

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


class EmbeddingTables(nn.Module):
    """The base of DistributedEmbedding: the facts that the other modules of this folder, which the layer imports, use."""

    configs: list[TableConfig]
    plan: EmbeddingPlan
    mesh: DeviceMesh
    tables: TableParameters
    _core: _C.DistributedEmbedding
    _n_samples = 0  # of the last lookup

    def _index_of(self, table: int | str, of: str = "there is no table") -> int:
        names = [config.name for config in self.configs]
        if isinstance(table, str) and table in names:
            return names.index(table)
        if isinstance(table, int) and 0 <= table < len(names):
            return table
        raise ValueError(f"[DistributedEmbedding] {of} {table!r}. There are {names}.")

    def _parameters_in_order(self) -> list[nn.Parameter]:
        return [self.tables[config.name] for config in self.configs]
