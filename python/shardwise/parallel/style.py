"""Parallel styles: how parallelize_module shards the parameters of a module and lays out its inputs and outputs."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh, mesh_or_current
from shardwise.distribute_module import HookFn, PartitionFn, distribute_module
from shardwise.dtensor import DTensor
from shardwise.module_tensors import is_read_by_its_class
from shardwise.placement_types import Placement, Replicate, Shard

Placements = Sequence[Placement]
Layouts = tuple[Placement | None, ...]
LayOut = Callable[[Any, Placement | None, Placement | None], Any]


class ParallelStyle(ABC):
    """How parallelize_module shards one module. To write a style, define `_apply(module, device_mesh)`, which returns the module.

    `src_data_rank`: the coordinate of the rank whose parameters are sent to the others. None: each rank takes its part of its own parameters.

    >>> class Replicated(sw.parallel.ParallelStyle):
    ...     def _apply(self, module, device_mesh):
    ...         return sw.distribute_module(module, device_mesh)
    >>> sw.parallel.parallelize_module(torch.nn.Linear(2, 2), mesh, Replicated()).weight.placements
    (Replicate(),)
    """

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module: ...

    def _described(self) -> dict[str, object]:
        """The attributes that __repr__ shows: those with the names of the constructor's parameters."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._described().items())})"


def one_dim(style: ParallelStyle, device_mesh: DeviceMesh) -> DeviceMesh:
    """The mesh, which must have one dim. Raises ValueError."""
    mesh = mesh_or_current(device_mesh)
    if mesh.ndim != 1:
        named = f'mesh["{mesh.mesh_dim_names[-1]}"]' if mesh.mesh_dim_names else "a mesh with mesh_dim_names, sliced"
        raise ValueError(
            f"[parallelize_module] {type(style).__name__} shards over one mesh dim, but {mesh} has {mesh.ndim}. Pass the dim for it to use: "
            f"{named}."
        )
    return mesh


