"""The base class of layers with sharded parameters: makes and draws the parameters, and sets and gathers whole values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh, mesh_or_world
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement

InitType = str | Callable[[torch.Tensor], Any]


class LayerOptions(TypedDict, total=False):
    """The keyword arguments that all layers have."""

    mesh: DeviceMesh | None
    mesh_dim: int | str
    device: torch.device | str | None
    dtype: torch.dtype | None


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
