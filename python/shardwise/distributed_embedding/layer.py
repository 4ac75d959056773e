"""DistributedEmbedding: the layer, its parameters and its lookups, one after the other or with the next ids sent ahead."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise._C import EmbeddingPlan, TableConfig
from shardwise.device_mesh import DeviceMesh, mesh_or_world
from shardwise.distributed_embedding import report, weights
from shardwise.distributed_embedding.inputs import Parts, in_order, is_keyed, n_samples, parts_of
from shardwise.distributed_embedding.report import HotRow, RowCounts
from shardwise.distributed_embedding.table_parameters import (
    EmbeddingTables,
    FileStorage,
    TableParameters,
    by_index,
    check_names,
)
from shardwise.dtensor import DTensor, distribute_tensor
from shardwise.interop.state_dicts import facts, other_sizes, take_plain_values


class EmbeddingLookup:
    """A lookup that DistributedEmbedding.start() began. It uses the parameters and fused optimizers that the layer had at that call. If
    nothing has requested its rows before, the next start() does. So if one rank drops a lookup, no other rank waits for it in a forward.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> lookup = layer.start([torch.tensor([3, 4])])  # ids travel
    >>> dense = torch.ones(2, 8)  # computed meanwhile
    >>> (user,) = lookup.wait()  # rows travel
    >>> (user + dense).shape
    torch.Size([2, 8])
    """

    def __init__(self, layer: DistributedEmbedding, inputs: Any) -> None:
        self._layer = layer
        self._concatenates = layer.concatenate
        self._names = list(layer.feature_names) if isinstance(inputs, Mapping) or is_keyed(inputs) else None
        self._nested: dict[int, torch.Tensor] = {}
        parts: list[Parts | None] = []
        tables: list[nn.Parameter] = []
        error = None
        try:
            tables = layer._parameters_in_order()
            for index, value in enumerate(in_order(inputs, layer.feature_names)):
                parts.append(parts_of(value, layer.feature_names[index]))
                if isinstance(value, torch.Tensor) and value.is_nested and layer.combiners[index] == "none":
                    self._nested[index] = value
        except Exception as wrong:
            error = (type(wrong).__name__, str(wrong))  # the other ranks get it with the ids
        self._lookup = layer._core.start([] if error else parts, tables, error)
        self._counted = parts if layer._counts is not None else []
        layer._n_samples = 0 if error else n_samples(parts)

    def fetch(self) -> EmbeddingLookup:
        """Requests the rows with their present values, after the ids have arrived. Collective. wait() or the layer's next start() calls it if the
        program has not."""
        self._lookup.fetch()
        return self

    def wait(self) -> torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]:
        """The vectors of this rank's samples: a list in the order of the inputs; a dict by feature if the inputs were a dict; one tensor if
        the layer has `concatenate=True`."""
        vectors = self._lookup.wait()
        self._layer._count(self._counted)
        self._counted = []
        if self._concatenates:
            return vectors[0]
        for index, ids in self._nested.items():
            vectors[index] = nested_like(ids, vectors[index])
        return vectors if self._names is None else dict(zip(self._names, vectors, strict=True))


def nested_like(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows of the ids of a nested tensor, nested like the ids."""
    lengths = ids.lengths()  # type: ignore[attr-defined]
    if lengths is None:
        return torch.nested.nested_tensor_from_jagged(rows, offsets=ids.offsets())  # type: ignore[attr-defined]
    return torch.nested.nested_tensor_from_jagged(rows, offsets=nn.functional.pad(lengths.cumsum(0), (1, 0)))


