"""Puts every tensor that a program makes on meta, and answers or refuses reads of values."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map_only

from shardwise import _C
from shardwise._dry_run.rank_number import RankNumber
from shardwise.device_mesh import DeviceMesh

Function = Callable[..., Any]
Value = float | Mapping[str, float] | None

# Functions whose result is a number of the program, and the number that a value of 1 gives.
NUMBERS: dict[Function, Callable[[float], Any]] = {
    torch.Tensor.item: float,
    torch.Tensor.__float__: float,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
    torch.Tensor.__bool__: bool,
    torch.Tensor.__complex__: complex,
    torch.Tensor.is_nonzero: bool,
    torch.Tensor.__contains__: bool,
    torch.is_nonzero: bool,
    torch.equal: bool,
    torch.Tensor.equal: bool,
    torch.allclose: bool,
    torch.Tensor.allclose: bool,
}
# Words of torch's errors if an operator needs values.
NEEDS_VALUES = re.compile(
    "Tensor.item\\(\\) cannot be called on meta|Cannot copy out of meta|nonzero|aten::_?unique|to run this operator with Meta|on cpu, but it's on meta"
)
MOST_LINES = 4  # in a sentence
METHODS = ("torch._tensor", "torch.overrides", "torch.utils._device")  # modules
TO_A_DEVICE = {torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.xpu, torch.Tensor.to, torch.Tensor.pin_memory}
HAS_RANKS = "_has_ranks"  # an attribute of tensors that are computed from the ranks of meshes alone


class NoValue(ValueError):
    """The program reads a value of a tensor on meta at `place`, "train.py:12 in Model.forward"."""

    def __init__(self, place: str, function: str) -> None:
        self.place, self.function = place, function
        super().__init__(
            f"[dry_run] {place} reads a value ({function}), and a dry run has none. Give the value that it goes on with: "
            "`--value 1` of the command, or value=1 of dry_run() and suggest()."
        )


class MetaMode(TorchFunctionMode):
    """A `with` block in which each device that the program names is meta. Attention takes the kernel of `device_type`.

    `value`: the value of each element that the program reads; None makes a read an error. With several, the key is "" or a line, "train.py:12". torch's own reads, such as an optimizer's of its number of
    steps, give 1 if there is no `value`. `reads` counts the others by line of the program.
    """

    def __init__(self, device_type: str, value: Value) -> None:
        super().__init__()
        self._device_type = device_type
        self._by_line: Mapping[str, float] = value if isinstance(value, Mapping) else {}
        self._value = self._by_line.get("") if isinstance(value, Mapping) else value
        self._constructors = _device_constructors()
        self.reads: Counter[tuple[str, str]] = Counter()

    def advice(self) -> str:
        """A sentence on the values that the program read last, if it read any."""
        lines = list(dict.fromkeys(place.split(" in ")[0] for place, _ in self.reads))[-MOST_LINES:]
        if not lines:
            return ""
        return (
            f". Before, the program read values at {', '.join(lines)}. If the error follows from one of them, give another number: "
            f"`--value {lines[-1]}=NUMBER`"
        )

    def unread(self) -> set[str]:
        """The lines of `value` at which the program read nothing."""
        return {line for line in self._by_line if line and not any(is_at(line, place) for place, _ in self.reads)}

    def _value_at(self, place: str) -> float | None:
        return next((value for line, value in self._by_line.items() if line and is_at(line, place)), self._value)

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        args = tuple(map(plain_number, args))
        if is_of_meshes(sys._getframe(1)):
            return func(*args, **kwargs)  # the ranks of a mesh are real numbers
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if tensors and func not in TO_A_DEVICE and all(hasattr(each, HAS_RANKS) for each in tensors):
            return tree_map_only(torch.Tensor, with_ranks, func(*args, **kwargs))
        if func in NUMBERS:
            if any(is_on_meta(each) for each in args):
                return self._number(func, args[0], sys._getframe(1))
            return func(*args, **kwargs)
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__):
            return func(self._filled(args[0], func, sys._getframe(1)), *args[1:], **kwargs)
        if func is torch.Tensor.__format__ and is_on_meta(args[0]) and args[0].dim() == 0:
            return format(self._read(func, sys._getframe(1)), args[1])
        if func is F.scaled_dot_product_attention:
            return _C.planned_attention(*map(on_meta, args), **{name: on_meta(each) for name, each in kwargs.items()})
        if (func is torch.tensor and args == ([],)) or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)  # libraries ask an empty tensor for the default device
        if func is F.rms_norm and self._device_type == "cuda" and type(args[0]) is torch.Tensor:
            return rms_norm(*map(on_meta, args), **kwargs)
        if func is torch._grouped_mm and is_of_groups(*args, **kwargs):
            return GroupedProduct.apply(*map(on_meta, args), on_meta(kwargs["offs"]))
        if func is torch.Tensor.to:
            args = (args[0], *(torch.device("meta") if is_device(each) else each for each in args[1:]))
        elif func in TO_A_DEVICE:
            return on_meta(args[0])
        if kwargs.get("device") is not None or func in self._constructors:
            kwargs["device"] = torch.device("meta")
        kwargs.pop("pin_memory", None)
        kwargs.pop("generator", None)
        try:
            return func(*(on_meta(each) for each in args), **{name: on_meta(each) for name, each in kwargs.items()})
        except (NotImplementedError, RuntimeError) as error:
            if not NEEDS_VALUES.search(str(error)):
                raise
            return self._with_values(func, args, kwargs, sys._getframe(1))

    def _with_values(self, func: Function, args: Any, kwargs: Any, caller: FrameType) -> Any:
        """The result of an operator on plain tensors whose kernel needs values, with the same value for all elements. Gradients pass if whole numbers and
        truth values are enough.
        """
        kwargs.pop("device", None)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        for are_floats_filled in (False, True):
            if not {type(each) for each in tensors} <= {torch.Tensor, torch.nn.Parameter}:
                break
            if are_floats_filled and any(each.requires_grad for each in tensors):
                break

            def given(tensor: torch.Tensor, fills: bool = are_floats_filled) -> torch.Tensor:
                is_kept = tensor.is_floating_point() and not fills
                return on_meta(tensor) if is_kept else self._filled(tensor, func, caller)

            with suppress(NotImplementedError, RuntimeError):
                args, kwargs = tree_map_only(torch.Tensor, given, (args, kwargs))
                return tree_map_only(torch.Tensor, on_meta, func(*args, **kwargs))
        raise ValueError(
            f"[dry_run] {_C.program_line()} calls {func.__name__}, which needs values, and a dry run has none. Leave the call "
            "out of the dry run."
        )

    def _filled(self, tensor: torch.Tensor, func: Function, caller: FrameType) -> torch.Tensor:
        """`tensor`, with the value that a read gives for each element."""
        if not tensor.is_meta:
            return tensor
        return torch.full(tensor.shape, self._read(func, caller), dtype=tensor.dtype, device="cpu")

    def _number(self, func: Function, tensor: torch.Tensor, caller: FrameType) -> Any:
        value = self._read(func, caller)
        return of_dtype(tensor, value) if func is torch.Tensor.item else NUMBERS[func](value)

    def _read(self, func: Function, caller: FrameType) -> float:
        caller = caller_of_methods(caller)
        if _C.is_of_a_library(caller.f_code.co_filename):
            return 1 if self._value is None else self._value
        place, name = _C.program_line(), func.__name__
        value = self._value_at(place)
        if value is None:
            raise NoValue(place, name)
        self.reads[place, name] += 1
        return value


def is_at(line: str, place: str) -> bool:
    """Whether "train.py:12" is "examples/train.py:12 in Model.forward"."""
    return f"/{place.split(' in ')[0]}".endswith(f"/{line.removeprefix('/')}")


def with_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, which stays on the CPU: a program may read the ranks of a mesh."""
    setattr(tensor, HAS_RANKS, True)
    return tensor


