"""torch.compile: its front end learns of our C++ functions, which it cannot trace into; and around a compiled program, views that it returns, writes to
its inputs, and the order of its graph. Its graph knows pieces alone.

In the graph that inductor compiles, a move starts as soon as its operand is there, and the graph waits for it as late as possible.
"""

import operator
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from itertools import takewhile
from types import ModuleType
from typing import Any, cast

import torch
from torch._higher_order_ops.effects import with_effects
from torch._library.fake_class_registry import FakeScriptObject
from torch._ops import HigherOrderOperator, OpOverload
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from shardwise import _C, _symbols, forward_scope
from shardwise._symbols import NO_SYMBOLS, divides, with_numbers, with_whole_symbols
from shardwise._torch_versions import register_mesh
from shardwise._tracing import run_traced, steps
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.fsdp import unit
from shardwise.interop.fake_tensors import has_values

# Methods of a mesh whose results are meshes or groups. For a tracer they are constants.
_GIVE_MESHES = ("get_all_groups", "__getitem__", "_flatten", "_unflatten", "_get_root_mesh")


def register(dynamo: ModuleType) -> None:
    """Lets graphs contain DTensor.from_local and the inputs and outputs of modules with styles, and keeps torch.compile from tracing the hooks around forwards."""
    dynamo.allow_in_graph(_from_local_in_graph)
    dynamo.substitute_in_graph(DTensor.from_local, skip_signature_check=True)(_from_local)
    dynamo.allow_in_graph(_lay_out_in_graph)
    dynamo.substitute_in_graph(_C.lay_out, skip_signature_check=True)(_lay_out)
    register_mesh(DeviceMesh, TorchDeviceMesh, (*_GIVE_MESHES, "get_group"))
    for name in _GIVE_MESHES:
        if name in vars(DeviceMesh):
            setattr(DeviceMesh, name, dynamo.assume_constant_result(_of_real_mesh(vars(DeviceMesh)[name])))
    DeviceMesh.get_group = _traceable_get_group(dynamo, DeviceMesh.get_group)
    forward_scope._open = dynamo.disable(forward_scope._open)
    for name in ("enter", "leave"):
        disabled = dynamo.disable(
            getattr(unit.Unit, name), reason="fully_shard gathers and frees parameters between graphs"
        )
        setattr(unit.Unit, name, disabled)
    hooks = (forward_scope._enter, forward_scope._leave, unit._before_forward, unit._after_forward)
    for function in (*hooks, run_traced):
        dynamo.eval_frame.skip_code(function.__code__)


def mark(original: Any, tensor: Any, index: Any, *args: Any, **options: Any) -> None:
    """Marks sizes, except those of a DTensor's divided dims, and those marked as unknown: these have no effect, and warn. `original`: mark_dynamic or
    mark_unbacked."""
    dims = [*index] if isinstance(index, (list, tuple)) else [index]
    if isinstance(tensor, DTensor):
        is_unknown = original.__name__ == "mark_unbacked"
        kept = [dim for dim in dims if not is_unknown and not divides(tensor.placements, dim, tensor.dim())]
        if len(kept) < len(dims):
            warnings.warn(f"[{original.__name__}] {NO_SYMBOLS}", stacklevel=3)
        if not kept:
            return
        index = kept if isinstance(index, (list, tuple)) else index  # torch calls itself for each of a list
    original(tensor, index, *args, **options)


