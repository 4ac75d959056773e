"""Layers with sharded parameters: their base, linear layers, and an embedding table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh, mesh_or_world
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Shard

InitType = str | Callable[[torch.Tensor], Any]


class Sharding(NamedTuple):
    """A parameter's whole size, its placement, and the number of blocks that are sharded separately."""

    size: tuple[int, ...]
    placement: Placement
    stride: int


class ParallelLayer(nn.Module):
    """The base of the layers: each parameter is one whole (master) tensor, sharded over the ranks along one mesh dim.

    `init_type`: a name ("xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal", "uniform", "zeros",
    "ones", "none") or a function that fills a tensor in place, like those of torch.nn.init. Each rank draws only its own part of the
    master tensor. The values are a function of torch.manual_seed's seed, and the same on any number of ranks.
    `mesh`: default: that of the innermost `with mesh:`, or all ranks. `mesh_dim`: number or name.
    `device="meta"`: parameters are plain tensors on meta, without values; to_empty(device=...) makes the DTensors, and
    reset_parameters() draws the values.
    """

    weight: nn.Parameter

    def __init__(
        self,
        init_type: InitType,
        mesh: DeviceMesh | None = None,
        mesh_dim: int | str = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kind = torch.device(device or torch.get_default_device()).type
        self.mesh = mesh_or_world(mesh, "cpu" if kind == "meta" else kind)
        if device is not None and kind not in ("meta", self.mesh.device_type):
            raise ValueError(
                f"[{type(self).__name__}] device {str(device)!r} is not the mesh's, {self.mesh.device_type!r}. Leave it out, "
                "or use 'meta'."
            )
        self.mesh_dim = _C.mesh_dim_number(self.mesh, mesh_dim)
        self.init_type = init_type
        self._dtype = dtype or torch.get_default_dtype()
        self._is_meta = kind == "meta"
        self._shardings: dict[str, Sharding] = {}

    def _add_parameter(self, name: str, size: tuple[int, ...], placement: Placement, stride: int = 1) -> None:
        self._shardings[name] = Sharding(size, placement, stride)
        made = torch.empty(size, dtype=self._dtype, device="meta") if self._is_meta else self._make(name, self._dtype)
        self.register_parameter(name, nn.Parameter(made))

    def _make(self, name: str, dtype: torch.dtype) -> DTensor:
        size, placement, stride = self._shardings[name]
        return _C.parallel_weight(size, placement, self.mesh, self.mesh_dim, stride, dtype)

    def _initialize(self, parameter: torch.Tensor, init_type: InitType) -> None:
        if isinstance(init_type, str):
            _C.initialize_(parameter, init_type)
        elif not parameter.is_meta:
            with torch.no_grad():
                init_type(parameter)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ParallelLayer:
        """For to_empty() and similar: a parameter that leaves the meta device becomes this rank's part, and nothing larger is allocated."""
        for name, parameter in self._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            probe = fn(torch.empty(0, dtype=parameter.dtype, device="meta"))
            if not probe.is_meta:
                made = self._make(name, probe.dtype)
                self._parameters[name] = nn.Parameter(made, requires_grad=parameter.requires_grad)
        return super()._apply(fn, recurse)

    def get_master_weight(self) -> torch.Tensor:
        """The whole weight, plain, on every rank. Collective over the mesh."""
        return _C.full_tensor(self.weight.detach())

    def set_master_weight(self, master: torch.Tensor) -> None:
        """Sets the whole weight, which must be equal on all ranks. For a plain tensor nothing is sent."""
        _C.set_master_(self.weight, master)


class ParallelLinear(ParallelLayer):
    """The base of both linear layers: a weight [out, in] and a bias [out] that starts at 0."""

    bias: nn.Parameter | None
    _is_rowwise: ClassVar[bool]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        init_type: InitType,
        stride: int,
        master_weight: torch.Tensor | None,
        master_bias: torch.Tensor | None,
        mesh: DeviceMesh | None,
        mesh_dim: int | str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(init_type, mesh, mesh_dim, device, dtype)
        self.in_features, self.out_features, self.stride = in_features, out_features, stride
        of_weight, of_bias, _, _ = _C.layer_placements(False, self._is_rowwise)
        self._add_parameter("weight", (out_features, in_features), of_weight, stride)
        if bias:
            self._add_parameter("bias", (out_features,), of_bias, stride)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()
        if master_weight is not None:
            self.set_master_weight(master_weight)
        if master_bias is not None:
            self.set_master_bias(master_bias)

    def reset_parameters(self) -> None:
        """Draws the weight, and zeros the bias."""
        self._initialize(self.weight, self.init_type)
        if self.bias is not None:
            self._initialize(self.bias, "zeros")

    def get_master_bias(self) -> torch.Tensor | None:
        """The whole bias, plain, on every rank. Collective over the mesh."""
        return None if self.bias is None else _C.full_tensor(self.bias.detach())

    def set_master_bias(self, master: torch.Tensor) -> None:
        """Sets the whole bias, which must be equal on all ranks."""
        if self.bias is None:
            raise ValueError(f"[{type(self).__name__}] the layer has no bias to set. Make it with bias=True.")
        _C.set_master_(self.bias, master)

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return text + (f", stride={self.stride}" if self.stride != 1 else "")


class ColumnParallelLinear(ParallelLinear):
    """input @ weight.T + bias, with weight and bias sharded along out_features.

    `gather_output`: True: every rank gets all columns of the output. False: columns stay sharded (a plain output has this rank's columns).
    `stride`: the number of blocks of the output: 3 for a weight that holds queries, keys and values. Each block is sharded over all ranks, so
    that a rank has the queries, keys and values of the same heads. The output is in the order of the master weight for any stride.
    `master_weight`, `master_bias`: the whole weight and bias, equal on all ranks, instead of random values.
    ParallelLayer describes the other arguments.

    >>> layer = sw.parallel.ColumnParallelLinear(8, 30, gather_output=False)  # 8, 8, 8 and 6 features
    >>> layer.weight.shape, layer.weight.placements, layer(torch.ones(2, 8)).shape
    (torch.Size([30, 8]), (Shard(0),), torch.Size([2, 8]))
    """

    _is_rowwise = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = True,
        init_type: InitType = "xavier_normal",
        stride: int = 1,
        *,
        master_weight: torch.Tensor | None = None,
        master_bias: torch.Tensor | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: int | str = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.gather_output = gather_output
        master = (master_weight, master_bias)
        super().__init__(in_features, out_features, bias, init_type, stride, *master, mesh, mesh_dim, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _C.column_parallel_linear(input, self.weight, self.bias, self.gather_output, self.mesh_dim)


class RowParallelLinear(ParallelLinear):
    """input @ weight.T + bias, with the weight sharded along in_features; the bias is whole, and added once.

    `input_is_parallel`: True: a plain input has only this rank's columns, as a column layer with gather_output=False gives them. For a DTensor
    its placements decide. `stride`: the number of blocks of the input, the same as that of the column layer. The other arguments are those of
    ColumnParallelLinear.

    >>> up = sw.parallel.ColumnParallelLinear(8, 30, gather_output=False)
    >>> down = sw.parallel.RowParallelLinear(30, 8, input_is_parallel=True)
    >>> down.weight.placements, down(up(torch.ones(2, 8))).shape
    ((Shard(1),), torch.Size([2, 8]))
    """

    _is_rowwise = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = False,
        init_type: InitType = "xavier_normal",
        stride: int = 1,
        *,
        master_weight: torch.Tensor | None = None,
        master_bias: torch.Tensor | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: int | str = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.input_is_parallel = input_is_parallel
        master = (master_weight, master_bias)
        super().__init__(in_features, out_features, bias, init_type, stride, *master, mesh, mesh_dim, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _C.row_parallel_linear(input, self.weight, self.bias, self.input_is_parallel, self.mesh_dim)


class ParallelEmbedding(ParallelLayer):
    """nn.Embedding with its table [num_embeddings, embedding_dim] sharded along the columns, or along the rows with dim=0.

    `max_norm`: rows that are looked up are renormalised in place by the norm of the whole row, also if its columns are on several ranks.
    `padding_idx`: that row starts at 0 and gets no gradient. `gather_output`: True: the result has the layout of the ids; for plain ids it is
    whole on every rank. False: columns stay sharded (a plain output has this rank's columns), and over sharded rows the result is Partial (a
    plain output is this rank's term). `master_weight`: the whole table, equal on all ranks, instead of random values. nn.Embedding and
    ParallelLayer describe the other arguments.

    >>> table = sw.parallel.ParallelEmbedding(100, 10)
    >>> table.weight.shape, table(torch.tensor([3, 99])).shape
    (torch.Size([100, 10]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        init_type: InitType = "xavier_normal",
        *,
        dim: int = 1,
        gather_output: bool = True,
        master_weight: torch.Tensor | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: int | str = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(init_type, mesh, mesh_dim, device, dtype)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq, self.sparse, self.gather_output = scale_grad_by_freq, sparse, gather_output
        self._add_parameter("weight", (num_embeddings, embedding_dim), Shard(dim))
        self.reset_parameters()
        if master_weight is not None:
            self.set_master_weight(master_weight)

    def reset_parameters(self) -> None:
        """Draws the table, and zeros the padding row."""
        self._initialize(self.weight, self.init_type)
        _C.zero_row_(self.weight, self.padding_idx)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        of_torch = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return _C.parallel_embedding(input, self.weight, *of_torch, self.gather_output, self.mesh_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