def kept_ranks() -> AbstractContextManager[Any]:
    ranks_of: Any = DeviceMesh.mesh.fget  # type: ignore[attr-defined]
    return mock.patch.object(DeviceMesh, "mesh", property(lambda mesh: with_ranks(ranks_of(mesh))))


def is_on_meta(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def is_device(value: object) -> bool:
    return isinstance(value, str | torch.device) or type(value) is int


def plain_number(value: Any) -> Any:
    """`value` as C++ takes it: a RankNumber becomes an int."""
    return value.__index__() if type(value) is RankNumber else value


def caller_of_methods(caller: FrameType) -> FrameType:
    """The frame that called the method, if `caller` is one of torch's methods in Python, or a block under a device."""
    while caller.f_globals.get("__name__") in METHODS and caller.f_back is not None:
        caller = caller.f_back
    return caller


def is_of_meshes(caller: FrameType) -> bool:
    caller = caller_of_methods(caller)
    name: str = caller.f_globals.get("__name__", "")
    return name.startswith(("torch.distributed.device_mesh", "torch.distributed._mesh_layout"))


def of_dtype(tensor: torch.Tensor, value: float) -> float:
    """`value` as the Python number that an element of `tensor` would be."""
    if tensor.dtype == torch.bool:
        return bool(value)
    return value if tensor.dtype.is_floating_point or tensor.dtype.is_complex else int(value)


def is_of_groups(left: Any, right: Any, *, offs: Any = None, **kwargs: Any) -> bool:
    """Whether these are operands of grouped_mm whose dtype torch does not take on meta: plain rows, and a matrix for each group of them."""
    are_plain = type(left) is torch.Tensor and type(right) in (torch.Tensor, torch.nn.Parameter)
    return are_plain and left.dim() == 2 and right.dim() == 3 and left.dtype != torch.bfloat16 and offs is not None


class GroupedProduct(torch.autograd.Function):
    """grouped_mm of such operands."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, matrices: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(rows, matrices, offs)
        return torch.ops.shardwise.grouped_rows(rows, matrices, offs, 0, 0)

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (rows, matrices, offs), ops = context.saved_tensors, torch.ops.shardwise
        of_rows = ops.grouped_rows(grad, matrices.mT, offs, 0, 0)
        return of_rows, ops.grouped_matrices(rows, grad, offs, None, len(matrices), 0, 0), None


def on_meta(value: Any) -> Any:
    """`value`, with plain tensors of the CPU replaced by tensors on meta; also those in a list or tuple. A parameter stays the same object."""
    if type(value) is torch.Tensor and not value.is_meta:
        return value.to("meta")
    if type(value) is torch.nn.Parameter and not value.is_meta:
        torch.utils.swap_tensors(value, torch.nn.Parameter(value.to("meta"), value.requires_grad))
    if type(value) in (list, tuple) and any(type(each) is torch.Tensor for each in value):
        return type(value)(map(on_meta, value))
    return value


def rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """rms_norm by the kernel for GPUs. On meta, torch composes it of operators that keep more."""
    return torch.ops.aten._fused_rms_norm(input, list(normalized_shape), weight, eps)[0]