class _ShardedModule(ParallelStyle):
    """The base of styles whose modules have sharded or replicated parameters.

    A class that derives from a style may define the methods whose names begin with `_partition`, `_replicate` and `_prepare`: they have the
    names and arguments of torch's.
    """

    @abstractmethod
    def _functions(self, module: nn.Module) -> tuple[PartitionFn, HookFn, HookFn]:
        """The `partition_fn`, for `module` alone, the `input_fn` and the `output_fn` of distribute_module()."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mesh = one_dim(self, device_mesh)
        partition, prepare, finish = self._functions(module)

        def shard(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
            if layer is module:
                partition(name, layer, mesh)

        return distribute_module(module, mesh, shard, prepare, finish)


class _LayerStyle(_ShardedModule):
    """A linear layer or embedding table whose parameters are sharded, as _C.layer_placements() says."""

    _is_rowwise: ClassVar[bool]

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        features = input_layouts if self._is_rowwise else output_layouts
        _, _, needed, output = _C.layer_placements(False, self._is_rowwise, features)
        self.input_layouts = (input_layouts or needed,)
        self.output_layouts = (output_layouts or output,)
        self.desired_input_layouts: tuple[Placement, ...] = (needed,)
        self.use_local_output = use_local_output

    def _functions(self, module: nn.Module) -> tuple[PartitionFn, HookFn, HookFn]:
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            raise NotImplementedError(
                f"[parallelize_module] {type(self).__name__} shards nn.Linear and nn.Embedding, not {type(module).__name__}. "
                "Name the linear layers and embeddings inside it, or write a ParallelStyle of your own."
            )
        is_embedding = isinstance(module, nn.Embedding)
        if self._is_rowwise:  # the placement that it needs differs by the module
            self.desired_input_layouts = (_C.layer_placements(is_embedding, True, self.input_layouts[0])[2],)
        return (
            self._partition_embedding_fn if is_embedding else self._partition_linear_fn,
            partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output),
        )

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        self._shard(module, device_mesh, is_embedding=False)

    def _partition_embedding_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        self._shard(module, device_mesh, is_embedding=True)

    def _shard(self, module: nn.Module, mesh: DeviceMesh, *, is_embedding: bool) -> None:
        (features,) = self.input_layouts if self._is_rowwise else self.output_layouts
        weight, other, _, _ = _C.layer_placements(is_embedding, self._is_rowwise, features)
        names = [name for name, _ in module.named_parameters(recurse=False)]
        layouts = {name: weight if name == "weight" else other for name in names}
        shard_parameters(module, mesh, layouts, self.src_data_rank)

    @staticmethod
    def _prepare_input_fn(
        input_layouts: Placements,
        desired_input_layouts: Placements,
        mod: nn.Module,
        inputs: Any,
        device_mesh: DeviceMesh,
    ) -> Any:
        n_features = mod.in_features if isinstance(mod, nn.Linear) else None
        value = first_input(mod, inputs)
        value = _C.lay_out(value, device_mesh, input_layouts, desired_input_layouts, False, n_features, True)
        return (value, *inputs[1:]) if len(inputs) > 1 else value

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Placements, use_local_output: bool, mod: nn.Module, outputs: Any, device_mesh: DeviceMesh
    ) -> Any:
        return _C.lay_out(outputs, device_mesh, None, output_layouts, use_local_output)


class ColwiseParallel(_LayerStyle):
    """Each rank has some output features of an nn.Linear, or some columns of an nn.Embedding.

    `input_layouts`: the placement of plain inputs; default: Replicate(). `output_layouts`: the placement of the output; default: Shard(-1),
    which sends nothing. `use_local_output`: the output is this rank's piece, a plain tensor. The number of features need not be a multiple
    of the number of ranks. The features are divided as the output's last dim is: with output_layouts=Shard(-1, sizes=[16, 8, 8, 0]) rank 0
    has 16 features, and so has its part of the weight.

    >>> from shardwise.parallel import ColwiseParallel, parallelize_module
    >>> layer = parallelize_module(torch.nn.Linear(8, 30), mesh, ColwiseParallel())
    >>> layer.weight.placements, layer(torch.ones(2, 8)).shape  # this rank's features
    ((Shard(0),), torch.Size([2, 8]))
    """

    _is_rowwise = False


class RowwiseParallel(_LayerStyle):
    """Each rank has some input features of an nn.Linear, or some rows of an nn.Embedding; the results are sums.

    `input_layouts`: the placement of plain inputs; default: Shard(-1). Give Replicate() for the ids of an embedding. The features of an
    nn.Linear are divided as the input's last dim is, for instance by Shard(-1, sizes=[16, 8, 8, 0]).
    `output_layouts`: the placement of the sum: Replicate() (an all-reduce, the default) or a Shard (a reduce-scatter).

    >>> from shardwise.parallel import RowwiseParallel, parallelize_module
    >>> layer = parallelize_module(torch.nn.Linear(8, 30), mesh, RowwiseParallel())
    >>> layer.weight.placements, layer(torch.ones(2, 2)).shape  # given this rank's 2 of 8 features
    ((Shard(1),), torch.Size([2, 30]))
    """

    _is_rowwise = True


class SequenceParallel(_ShardedModule):
    """For a norm, a dropout or another module that computes each position separately: parameters are replicated, inputs sharded along
    `sequence_dim`.

    Plain inputs are this rank's positions. The output stays sharded; it is a DTensor, or with `use_local_output` a plain tensor.

    >>> from shardwise.parallel import SequenceParallel, parallelize_module
    >>> norm = parallelize_module(torch.nn.LayerNorm(8), mesh, SequenceParallel())
    >>> norm(torch.ones(2, 3, 8)).shape  # this rank's 3 positions of 12
    torch.Size([2, 12, 8])
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim, self.sequence_sharding = sequence_dim, (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _functions(self, module: nn.Module) -> tuple[PartitionFn, HookFn, HookFn]:
        return (
            self._replicate_module_fn,
            partial(self._prepare_input_fn, self.sequence_sharding),
            partial(self._prepare_output_fn, self.use_local_output),
        )

    def _replicate_module_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        plain = [path for path, each in module.named_parameters() if not isinstance(each, DTensor)]
        shard_parameters(module, device_mesh, dict.fromkeys(plain, Replicate()), self.src_data_rank)

    @staticmethod
    def _prepare_input_fn(sequence_sharding: Placements, mod: nn.Module, inputs: Any, device_mesh: DeviceMesh) -> Any:
        value = _C.lay_out(first_input(mod, inputs), device_mesh, sequence_sharding, sequence_sharding)
        return (value, *inputs[1:]) if len(inputs) > 1 else value

    @staticmethod
    def _prepare_output_fn(use_local_output: bool, mod: nn.Module, outputs: Any, device_mesh: DeviceMesh) -> Any:
        return _C.lay_out(outputs, device_mesh, None, None, True) if use_local_output else outputs


class _PreparedModule(ParallelStyle):
    """The base of styles that lay out inputs or outputs alone."""

    use_local_output: bool

    def _check_as_many(self, what: str, given: Any, desired: Any) -> None:
        """Raises AssertionError, as torch does, unless there are as many desired layouts as layouts."""
        if given is not None and (desired is None or len(given) != len(desired)):
            raise AssertionError(
                f"[{type(self).__name__}] {what}_layouts and desired_{what}_layouts should have same length! They have {len(given)} "
                f"and {'no' if desired is None else len(desired)} entries."
            )

    def _laid_out(
        self, what: str, values: tuple[Any, ...], layouts: Layouts | None, desired: Layouts | None, lay_out: LayOut
    ) -> tuple[Any, ...]:
        """`lay_out(value, layout, desired)` of each value. Raises ValueError if there is not one layout per value."""
        layouts, desired = layouts or (), desired or ()
        if len(values) != len(layouts):
            raise ValueError(
                f"[{type(self).__name__}] module {what} and {what[:-1]}_layouts should have same length! There are {len(values)} {what}, and "
                f"the layouts {list(layouts)}. Give one per value, and None for values to leave unchanged."
            )
        return tuple(
            lay_out(value, layout, becomes) for value, layout, becomes in zip(values, layouts, desired, strict=True)
        )


class PrepareModuleInput(_PreparedModule):
    """Lays out the inputs of a module before its forward.

    `input_layouts`: the placement of each positional input if it is plain; None: the input is not changed. `desired_input_layouts`: the
    placement that the module gets. `input_kwarg_layouts` and `desired_input_kwarg_layouts` are the same for keyword arguments, by name.
    `use_local_output`: the module gets this rank's pieces, as plain tensors, instead of DTensors. Raises ValueError if inputs and layouts
    differ in number.

    >>> style = sw.parallel.PrepareModuleInput(input_layouts=sw.Shard(0), desired_input_layouts=sw.Replicate())
    >>> module = sw.parallel.parallelize_module(torch.nn.Identity(), mesh, style)
    >>> module(torch.ones(2, 3)).shape  # given this rank's 2 rows of 8
    torch.Size([8, 3])
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | Sequence[Placement | None] | None = None,
        desired_input_layouts: Placement | Sequence[Placement | None] | None = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = as_layouts(input_layouts)
        self.desired_input_layouts = as_layouts(desired_input_layouts)
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        self.with_kwargs = input_kwarg_layouts is not None
        self.use_local_output = use_local_output
        self._check_as_many("input", self.input_layouts, self.desired_input_layouts)
        self._check_as_many("input_kwarg", self.input_kwarg_layouts, self.desired_input_kwarg_layouts)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mesh = one_dim(self, device_mesh)
        module.register_forward_pre_hook(
            lambda layer, inputs, named: self._prepare_input_kwarg_fn(inputs, named, mesh), with_kwargs=True
        )
        return module

    def _prepare_input_fn(self, inputs: Any, device_mesh: DeviceMesh) -> Any:
        if self.input_layouts is None:
            return inputs

        def lay_out(value: Any, layout: Placement | None, desired: Placement | None) -> Any:
            return self._prepare_input_arg(value, device_mesh, layout, desired)

        return self._laid_out("inputs", inputs, self.input_layouts, self.desired_input_layouts, lay_out)

    def _prepare_input_arg(
        self, value: Any, mesh: DeviceMesh, input_layout: Placement | None, desired_layout: Placement | None
    ) -> Any:
        return laid_out(value, input_layout, desired_layout, mesh, self.use_local_output)

    def _prepare_input_kwarg_fn(self, inputs: Any, kwarg_inputs: dict[str, Any], device_mesh: DeviceMesh) -> Any:
        named = dict(kwarg_inputs)
        for name, layout in self.input_kwarg_layouts.items():
            if name in named:
                desired = self.desired_input_kwarg_layouts.get(name)
                named[name] = self._prepare_input_arg(named[name], device_mesh, layout, desired)
        return self._prepare_input_fn(inputs, device_mesh), named


class PrepareModuleOutput(_PreparedModule):
    """Lays out the outputs of a module after its forward.

    `output_layouts`: the placement of each output if it is plain; None: the output is not changed. `desired_output_layouts`: the placement that
    the caller gets. `use_local_output`: the caller gets this rank's pieces, as plain tensors. Raises ValueError if outputs and layouts differ
    in number.

    >>> style = sw.parallel.PrepareModuleOutput(output_layouts=sw.Replicate(), desired_output_layouts=sw.Shard(0))
    >>> module = sw.parallel.parallelize_module(torch.nn.Identity(), mesh, style)
    >>> module(torch.ones(8, 3)).shape  # this rank's rows
    torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        output_layouts: Placement | Sequence[Placement | None],
        desired_output_layouts: Placement | Sequence[Placement | None],
        use_local_output: bool = True,
    ) -> None:
        self.output_layouts = as_layouts(output_layouts)
        self.desired_output_layouts = as_layouts(desired_output_layouts)
        self.use_local_output = use_local_output
        self._check_as_many("output", self.output_layouts, self.desired_output_layouts)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mesh = one_dim(self, device_mesh)
        module.register_forward_hook(lambda layer, inputs, outputs: self._prepare_out_fn(outputs, mesh))
        return module

    def _prepare_out_fn(self, outputs: Any, device_mesh: DeviceMesh) -> Any:
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        lay_out = partial(laid_out, mesh=device_mesh, to_local=self.use_local_output)
        results = self._laid_out("outputs", given, self.output_layouts, self.desired_output_layouts, lay_out)
        return results[0] if len(results) == 1 else results


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput (`use_local_input` is its `use_local_output`) and PrepareModuleOutput in one.

    >>> style = sw.parallel.PrepareModuleInputOutput(
    ...     input_layouts=sw.Shard(0), desired_input_layouts=sw.Replicate(),
    ...     output_layouts=sw.Replicate(), desired_output_layouts=sw.Shard(0),
    ... )
    >>> module = sw.parallel.parallelize_module(torch.nn.Identity(), mesh, style)
    >>> module(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | Sequence[Placement | None] | None = None,
        desired_input_layouts: Placement | Sequence[Placement | None] | None = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Placement | Sequence[Placement | None],
        desired_output_layouts: Placement | Sequence[Placement | None],
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def _described(self) -> dict[str, object]:
        inputs = self.prepare_module_input._described()
        inputs["use_local_input"] = inputs.pop("use_local_output")
        return {**inputs, **self.prepare_module_output._described()}


def shard_parameters(
    module: nn.Module, mesh: DeviceMesh, layouts: Mapping[str, Placement], src_data_rank: int | None
) -> None:
    """Replaces the parameters of `module` with these names by DTensors. Collective over the mesh."""
    parameters = [module.get_parameter(name) for name in layouts]
    for name, parameter in zip(layouts, parameters, strict=True):
        if is_read_by_its_class(parameter):
            raise TypeError(
                f"[parallelize_module] {name} of {type(module).__name__} is a {type(parameter).__name__} of shape {list(parameter.shape)}, which "
                "only its library reads, so its features cannot be sharded. Leave the layer out of the plan: it is then replicated. "
                "fully_shard shards it."
            )
    placements = [[layout] for layout in layouts.values()]
    distributed = _C.distribute_tensors([each.detach() for each in parameters], mesh, placements, src_data_rank)
    for name, parameter, sharded in zip(layouts, parameters, distributed, strict=True):
        path, _, key = name.rpartition(".")
        owner = module.get_submodule(path)
        owner.register_parameter(key, nn.Parameter(sharded, requires_grad=parameter.requires_grad))


def first_input(module: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    """The first positional input, a tensor. Raises ValueError."""
    if inputs and isinstance(inputs[0], torch.Tensor):
        return inputs[0]
    got = f"a {type(inputs[0]).__name__}" if inputs else "none (keywords are not seen here)"
    raise ValueError(
        f"[parallelize_module] {type(module).__name__} needs a tensor as its first positional input, got {got}. Pass a tensor first."
    )


def as_layouts(layouts: Placement | Sequence[Placement | None] | None) -> Layouts | None:
    if layouts is None:
        return None
    return tuple(layouts) if isinstance(layouts, (tuple, list)) else (layouts,)  # type: ignore[return-value]


def laid_out(value: Any, layout: Placement | None, desired: Placement | None, mesh: DeviceMesh, to_local: bool) -> Any:
    """`value`, whose layout is `layout` if it is plain, laid out as `desired`; unchanged without a layout. Raises AssertionError, as torch does."""
    if layout is None:
        return value
    if not isinstance(value, torch.Tensor):
        raise AssertionError(
            f"[parallelize_module] a layout {layout} was given for a {type(value).__name__}, expecting input to be a torch.Tensor! Give "
            "None for a value that is not a tensor."
        )
    return _C.lay_out(value, mesh, (layout,), None if desired is None else (desired,), to_local)
