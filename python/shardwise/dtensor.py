"""DTensor: the class of every distributed tensor."""

import copy
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch

from shardwise import _C, _tracing
from shardwise._C import Placement, distribute_tensor
from shardwise._dtensor_spec import DTensorSpec, TensorMeta
from shardwise.device_mesh import DeviceMesh

__all__ = ["DTensor", "distribute_tensor"]

Method = TypeVar("Method", bound=Callable[..., Any])


def _reader(method: Method) -> Method:
    """Makes `method` one that a rank may call alone: a message that starts within it is an error."""
    guard = _C.Reading(method.__name__)

    @wraps(method)
    def read(*args: Any, **kwargs: Any) -> Any:
        with guard:
            return method(*args, **kwargs)

    return cast(Method, read)


class DTensor(torch.Tensor):
    """One logical tensor whose pieces live on the ranks of a device mesh.

    Make one with DTensor.from_local, distribute_tensor, or a factory such as shardwise.zeros. `shape` is the shape of the whole tensor, in
    elements. Every operator of torch works on it, in C++, and returns DTensors. An operator without a sharding rule gathers its inputs, and
    warns once.

    >>> x = sw.distribute_tensor(torch.arange(10.0), mesh, [sw.Shard(0)])
    >>> y = x * 2 + 1
    >>> y.shape, y.placements, y.to_local()
    (torch.Size([10]), (Shard(0),), tensor([1., 3., 5.]))
    >>> y.sum().item()
    100.0
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    # set_tensor_class() replaces from_local and to_local by faster slots of the same behaviour, and adds the slots of these two.
    device_mesh: DeviceMesh
    placements: tuple[Placement, ...]

    from_local = staticmethod(_C.from_local)
    to_local = _C.to_local
    redistribute = _C.redistribute
    full_tensor = _C.full_tensor

    def __new__(
        cls, local_tensor: torch.Tensor | None = None, spec: DTensorSpec | None = None, *, requires_grad: bool = False
    ) -> "DTensor":
        """A leaf DTensor of `spec` whose piece on this rank is `local_tensor`, aliased. Raises ValueError if they do not fit, and TypeError
        without a spec: from_local and distribute_tensor need none."""
        if not isinstance(local_tensor, torch.Tensor) or not hasattr(spec, "tensor_meta"):
            raise TypeError(
                "[DTensor] is not constructed from values. Use DTensor.from_local(local, mesh, placements) or "
                "distribute_tensor(tensor, mesh, placements)."
            )
        if local_tensor.requires_grad and not requires_grad:
            warnings.warn(
                "To construct a DTensor, pass local_tensor.detach(), and requires_grad as the result's: the history of "
                "local_tensor is not kept. DTensor.from_local keeps it.",
                stacklevel=2,
            )
        assert spec is not None
        meta = spec.tensor_meta
        if meta is None or meta.dtype != local_tensor.dtype:
            raise ValueError(
                f"[DTensor] local_tensor is of dtype {local_tensor.dtype}, the spec's tensor_meta is {meta}. Give "
                "TensorMeta(shape, stride, dtype) of the whole tensor."
            )
        result = _C.from_local(local_tensor.detach(), spec.mesh, spec.placements, shape=meta.shape, stride=meta.stride)
        result.requires_grad_(requires_grad)
        if cls is not DTensor:
            result.__class__ = cls
            own = getattr(cls.__torch_dispatch__, "__func__", None)  # a builtin, which disables it, has none
            if own is not None and own is not DTensor.__torch_dispatch__.__func__:  # type: ignore[attr-defined]
                _C.dispatch_to_class(result)
        return result

    @property
    def _local_tensor(self) -> torch.Tensor:
        """This rank's piece, without autograd history: to_local() under torch.no_grad(). The same object each time, unless others hold the piece."""
        with torch.no_grad():
            return _C.to_local(self)

    @property
    def _spec(self) -> DTensorSpec:
        """The mesh, the placements and the whole tensor's shape, strides and dtype."""
        return DTensorSpec(self.device_mesh, self.placements, TensorMeta(self.shape, self.stride(), self.dtype))

    @_spec.setter
    def _spec(self, spec: DTensorSpec) -> None:
        """This rank's piece becomes that of another layout; nothing is sent."""
        self.data = DTensor(self._local_tensor, spec)

    @_reader
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """This rank's part; nothing is sent. "stale": a view of other ranks' values, which changed since they were received."""
        absent = "stale" if _C.is_stale(self) else ""
        pieces = [] if absent else _C.detached_pieces(self, "print")
        local = absent or (f"local_tensor={_text(pieces[0])}" if len(pieces) == 1 else f"local_tensors={pieces}")
        return f"DTensor({local}, device_mesh={self.device_mesh}, placements={self.placements})"

    def __format__(self, format_spec: str) -> str:
        """Formats the value of a 0-dim tensor. With a `format_spec` this is collective over the mesh. Without one nothing is sent: the result is
        the repr, unless the tensor is replicated. Other tensors give their repr."""
        if self.dim() == 0 and format_spec:
            return format(self.item(), format_spec)
        if self.dim() == 0 and all(placement.is_replicate() for placement in self.placements):
            pieces = [] if _C.is_stale(self) else _C.detached_pieces(self, "format")
            if len(pieces) == 1 and type(pieces[0]) is torch.Tensor:
                return format(pieces[0], format_spec)
        return object.__format__(self, format_spec)

    @_reader
    def data_ptr(self) -> int:
        """The address of the values. Raises ValueError unless this rank holds all of them in one block of memory, in the order of stride()."""
        return _C.whole_piece(self, "data_ptr").data_ptr()

    @_reader
    def __dlpack__(self, **options: Any) -> Any:
        """Shares all values with another library. Raises ValueError as data_ptr does: to_local() shares this rank's piece."""
        return _C.whole_piece(self, "dlpack").__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """The device of __dlpack__()."""
        return _C.whole_piece(self, "dlpack").__dlpack_device__()

    @_reader
    def tolist(self) -> Any:
        """All values as nested lists. Sends nothing: raises ValueError unless this rank holds all of them. full_tensor() gathers them."""
        return _C.whole_piece(self, "tolist").tolist()

    @_reader
    def numpy(self, *, force: bool = False) -> "np.ndarray[Any, Any]":
        """All values as an array, which shares their memory. Sends nothing: raises ValueError unless this rank holds all of them.
        full_tensor() gathers them."""
        _C.whole_piece(self, "numpy")  # raises the error
        return self.to_local().numpy(force=force)

    # torch calls the Python function once per element in memory.

    def apply_(self, callable: Any) -> "DTensor":
        """Raises NotImplementedError: call it on pieces."""
        raise _of_pieces("apply_", "f")

    def map_(self, tensor: torch.Tensor, callable: Any) -> "DTensor":
        """Raises NotImplementedError, as apply_ does."""
        raise _of_pieces("map_", "other.to_local(), f")

    def map2_(self, x: torch.Tensor, y: torch.Tensor, callable: Any) -> "DTensor":
        """Raises NotImplementedError, as apply_ does."""
        raise _of_pieces("map2_", "x.to_local(), y.to_local(), f")

    # torch's own two look up the device of the tensor's dispatch key, and a distributed tensor's key has none.

    def new_tensor(
        self,
        data: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> torch.Tensor:
        """A replicated DTensor of `data`, which must be equal on every rank, on this tensor's mesh. If `device` is of another type than the
        mesh, the result is a plain tensor.
        """
        if isinstance(data, DTensor):
            return data.detach().clone().to(device, dtype or self.dtype).requires_grad_(requires_grad)
        values = torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, pin_memory=pin_memory)
        if values.device.type == self.device.type:
            everywhere = [_C.Replicate()] * self.device_mesh.ndim
            values = distribute_tensor(values, self.device_mesh, everywhere, src_data_rank=None)
        return values.requires_grad_(requires_grad)

    def new(self, *args: Any, device: Any = None) -> torch.Tensor:  # type: ignore[override]
        """An empty tensor of these sizes, or the values of a sequence: the old spelling of new_empty and new_tensor. Called on a sparse tensor with
        indices, values and a size, it is torch.sparse_coo_tensor."""
        if self.is_sparse and len(args) > 1 and isinstance(args[0], torch.Tensor):
            return torch.sparse_coo_tensor(*args)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].detach()
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return self.new_tensor(args[0], device=device)
        size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return self.new_empty(size, device=device)

    @_reader
    def __deepcopy__(self, memo: dict[int, Any]) -> "DTensor":
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "[DTensor] only leaves of the autograd graph can be deep-copied. Use detach() or clone()."
            )
        rebuild, (pieces, *rest) = self.__reduce_ex__(4)
        copies = [piece.clone() if type(piece) is torch.Tensor else copy.deepcopy(piece, memo) for piece in pieces]
        result: DTensor = rebuild(copies, *copy.deepcopy(rest, memo))
        memo[id(self)] = result
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        return result

    @_reader
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, tuple[Any, ...]]:
        """Pickles this rank's pieces, the mesh by its ranks, the placements and this rank. Every rank pickles and unpickles its own part."""
        form = _C.local_form_of(self)
        layout = (self.device_mesh, self.placements, tuple(self.shape), self.stride(), self.dtype, form)
        entries = (self.sparse_dim(), self.is_coalesced()) if self.is_sparse else None
        rest = (self.requires_grad, self.__dict__, entries, self.is_meta, self.device_mesh.get_rank())
        return rebuild_dtensor, (_C.detached_pieces(self, "pickle"), *layout, *rest)

    # For torch's tracers; docs/compile.md describes them.

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Called for traced tensors, and for those of a derived class that has its own and calls this one. All others are dispatched in C++."""
        return _tracing.run_traced(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], _C.TensorLayout]:
        """The names of the attributes that hold this rank's pieces, and everything else that a graph of this tensor depends on."""
        layout = _C.layout_of(self)
        return _tracing.names_of_pieces(self, layout), layout

    @staticmethod
    def __tensor_unflatten__(
        inner_tensors: dict[str, torch.Tensor], layout: _C.TensorLayout, outer_size: Any, outer_stride: Any
    ) -> torch.Tensor:
        return _tracing.unflatten(inner_tensors, layout)

    @classmethod
    def __metadata_guard__(cls, traced: _C.TensorLayout, layout: _C.TensorLayout) -> bool:
        """Whether a graph that was made for one layout is valid for the other, given that the tensors have the sizes that the graph asks for."""
        return traced.fits_graphs_of(layout)

    def _stable_hash_for_caching(self) -> str:
        """Raises the exception that keeps torch from caching graphs of DTensors for other processes."""
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

        raise BypassAOTAutogradCache("graphs of DTensors are for the meshes of the process that traced them")

    def __coerce_tangent_metadata__(self) -> torch.Tensor:
        """A tensor laid out as the graph expects the gradient of this result: replicated if the result is Partial."""
        return _C.as_gradient(self)

    def __coerce_same_metadata_as_tangent__(
        self, layout: Any, expected_type: type | None = None
    ) -> torch.Tensor | None:
        """This gradient as the graph expects it."""
        if expected_type is not None or not isinstance(layout, _C.TensorLayout):
            return None
        return layout.take(self)

    # These import torch.distributed.checkpoint when called: only programs that save need it. If the class of the local tensor has these three
    # methods, they are called.

    def __create_write_items__(self, fqn: str, object: Any) -> Any:
        from shardwise.checkpoint import chunks

        own: Any = _C.subclass_in(self)
        if hasattr(own, "__create_write_items__"):
            return own.__create_write_items__(fqn, object)
        return chunks.write_items(self, fqn, self._saved_boxes(), self.size())

    @_reader
    def __create_chunk_list__(self) -> Any:
        """A load calls it on all ranks before it writes to the pieces. So the call counts as a write: views are fetched and parameters
        gathered again."""
        from shardwise.checkpoint import chunks

        _C.note_write(self)
        own: Any = _C.subclass_in(self)
        if hasattr(own, "__create_chunk_list__"):
            return own.__create_chunk_list__()
        return chunks.chunks(self._saved_boxes())

    @_reader
    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        from shardwise.checkpoint import chunks

        own: Any = _C.subclass_in(self)
        if hasattr(own, "__get_tensor_shard__"):
            return own.__get_tensor_shard__(index)
        return chunks.piece_at(index, self._saved_boxes(), _C.detached_pieces(self, "checkpoint"))

    def _saved_boxes(self) -> list[tuple[list[int], list[int]]]:
        """(offsets, sizes) of this rank's pieces. Raises ValueError for Partial tensors, whose pieces are not values."""
        if any(placement.is_partial() for placement in self.placements):
            raise ValueError(
                f"[checkpoint] Any checkpointing related operations are not supported for a tensor placed as {list(self.placements)}: it "
                "holds terms of a sum, not values. Redistribute it to Shard or Replicate first."
            )
        return _C.boxes_of(self)