class DistributedEmbedding(EmbeddingTables):
    """Embedding tables that a plan places on ranks. A lookup in all of them takes two exchanges, whatever the number of tables.

        tables = [sw.TableConfig("user", 1_000_000, 64), sw.TableConfig("item", 50_000, 64, combiner="mean")]
        layer = sw.DistributedEmbedding(tables, strategy="memory_balanced", row_slice_threshold=10_000_000)
        user, item = layer([user_ids, item_ids])      # each rank gives its own samples' ids and gets their vectors
        (loss(user, item)).backward()                 # one exchange: each row's gradient goes to its owner

    - `tables`: TableConfigs, or nn.Embedding and nn.EmbeddingBag modules, whose values on rank 0 are used. The values for TableConfigs are
      drawn from N(0, 1), as nn.Embedding does, and are the same on any number of ranks.
    - `mesh`: 1-D; default: all ranks, on CPUs.
    - `plan`: an EmbeddingPlan; by default plan_embeddings() makes it from `strategy` and the other options.
    - `input_table_map`: the table of each input, by index or name; by default one input per table, in the order of the tables. A table may have
      several inputs.
    - `input_names`: the names of the inputs; by default those of their tables, with a number if a table has several inputs.
    - `dp_input`: if True, each rank gives the ids of its own samples. If False, a rank gives the ids of all samples for each table of which
      it has columns, the ids of its own samples for replicated tables, and None for other tables. The samples are ordered by rank, with the
      same number per rank; if the number of samples is not a multiple of the number of ranks, the first ranks have one more.
    - `concatenate`: the result is one tensor [samples, columns of all inputs], in the order of the inputs, without the copy that torch.cat
      makes.
    - `gradients`: "mean": the gradients of tables are of the mean of all ranks' losses, as DistributedDataParallel computes them for the
      dense part. "sum": they are of the sum of the losses.
    - `sparse`: gradients of tables are sparse DTensors, for SparseAdam, SGD and Adagrad. Fused optimizers (shardwise.optim) use the gradients row
      by row and store none.
    - `storage`: FileStorage(folder, cache_rows=...) for tables beyond memory, by index or name. Their rows, and the state of fused
      optimizers, are in files; the most frequently used rows are in memory, too. Results are the same. Lookups, state_dict(), get_weights()
      and pieces() read current values; call flush() before you read such a parameter in another way.

    Inputs: a list in the order of the inputs, a dict by name, or a KeyedJaggedTensor. The ids of an input are [samples], [samples, ids per
    sample], (ids, offsets), RaggedIds, or a jagged nested tensor. Batches may differ between ranks. Results: [samples, columns], combined as
    the table's config says, or [ids..., columns] with combiner "none". A weighted mean divides by the number of ids.

    Parameters are DTensors, `tables.<name>`, in the layer's own memory.

    Collective, and so is the backward: every rank must call it, also a rank without samples. Cost of a step: two exchanges in the forward and
    one in the backward, in which each row that a rank's ids name is sent once. If a pair of ranks asks for many more rows than before, it
    sends one more message.
    Raises, on all ranks and before any row is sent: IndexError, naming feature and id, for an id out of range; TypeError and ValueError for
    other mistakes in any rank's inputs.

    >>> tables = [sw.TableConfig("user", 1000, 8), sw.TableConfig("item", 50, 8, combiner="mean")]
    >>> layer = sw.DistributedEmbedding(tables)
    >>> user, item = layer([torch.tensor([3, 4]), torch.tensor([[1, 2], [0, 7]])])  # ids of this rank's two samples
    >>> user.shape, item.shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    >>> layer.tables["user"].shape
    torch.Size([1000, 8])
    """

    reduces_gradients = True  # DistributedDataParallel leaves out the parameters of such a module

    def __init__(
        self,
        tables: Sequence[TableConfig | nn.Embedding | nn.EmbeddingBag],
        *,
        mesh: DeviceMesh | None = None,
        plan: EmbeddingPlan | None = None,
        input_table_map: Sequence[int | str] | None = None,
        input_names: Sequence[str] | None = None,
        dp_input: bool = True,
        concatenate: bool = False,
        gradients: str = "mean",
        sparse: bool = False,
        storage: Mapping[int | str, FileStorage] | None = None,
        **plan_options: Any,
    ) -> None:
        super().__init__()
        if gradients not in ("mean", "sum"):
            raise ValueError(f'[DistributedEmbedding] gradients are "{gradients}". Use "mean" or "sum".')
        self.mesh = mesh_or_world(mesh, "cpu")
        self.configs = [
            table if isinstance(table, TableConfig) else config_of(table, i) for i, table in enumerate(tables)
        ]
        if plan is None:
            plan = _C.plan_embeddings(self.configs, self.mesh.size(), **plan_options)
        elif plan_options:
            raise TypeError(
                f"[DistributedEmbedding] got a plan and also the plan options {sorted(plan_options)}. Plan with these options, or leave "
                "them out."
            )
        check_plan(plan, self.configs, self.mesh.size())
        self.plan = plan
        names = [config.name for config in self.configs]
        check_names(names)
        every = range(len(names)) if input_table_map is None else input_table_map
        inputs = [self._index_of(table, "input_table_map names table") for table in every]
        self.feature_names = feature_names(names, inputs) if input_names is None else list(input_names)
        if len(self.feature_names) != len(inputs) or len(set(self.feature_names)) != len(inputs):
            raise ValueError(
                f"[DistributedEmbedding] input_names are {self.feature_names} for {len(inputs)} inputs. Give each input its own name."
            )
        self.concatenate = concatenate
        self.combiners = [self.configs[table].combiner for table in inputs]
        self._tables_of_inputs = list(inputs)
        self._dp_input = dp_input
        self._counts: RowCounts | None = None  # the counts of the rows that ids name, if they are counted
        features = list(zip(self.feature_names, inputs, self.combiners, strict=True))
        storage = {} if storage is None else storage
        storages = by_index(storage, [self._index_of(table, "storage names table") for table in storage])
        self._tables_in_files = [names[index] for index in storages]
        self._features_and_options = (features, gradients == "mean", sparse, dp_input, concatenate)
        self._core = self._new_core(storages)
        self.tables = TableParameters(
            {name: nn.Parameter(table) for name, table in zip(names, self._core.tables(), strict=True)}
        )
        take_plain_values(self)
        self.register_load_state_dict_pre_hook(check_state_dict)
        self.reset_parameters()
        for parameter, table in zip(self._parameters_in_order(), tables, strict=True):
            if isinstance(table, nn.Embedding | nn.EmbeddingBag):
                take_values(parameter, table)

    def _new_core(self, storages: Mapping[int, Any]) -> _C.DistributedEmbedding:
        return _C.DistributedEmbedding(
            self.configs, self.plan.table_plans, self.mesh, *self._features_and_options, storages
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedEmbedding:
        """A layer with its own tables, by the same plan on the same ranks. Fused optimizers stay with the tables of the original. Sends nothing."""
        if self._tables_in_files:
            raise NotImplementedError(
                f"[DistributedEmbedding] tables {self._tables_in_files} lie in files, which a copy cannot share. Make a layer with "
                "storage of its own, and load this one's state_dict()."
            )
        core = self._new_core({})
        memo |= {id(self._core): core, id(self.mesh): self.mesh} | {id(config): config for config in self.configs}
        for parameter, table in zip(self._parameters_in_order(), core.tables(), strict=True):
            with torch.no_grad():
                table.copy_(parameter)
            memo[id(parameter)] = copied = nn.Parameter(table, parameter.requires_grad)
            copied.grad = copy.deepcopy(parameter.grad, memo)
        result = memo[id(self)] = type(self).__new__(type(self))
        result.__setstate__(copy.deepcopy(self.__dict__, memo))
        return result

    def forward(self, inputs: Any) -> Any:
        return self.start(inputs).wait()

    def start(self, inputs: Any) -> EmbeddingLookup:
        """Sends the ids and returns at once: compute what needs no vectors, then call the lookup's wait()."""
        return EmbeddingLookup(self, inputs)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all values from N(0, 1), as nn.Embedding does."""
        for parameter in self._parameters_in_order():
            parameter.normal_()

    def pieces(self, table: int | str) -> list[tuple[torch.Tensor, slice, slice]]:
        """This rank's parts of a table as (values, rows, columns): a view of the layer's memory, and two slices of the table."""
        return self._core.pieces(self._index_of(table))

    def flush(self) -> None:
        """For tables in files: writes changed rows from memory to the files, so that the parameters have their values. Sends nothing."""
        self._core.flush()

    cache_counts = report.cache_counts
    get_weights = weights.get_weights
    save_weights = weights.save_weights
    export_safetensors = weights.export_safetensors
    set_weights = weights.set_weights

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch. The values are DTensors of any layout, or plain tensors that are equal on all ranks. One error names all entries that are
        missing, unexpected or of another shape, before anything is loaded. assign=True is an error: lookups read the layer's own memory."""
        if assign:
            raise ValueError(
                "[DistributedEmbedding.load_state_dict] assign=True would leave the layer's memory. Leave it out."
            )
        check_state_dict(self, state_dict, "", by_name=strict)
        return super().load_state_dict(state_dict, strict)

    explain = report.explain
    memory_report = report.memory_report

    def count_rows(self, capacity: int | None = 100_000) -> None:
        """Starts to count, from 0, which rows lookups ask for; count_rows(None) stops. Counting is off at first.

        capacity: the most rows that are counted per table and rank, 16 bytes each. Counts are exact as long as ids name no more rows. After that
        they are too low, by at most (the table's ids) / capacity. Cost: a sort of each batch's ids. Sends nothing.
        """
        # Without dp_input, several ranks have the same ids: the rank with the first column counts them.
        owned = [
            self._dp_input or any(columns.start == 0 and len(values) > 0 for values, _, columns in self.pieces(table))
            for table in range(len(self.configs))
        ]
        self._counts = None if capacity is None else RowCounts(len(self.configs), capacity, owned)

    def hot_rows(self, table: int | str, n: int = 10) -> list[HotRow]:
        """The `n` rows of a table that all ranks' ids named most often since count_rows(), most frequent first.

        Collective; every rank gets the same rows. Cost: every rank receives the counts of all ranks. Raises RuntimeError if counting is off.
        """
        if self._counts is None:
            raise RuntimeError("[hot_rows] no rows are counted. Call count_rows() first, on all ranks.")
        return self._counts.hottest(self._index_of(table), n, self.mesh)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DistributedEmbedding:
        """For Module.to(), half() and similar: raises NotImplementedError if they would change dtype or device."""
        for name, parameter in self.tables.items():
            probe = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            moved = fn(probe)
            if (moved.dtype, moved.device) != (probe.dtype, probe.device):
                raise NotImplementedError(
                    f"[DistributedEmbedding] table {name} cannot go from {probe.dtype} on {probe.device} to {moved.dtype} on "
                    f"{moved.device}: it lies in the layer's memory. Make a layer of tables with that dtype, on a mesh of that "
                    "device, and set_weights() of it."
                )
        return self

    def extra_repr(self) -> str:
        return f"{len(self.configs)} tables, {len(self.feature_names)} inputs, {self.mesh.size()} ranks"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()  # torch then saves the submodule that has the parameters
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _count(self, parts: Sequence[Parts | None]) -> None:
        for table, part in zip(self._tables_of_inputs, parts, strict=False):  # no parts if counting began later
            if self._counts is not None and part is not None:
                self._counts.add(table, part[0])


def check_plan(plan: EmbeddingPlan, configs: Sequence[TableConfig], n_ranks: int) -> None:
    """Raises ValueError for a plan of other tables or of another number of ranks."""
    if plan.n_ranks != n_ranks:
        raise ValueError(
            f"[DistributedEmbedding] the plan is for {plan.n_ranks} ranks, but the mesh has {n_ranks}. Plan for this mesh."
        )

    def shown(tables: Sequence[TableConfig]) -> list[str]:
        return [f"{table.name} [{table.n_rows}, {table.n_columns}] {table.dtype}" for table in tables]

    planned, given = shown(plan.tables), shown(configs)
    if planned != given:
        differing = (pair for pair in zip(planned, given, strict=False) if pair[0] != pair[1])
        first = next(differing, (len(planned), len(given)))
        raise ValueError(
            f"[DistributedEmbedding] the plan is for other tables: it has {first[0]} where the layer has {first[1]}. Plan the layer's "
            "tables, in their order."
        )


def config_of(module: nn.Module, index: int) -> TableConfig:
    """The config of an nn.Embedding or nn.EmbeddingBag, named "table_<index>"."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        raise TypeError(
            f"[DistributedEmbedding] table {index} is a {type(module).__name__}. Give TableConfig, nn.Embedding or nn.EmbeddingBag."
        )
    wanted = {name: getattr(module, name) for name in ("max_norm", "padding_idx") if getattr(module, name) is not None}
    wanted |= {name: True for name in ("scale_grad_by_freq",) if getattr(module, name)}
    if wanted:
        raise ValueError(
            f"[DistributedEmbedding] table {index} has {wanted}, which the layer does not support. Use F.embedding for it."
        )
    return TableConfig(
        f"table_{index}",
        module.num_embeddings,
        module.embedding_dim,
        dtype=str(module.weight.dtype).removeprefix("torch."),
        combiner=module.mode if isinstance(module, nn.EmbeddingBag) else "none",
    )


@torch.no_grad()
def take_values(parameter: torch.Tensor, module: nn.Embedding | nn.EmbeddingBag) -> None:
    assert isinstance(parameter, DTensor)
    weight: torch.Tensor = module.weight
    if not isinstance(weight, DTensor):
        weight = distribute_tensor(weight.detach(), parameter.device_mesh, parameter.placements)
    parameter.copy_(weight)


def check_state_dict(
    layer: DistributedEmbedding, state_dict: Mapping[str, Any], prefix: str, *others: Any, by_name: bool = False
) -> None:
    """Raises RuntimeError that names every wrong shape and, if `by_name`, all missing and all unexpected names. It is also a hook of load_state_dict(),
    which runs for modules around the layer before any table is written."""
    own = {f"{prefix}tables.{name}": table for name, table in layer.tables.items()}
    missing = [name for name in own if name not in state_dict] if by_name else []
    extra = [name for name in state_dict if name not in own] if by_name else []
    sizes = other_sizes(
        {name: state_dict[name].shape for name in own if name in state_dict},
        {name: table.shape for name, table in own.items()},
    )
    if missing or extra or sizes:
        raise RuntimeError(
            f"[DistributedEmbedding.load_state_dict] the state dict is of other tables; none has been loaded. {facts(missing, sizes, extra)} "
            "Rename the entries, or use strict=False for those that fit."
        )


def feature_names(tables: Sequence[str], inputs: Sequence[int]) -> list[str]:
    """The name of each input: its table's name, with a number if the table has several inputs."""
    counts, seen = Counter(inputs), Counter[int]()
    names = []
    for table in inputs:
        names.append(f"{tables[table]}_{seen[table]}" if counts[table] > 1 else tables[table])
        seen[table] += 1
    return names


class EmbeddingPipeline:
    """Iterates over batches and their vectors. The ids of the next batch are sent while the program computes with the current one.

        for batch, vectors in sw.EmbeddingPipeline(layer, loader, lambda batch: batch["ids"]):
            loss = model(batch, vectors)
            loss.backward()
            optimizer.step()

    batches: the same number on every rank; a rank with fewer leaves the others waiting. ids_of: returns a batch's inputs for the layer.
    Each batch gets the rows as they are after the step before it, because only ids are sent ahead. Cost: the ids of one more batch in memory.

    >>> layer = sw.DistributedEmbedding([sw.TableConfig("user", 1000, 8)])
    >>> optimizer = sw.optim.FusedSGD(layer.parameters(), lr=0.1)
    >>> batches = [torch.tensor([1, 2]), torch.tensor([2, 3])]
    >>> for ids, (user,) in sw.EmbeddingPipeline(layer, batches, lambda ids: [ids]):
    ...     user.sum().backward()  # the next batch's ids are on their way
    """

    def __init__(self, layer: DistributedEmbedding, batches: Iterable[Any], ids_of: Callable[[Any], Any]) -> None:
        self._layer = layer
        self._batches = batches
        self._ids_of = ids_of

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        now = None
        for batch in self._batches:
            later = (batch, self._layer.start(self._ids_of(batch)))
            if now is not None:
                yield now[0], now[1].wait()
            now = later
        if now is not None:
            yield now[0], now[1].wait()
