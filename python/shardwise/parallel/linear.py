"""Linear layers: each rank computes some output columns, or a term of the sum."""

from typing import ClassVar, Unpack

import torch
from torch import nn

from shardwise import _C
from shardwise.parallel.layer import InitType, LayerOptions, ParallelLayer


class LinearOptions(LayerOptions, total=False):
    """The keyword arguments of both linear layers."""

    master_weight: torch.Tensor | None
    master_bias: torch.Tensor | None


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
        master_weight: torch.Tensor | None = None,
        master_bias: torch.Tensor | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(init_type, **options)
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
        **options: Unpack[LinearOptions],
    ) -> None:
        self.gather_output = gather_output
        super().__init__(in_features, out_features, bias, init_type, stride, **options)

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
        **options: Unpack[LinearOptions],
    ) -> None:
        self.input_is_parallel = input_is_parallel
        super().__init__(in_features, out_features, bias, init_type, stride, **options)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _C.row_parallel_linear(input, self.weight, self.bias, self.input_is_parallel, self.mesh_dim)