def _text(piece: torch.Tensor) -> str:
    """The piece as it prints, or its class and shape if the class refuses the operators of printing."""
    if type(piece) is torch.Tensor:
        return str(piece)
    try:
        return str(piece)
    except Exception:
        return f"{type(piece).__name__}(shape={tuple(piece.shape)}, dtype={piece.dtype})"


def _of_pieces(method: str, arguments: str) -> NotImplementedError:
    return NotImplementedError(
        f"[{method}] a function of Python is called with each element in memory, and ranks hold pieces. Call it on this rank's piece, "
        f"which is this tensor's memory: tensor.to_local().{method}({arguments})."
    )


def rebuild_dtensor(
    pieces: list[torch.Tensor],
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    local_form: str | int,
    requires_grad: bool,
    attributes: dict[str, Any],
    entries: tuple[int, bool] | None = None,
    is_meta: bool = False,
    saved_by: int | None = None,
) -> DTensor:
    """Unpickles a DTensor from this rank's pieces.

    `entries`: the number of sparse dims of a sparse tensor, and whether it is coalesced. `is_meta`: whether the tensor is on meta, which
    matters if there are no pieces. `saved_by`: the rank that pickled it; None in older files. Raises ValueError on another rank, unless the
    layout gives both ranks the same pieces.
    """
    if isinstance(local_form, int):  # files of version 0.1
        local_form = ("", "pieces", "no pieces")[local_form]
    sparse_dim, is_coalesced = entries or (0, False)
    tensor = _C.from_pieces(
        pieces, device_mesh, placements, shape, stride, dtype, local_form, sparse_dim, is_meta, saved_by
    )
    if is_coalesced:
        tensor._coalesced_(True)
    tensor.__dict__.update(attributes)
    tensor.requires_grad_(requires_grad)
    return tensor


_C.set_tensor_class(DTensor)
_tracing.register_placements()
