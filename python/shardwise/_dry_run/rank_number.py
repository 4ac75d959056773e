"""Numbers that differ between ranks, which note what a program learned from them.

A program runs alike on two ranks if each comparison of such a number has the same outcome. So one run stands for all of these ranks.
"""

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from shardwise import _C, _utils
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.local_shards_wrapper import LocalShardsWrapper

# Functions whose answers differ between the slices of a mesh, and between ranks.
FUNCTIONS_OF_GROUPS = ("get_process_group_ranks", "get_global_rank", "get_group_rank")
FUNCTIONS_OF_PIECES = (
    (_utils, "compute_local_shape_and_global_offset"),
    (LocalShardsWrapper, "local_offsets"),
    (DTensor, "__create_chunk_list__"),
)

ByRank = Callable[[int], Any]  # the number that a rank has, or None
Fact = Callable[[int], bool]  # whether a rank would have got the same answer


class RankNumber:
    """A whole number of this rank. Arithmetic gives such numbers, too. A comparison notes its outcome. Every other use notes the number itself.
    str() and f-strings note nothing: programs print ranks, and write files that are named after them.
    """

    __slots__ = ("_facts", "_number", "_of_rank")

    def __init__(self, number: int, of_rank: ByRank, facts: list[Fact]) -> None:
        self._number, self._of_rank, self._facts = number, of_rank, facts

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int  # for isinstance()

    def __index__(self) -> int:
        number, of_rank = self._number, self._of_rank
        self._facts.append(lambda rank: of_rank(rank) == number)
        return number

    __int__ = __index__
    __trunc__ = __index__

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        return self._compare(operator.ne, 0)

    def __repr__(self) -> str:
        return repr(self._number)

    def __format__(self, form: str) -> str:
        return format(self._number, form)

    def _compare(self, compare: Callable[[Any, Any], bool], other: Any) -> Any:
        of_rank, (value, of_other) = self._of_rank, _parts(other)
        if value is None:
            return NotImplemented
        outcome = compare(self._number, value)
        self._facts.append(lambda rank: compare(of_rank(rank), of_other(rank)) == outcome)
        return outcome

    def _calculate(self, calculate: Callable[[Any, Any], Any], other: Any, is_reversed: bool = False) -> Any:
        of_rank, (value, of_other) = self._of_rank, _parts(other)
        if value is None or isinstance(value, float):
            return NotImplemented if value is None else calculate(*_ordered(self.__index__(), value, is_reversed))
        result = calculate(*_ordered(self._number, value, is_reversed))
        return RankNumber(
            result, lambda rank: calculate(*_ordered(of_rank(rank), of_other(rank), is_reversed)), self._facts
        )

    def __neg__(self) -> Any:
        return self._calculate(operator.mul, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self._compare(operator.lt, 0) else self

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(other, self.__index__())

    def __round__(self, *digits: Any) -> int:
        return round(self.__index__(), *digits)

    def __invert__(self) -> Any:
        return -self - 1

    def __reduce__(self) -> Any:
        return int, (self.__index__(),)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__index__(), name)


def _parts(value: Any) -> tuple[Any, ByRank]:
    """A number and its function of the rank; None for other values."""
    if type(value) is RankNumber:
        return value._number, value._of_rank
    return (value if isinstance(value, int | float) else None), lambda rank: value


def _ordered(a: Any, b: Any, is_reversed: bool) -> tuple[Any, Any]:
    return (b, a) if is_reversed else (a, b)


