"""register_sharding: lists the shardings under which an operator may run, as in torch.distributed.tensor."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Size
from torch._ops import OpOverload

from shardwise import _C
from shardwise._dtensor_spec import DTensorSpec, TensorMeta
from shardwise.placement_types import Placement

Sharding = tuple[Sequence[Placement | None], Sequence[Placement | None]]
ShardingFn = Callable[..., Sequence[Sharding]]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Argument = tuple[str, Any, bool, bool]  # name, value, whether it is a keyword, whether it has its default


def register_sharding(op: OpOverload | list[OpOverload]) -> Callable[[ShardingFn], ShardingFn]:
    """A decorator of a function that lists the shardings under which `op`, or each of several operators, may run. It replaces an earlier rule of
    the operator.

        @register_sharding(torch.ops.mylib.scale.default)
        def shardings(x, factor):
            return [([Replicate()], [Replicate(), None]), *(([Shard(d)], [Shard(d), None]) for d in range(x.ndim))]

    The function gets the operator's arguments, with a DTensorSpec instead of each tensor. It returns pairs: the placements of the outputs
    and of the inputs on one mesh dim. The inputs have one placement per argument, with the elements of lists one by one, and None for an
    argument that is not a tensor. On each mesh dim, Shardwise chooses the pair that moves the fewest bytes; if none fits, inputs are
    gathered. Shards may have any sizes: the largest operand determines them, also for other dims of the same length. The function is called
    once per set of layouts and values of the other arguments, floats included: in every step, if an argument such as a learning rate
    changes in every step.

    The operator itself runs on each rank's pieces, with torch's derivative. It needs a meta (fake) kernel. Call register_sharding on all
    ranks. Raises TypeError if `op` is not an overload; ValueError for an operator that torch composes of others and, when the operator is
    called, for pairs that do not have one placement per tensor.

    >>> library = torch.library.Library(f"sample{rank}", "DEF")
    >>> library.define("scaled(Tensor x) -> Tensor")
    'scaled'
    >>> library.impl("scaled", lambda x: x * 2, "CompositeExplicitAutograd")
    >>> scaled = getattr(torch.ops, f"sample{rank}").scaled
    >>> @sw.experimental.register_sharding(scaled.default)
    ... def shardings(x):
    ...     return [([sw.Shard(dim)], [sw.Shard(dim)]) for dim in range(x.ndim)]
    >>> with torch.no_grad():
    ...     scaled(sw.ones(8, 2, device_mesh=mesh, placements=[sw.Shard(0)])).placements
    (Shard(0),)
    """
    overloads = op if isinstance(op, (list, tuple)) else [op]
    for each in overloads:
        if not isinstance(each, OpOverload):
            raise TypeError(f"[register_sharding] {each} is no overload of an operator. Name one: aten.add.Tensor.")

    def register(shardings: ShardingFn) -> ShardingFn:
        for name in (each.name() for each in overloads):
            _C.register_sharding(name, partial(_ask, name, shardings))
        return shardings

    return register


def _ask(op: str, shardings: ShardingFn, arguments: list[Argument]) -> list[Sharding]:
    """The pairs that the function returns for a call. Raises ValueError if it returns something else."""
    positional, named = _as_called(shardings, arguments)
    answer = shardings(*positional, **named)
    if not isinstance(answer, (list, tuple)) or not all(_is_pair(each) for each in answer):
        raise ValueError(
            f"[register_sharding] the function for {op} returned {answer!r}. Return a list of pairs: placements of the outputs, and of the "
            "inputs."
        )
    return list(answer)


def _is_pair(sharding: Any) -> bool:
    return (
        isinstance(sharding, list | tuple)
        and len(sharding) == 2
        and all(isinstance(placements, list | tuple) for placements in sharding)
    )


def _as_called(shardings: ShardingFn, arguments: list[Argument]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named arguments, without those that have their defaults, unless the function requires them."""
    parameters = inspect.signature(shardings).parameters.values()
    required = {each.name: each.kind for each in parameters if each.default is inspect.Parameter.empty}
    n_positional = sum(kind in _POSITIONAL for kind in required.values())
    positional = [argument for argument in arguments if not argument[2]]
    while len(positional) > n_positional and positional[-1][3]:
        positional.pop()
    named = [each for each in arguments if each[2] and (not each[3] or each[0] in required)]
    return [_told(value) for _, value, *_ in positional], {name: _told(value) for name, value, *_ in named}


def _told(value: Any) -> Any:
    """`value` with a DTensorSpec for each description of a tensor."""
    if isinstance(value, tuple):
        mesh, placements, shape, stride, dtype = value
        return DTensorSpec(mesh, placements, TensorMeta(Size(shape), stride, dtype))
    if isinstance(value, list):
        return [_told(each) for each in value]
    return value