def _of_real_mesh(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of a mesh, which a tracer may call with its stand-in for the mesh."""

    @wraps(method)
    def call(mesh: Any, *args: Any, **options: Any) -> Any:
        return method(mesh.real_obj if isinstance(mesh, FakeScriptObject) else mesh, *args, **options)

    return call


def _traceable_get_group(dynamo: ModuleType, get_group: Callable[..., Any]) -> Callable[..., Any]:
    """DeviceMesh.get_group for tracers: they see a lookup in the mesh's dict, so a compiled function can return the group."""

    def register(mesh: DeviceMesh, mesh_dim: int | str | None) -> str | None:
        group = get_group(mesh, mesh_dim)
        flattened = mesh._get_root_mesh()._flatten_mapping.values()
        # All at once: a tracer reads the dict once. Others may be destroyed, or not be there.
        for owner, dim in [*((mesh, dim) for dim in range(mesh.ndim)), *((flat, 0) for flat in flattened)]:
            with suppress(RuntimeError, ValueError):
                if (each := get_group(owner, dim)) is not None:
                    mesh._pg_registry[each.group_name] = each
        return None if group is None else str(group.group_name)

    name_in_graph = dynamo.assume_constant_result(_of_real_mesh(register))

    @wraps(get_group)
    def call(mesh: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return get_group(mesh, mesh_dim)
        name = name_in_graph(mesh, mesh_dim)
        return None if name is None else mesh._pg_registry[name]

    return call


def _from_local(
    local_tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    run_check: bool = False,
    **others: Any,
) -> torch.Tensor:
    # The mesh of a `with` block, and the comparison of ranks, exist only when the program runs.
    if device_mesh is None or run_check:
        torch._dynamo.graph_break()
    return _from_local_in_graph(local_tensor, device_mesh, placements, **others)


def _from_local_in_graph(
    local_tensor: torch.Tensor, device_mesh: Any, placements: Any, shape: Any = None, stride: Any = None, **others: Any
) -> torch.Tensor:
    given = with_numbers(local_tensor) if shape is not None else with_whole_symbols(local_tensor, placements)
    return _C.from_local(given, device_mesh, placements, shape=_numbers(shape), stride=_numbers(stride), **others)


def _lay_out(*arguments: Any) -> torch.Tensor:
    return _lay_out_in_graph(*arguments)


def _lay_out_in_graph(tensor: torch.Tensor, device_mesh: Any, *layouts: Any) -> torch.Tensor:
    given = tensor if isinstance(tensor, DTensor) else with_whole_symbols(tensor, layouts[0])
    return _C.lay_out(given, device_mesh, *layouts)


def _numbers(sizes: Any) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]


def traced_again(original: Any, program: Any, inputs: Any, *args: Any, **options: Any) -> Any:
    """Traces a program with DTensors again if its backward fixed a size: torch had counted the symbols of the results by then."""
    if not _has_dtensors(program, inputs):
        return original(program, inputs, *args, **options)
    n_fixed = 0

    def is_outdated() -> bool:
        return _symbols.fixed_symbols() > n_fixed

    def checked(divide: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(divide)
        def divide_if_valid(*arguments: Any, **settings: Any) -> Any:
            if is_outdated():
                raise SizeWasFixed
            return divide(*arguments, **settings)

        return divide_if_valid

    if "partition_fn" in options:
        options["partition_fn"] = checked(options["partition_fn"])
    while True:  # ends, because each round fixes one more of the symbols
        n_fixed = _symbols.fixed_symbols()
        try:
            result = original(program, inputs, *args, **options)
            if not is_outdated():
                return result
        except Exception:
            if not is_outdated():
                raise


class SizeWasFixed(Exception):
    """Ends a round of traced_again()."""


def _has_dtensors(program: Any, inputs: Any) -> bool:
    """Whether a program of torch.compile gets DTensors or makes some."""
    nodes = program.graph.nodes if isinstance(program, torch.fx.GraphModule) else ()
    makes = (getattr(node.target, "__module__", None) or "" for node in nodes if node.op == "call_function")
    return any(isinstance(each, DTensor) for each in inputs) or any(name.startswith("shardwise.") for name in makes)


def view_of_base(
    original: Any, base: torch.Tensor, view: torch.Tensor, requires_grad: bool, *views: Any, **options: Any
) -> torch.Tensor:
    """Makes a view that the program returned from `base` again, with its history. torch does it with as_strided(), which does not know layouts."""
    if not isinstance(base, DTensor) and not isinstance(view, DTensor):
        return original(base, view, requires_grad, *views, **options)
    result = _view_of_base(base, view)
    if result.requires_grad == requires_grad:
        return result
    return result.requires_grad_() if requires_grad else result.detach()


def _view_of_base(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    if not isinstance(view, DTensor):  # the result of base.to_local(), or a view of it
        assert isinstance(base, DTensor)
        return _strided_as(view, base.to_local())
    if isinstance(base, DTensor):
        return _C.view_again(base, view)
    if _C.layout_of(view).n_pieces != 1:
        return view
    local = _strided_as(_C.piece_at(view, 0), base)  # `view` is the result of from_local(base), or a view of it
    return DTensor.from_local(local, view.device_mesh, view.placements, shape=view.shape, stride=view.stride())


def _strided_as(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The part of the memory of `base` that `view` is. If the program wrote to `base`, it is a part of a copy that begins where `base` does."""
    shares_memory = view.untyped_storage()._cdata == base.untyped_storage()._cdata
    begin = view.storage_offset() + (0 if shares_memory else base.storage_offset())
    if view.is_complex() != base.is_complex():
        base = torch.view_as_complex(base) if view.is_complex() else torch.view_as_real(base)
    result = base.as_strided(view.shape, view.stride(), begin)
    return result if result.dtype == view.dtype else result.view(view.dtype)


def check_operator(original: Any, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Runs an operator on our tensors under the mode with which torch checks the operators of a program's first call: it knows classes that have a
    __torch_dispatch__ alone."""
    result = original(mode, func, types, args, kwargs)
    if result is NotImplemented and any(map(has_values, tree_leaves((args, kwargs)))):
        return func(*args, **(kwargs or {}))
    return result


def runtime_wrapper(original: Any, compiled: Any, **options: Any) -> Callable[..., Any]:
    """Makes writes of a graph to the pieces of its inputs count as writes to the DTensors: views and gathered parameters see them."""
    run: Callable[..., Any] = original(compiled, **options)
    metadata = options.get("runtime_metadata")
    classes = [getattr(each, "original_subclass_type", None) for each in metadata.subclass_inp_meta] if metadata else []
    written = [i for i in metadata.mutated_graph_handled_indices if classes[i] is DTensor] if metadata else []
    if not written:
        return run

    @wraps(run)
    def note_writes(args: list[Any]) -> Any:
        inputs = [args[i] for i in written]
        results = run(args)
        for tensor in inputs:
            _C.note_graph_write(tensor)
        return results

    return note_writes


def post_grad_passes(original: Any, module: GraphModule, *args: Any, **options: Any) -> Any:
    """Inductor's last passes over a graph, and then ours."""
    result = original(module, *args, **options)
    if module.graph.find_nodes(op="call_function", target=with_effects):
        put_in_order(module.graph)
        keep_order(module.graph)
        module.graph.lint()
        module.recompile()
    return result


def put_in_order(graph: Graph) -> None:
    """Changes the order of the nodes before the first that writes to a tensor. Moves and other steps keep their order, which is the same on all ranks.

    Before each move come the nodes that it needs. If it needs the result of the move before it, then all nodes that stood before it and do not need that
    result come first.
    """
    body = [node for node in graph.nodes if node.op != "placeholder"]
    nodes = list(takewhile(lambda node: not _writes(node), body))
    # By node: the nodes that come before it, and the number of the last move whose result it needs, counted from 1, or 0.
    inputs: dict[Node, list[Node]] = {}
    results: dict[Node, int] = {}
    numbers: dict[Node, int] = {}  # of the nodes that start moves
    draws: list[Node] = []  # the last draw of random numbers
    for node in nodes:
        inputs[node] = [each for each in node.all_input_nodes if each in inputs]
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            inputs[node], draws = inputs[node] + draws, [node]
        results[node] = max((results[each] for each in inputs[node]), default=0)
        if node.target is with_effects and node.args[1] is torch.ops.shardwise.start_move.default:
            numbers[node] = len(numbers) + 1
        elif node.target is torch.ops.shardwise.finish_move.default:
            starts = cast(Node, node.args[0]).all_input_nodes  # none if the move started in another graph
            results[node] = max(results[node], *(numbers.get(start, 0) for start in starts), 0)
    order: dict[Node, None] = {}
    for start, number in numbers.items():
        before = nodes[: nodes.index(start) + 1]
        needed = _needed(start, inputs, order)
        if number > 1 and any(results[node] == number - 1 for node in needed):
            order |= dict.fromkeys(node for node in before if results[node] < number - 1)
        order |= dict.fromkeys(node for node in before if node in needed)
    order |= dict.fromkeys(node for node in nodes if results[node] < len(numbers))
    order |= dict.fromkeys(nodes)
    for node in order:
        body[len(nodes)].prepend(node)


def keep_order(graph: Graph) -> None:
    """Makes each move and other step need the one before it. Inductor orders nodes by what they need: it looks for the dependencies that effects add
    under the names of operations, and they are kept under those of buffers (torch 2.13)."""
    start, _, call = steps()
    after: Node | None = None
    for node in graph.find_nodes(op="call_function", target=with_effects):
        if node.args[1] not in (start, call):
            continue
        node.args = (*node.args, after)
        value = node.meta["val"][1]
        with graph.inserting_after(node):
            given = graph.call_function(operator.getitem, (node, 1))
            given.meta["val"] = value
        if node.args[1] is call:
            with graph.inserting_after(given):
                last = graph.call_function(operator.getitem, (given, len(value) - 1))
                last.meta["val"] = value[-1]
            given = last
        after = given


def _writes(node: Node) -> bool:
    """True if `node` may write to a tensor, and for the output."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return node.op not in ("call_function", "get_attr") or (
        isinstance(node.target, HigherOrderOperator) and node.target is not with_effects
    )


def _needed(node: Node, inputs: dict[Node, list[Node]], done: dict[Node, None]) -> set[Node]:
    """`node`, and all that it needs, but for those that are done."""
    needed: set[Node] = set()
    left = [node]
    while left:
        if (each := left.pop()) not in needed and each not in done:
            needed.add(each)
            left += inputs[each]
    return needed