def _add_operators() -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        compare = getattr(operator, name)
        setattr(RankNumber, f"__{name}__", lambda self, other, compare=compare: self._compare(compare, other))
    for name in ("add", "sub", "mul", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
        calculate, method = getattr(operator, name), name.rstrip("_")
        setattr(RankNumber, f"__{method}__", lambda self, other, f=calculate: self._calculate(f, other))
        setattr(RankNumber, f"__r{method}__", lambda self, other, f=calculate: self._calculate(f, other, True))


_add_operators()


class _Environment(type(os.environ)):  # type: ignore[misc]
    """The variables of torchrun, which are text: a rank that reads one learns the number."""

    numbers: dict[str, ByRank]
    facts: list[Fact]

    def __getitem__(self, name: str) -> str:
        text: str = super().__getitem__(name)
        if name in self.numbers and not is_asked_by_library():
            of_rank, number = self.numbers[name], int(text)
            self.facts.append(lambda rank: of_rank(rank) == number)
        return text


def is_asked_by_library() -> bool:
    """Whether torch or this package called the function that asks: what they do on a rank is known. Modules of the interpreter, such as os in
    os.environ.get(), ask for their callers.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
        frame = frame.f_back
    return frame is None or _C.is_of_a_library(frame.f_code.co_filename)


@contextmanager
def noted_ranks(ranks_per_host: int) -> Iterator[list[Fact]]:
    """A `with` block in which what torch and meshes tell about this rank are RankNumbers. Gives the facts that the program has learned so far."""
    facts: list[Fact] = []
    get_rank, local_rank, coordinate = c10d.get_rank, DeviceMesh.get_local_rank, DeviceMesh.get_coordinate
    new_group, group_of, mesh_of = c10d.new_group, DeviceMesh.get_group, DeviceMesh.mesh.fget  # type: ignore[attr-defined]
    rank_of_group, ranks_of = dist.ProcessGroup.rank, c10d.get_process_group_ranks
    places: dict[Any, ByRank] = {}  # of ranks in the groups along dims of meshes

    def in_group(group: Any, number: int) -> Any:
        if group is None or group == dist.group.WORLD:
            return RankNumber(number, lambda rank: rank, facts)
        if group in places:
            return RankNumber(number, places[group], facts)
        note_members([get_rank()])
        return number

    def noted_rank(group: Any = None) -> Any:
        number = get_rank(group)
        return number if is_asked_by_library() else in_group(group, number)

    def noted_rank_of_group(self: Any) -> Any:
        number = rank_of_group(self)
        return number if is_asked_by_library() else in_group(self, number)

    def noted_group_of(self: DeviceMesh, mesh_dim: Any = None) -> Any:
        group = group_of(self, mesh_dim)
        if group is not None:
            places[group] = along(self, 0 if mesh_dim is None else _C.mesh_dim_number(self, mesh_dim))
        return group

    def note_members(ranks: Iterable[int]) -> None:
        """Other ranks would have got another answer."""
        members = frozenset(ranks)
        facts.append(lambda rank: rank in members)

    def of_members(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a group that tells its ranks."""

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if group is not None and not is_asked_by_library():
                note_members(ranks_of(group))
            return function(group, *args, **kwargs)

        return call

    def of_rank_alone(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that tells which pieces are this rank's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_asked_by_library():
                note_members([get_rank()])
            return function(*args, **kwargs)

        return call

    def noted_mesh(self: DeviceMesh) -> Any:
        found = mesh_of(self)
        if self._get_root_mesh() is not self and not is_asked_by_library():
            note_members(found.flatten().tolist())
        return found

    def along(mesh: DeviceMesh, dim: int) -> ByRank:
        def of_rank(rank: int) -> int | None:
            found = _C.coordinates_of(mesh, rank)
            return None if found is None else found[dim]

        return of_rank

    def note_whether_member(mesh: DeviceMesh) -> None:
        is_member = coordinate(mesh) is not None
        facts.append(lambda rank: (_C.coordinates_of(mesh, rank) is not None) == is_member)

    def noted_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ranks is not None:
            members, own = {int(rank) for rank in ranks}, get_rank()
            facts.append(lambda rank: (rank in members) == (own in members))
        return new_group(ranks, *args, **kwargs)

    def noted_device(*fallback: Any) -> Any:
        number = get_rank() % ranks_per_host
        return number if is_asked_by_library() else RankNumber(number, lambda rank: rank % ranks_per_host, facts)

    def noted_local_rank(self: DeviceMesh, mesh_dim: Any = None) -> Any:
        number, dim = local_rank(self, mesh_dim), 0
        if is_asked_by_library():
            return number
        note_whether_member(self)
        if mesh_dim is not None:
            dim = _C.mesh_dim_number(self, mesh_dim)
        return RankNumber(number, along(self, dim), facts)

    def noted_coordinate(self: DeviceMesh) -> Any:
        found = coordinate(self)
        if is_asked_by_library():
            return found
        note_whether_member(self)
        return found and tuple(RankNumber(number, along(self, dim), facts) for dim, number in enumerate(found))

    def noted_rank_of_mesh(self: DeviceMesh) -> Any:
        return get_rank() if is_asked_by_library() else RankNumber(get_rank(), lambda rank: rank, facts)

    environ = _Environment(
        *(getattr(os.environ, name) for name in ("_data", "encodekey", "decodekey", "encodevalue", "decodevalue"))
    )
    environ.facts = facts
    environ.numbers = {
        "RANK": lambda rank: rank,
        "LOCAL_RANK": lambda rank: rank % ranks_per_host,
        "GROUP_RANK": lambda rank: rank // ranks_per_host,
    }
    with ExitStack() as changes:
        of_torch: dict[str, Callable[..., Any]] = {
            "get_rank": noted_rank,
            "new_group": noted_group,
            "get_node_local_rank": noted_device,
        }
        of_torch |= {name: of_members(getattr(c10d, name)) for name in FUNCTIONS_OF_GROUPS}
        for owner, name, function in (
            *((module, name, function) for name, function in of_torch.items() for module in (c10d, dist)),
            (torch.cuda, "current_device", noted_device),
            (dist.ProcessGroup, "rank", noted_rank_of_group),
            (DeviceMesh, "mesh", property(noted_mesh)),
            (DeviceMesh, "get_group", noted_group_of),
            (DeviceMesh, "get_local_rank", noted_local_rank),
            (DeviceMesh, "get_coordinate", noted_coordinate),
            (DeviceMesh, "get_rank", noted_rank_of_mesh),
            *((owner, name, of_rank_alone(getattr(owner, name))) for owner, name in FUNCTIONS_OF_PIECES),
            (LocalShardsWrapper, "shard_offsets", property(of_rank_alone(LocalShardsWrapper.local_offsets))),
            (os, "environ", environ),
        ):
            changes.enter_context(mock.patch.object(owner, name, function))
        yield facts
