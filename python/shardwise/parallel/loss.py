"""Losses of logits that are sharded by class."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Replicate, Shard

LOSSES = (F.cross_entropy, F.nll_loss)


class loss_parallel(TorchFunctionMode):
    """A `with` block in which cross_entropy and nll_loss of a DTensor take plain labels and class weights.

        with loss_parallel():
            loss = F.cross_entropy(logits, labels)      # logits: Shard(-1), labels: plain
            loss.backward()

    If logits are sharded along the batch, plain labels are those of this rank's part of the batch; along other mesh dims they must be equal on
    all ranks. Targets that are probabilities have all classes. Plain class weights must be equal on all ranks. Raises ValueError for labels
    that do not fit this rank's logits. Logits that are sharded by class are never gathered, in the block or outside it.

    >>> logits = sw.zeros(2, 10, device_mesh=mesh, placements=[sw.Shard(-1)])
    >>> with sw.parallel.loss_parallel():
    ...     loss = F.cross_entropy(logits, torch.tensor([3, 9]))
    >>> round(loss.item(), 4)
    2.3026
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in LOSSES:
            for name, value in zip(("input", "target", "weight"), args, strict=False):
                kwargs[name] = value
            args = args[3:]
            assert not args, "torch hands the arguments after `weight` on by name"
            _distribute_labels(kwargs)
        return func(*args, **kwargs)


def _distribute_labels(arguments: dict[str, Any]) -> None:
    """Makes DTensors of plain labels and class weights if the logits are a DTensor."""
    logits, labels, weight = arguments["input"], arguments["target"], arguments.get("weight")
    if not isinstance(logits, DTensor):
        return
    if type(labels) is torch.Tensor:
        is_class = labels.dim() < logits.dim()
        _check_fit(labels, logits, is_class)
        placements = [_of_labels(placement, logits.dim(), is_class) for placement in logits.placements]
        shape = _label_shape(logits.shape, logits, is_class)
        arguments["target"] = DTensor.from_local(labels, logits.device_mesh, placements, shape=shape)
    if isinstance(weight, torch.Tensor) and not isinstance(weight, DTensor):
        arguments["weight"] = DTensor.from_local(weight, logits.device_mesh)


def _check_fit(labels: torch.Tensor, logits: DTensor, is_class: bool) -> None:
    """Raises ValueError if the shape of the labels does not fit this rank's logits."""
    if logits.device_mesh.get_coordinate() is None:
        return
    piece = logits._local_tensor.shape
    if list(labels.shape) != _label_shape(piece, logits, is_class):
        raise ValueError(
            f"[loss_parallel] plain labels of shape {list(labels.shape)} do not fit this rank's logits of shape {list(piece)}, placed as "
            f"{list(logits.placements)}. Give this rank's labels, or a DTensor."
        )


def _label_shape(shape: torch.Size, logits: DTensor, is_class: bool) -> list[int]:
    """The shape of the labels of logits of `shape` (whole or a piece): without the dim of classes, or for probabilities with all classes."""
    class_dim = _class_dim(logits.dim())
    classes = [] if is_class else [logits.size(class_dim)]
    return [*shape[:class_dim], *classes, *shape[class_dim + 1 :]]


def _of_labels(placement: Placement, n_dims: int, is_class: bool) -> Placement:
    """The placement of labels for logits of `placement`: without the dim of classes, or with all classes, and never Partial."""
    class_dim = _class_dim(n_dims)
    if placement.is_partial() or placement.is_shard(class_dim):
        return Replicate()
    if is_class and isinstance(placement, Shard) and placement.dim > class_dim:
        return Shard(placement.dim - 1, placement.sizes)
    return placement


def _class_dim(n_dims: int) -> int:
    return 1 if n_dims > 1 else 0


class VocabParallelCrossEntropy(nn.Module):
    """nn.CrossEntropyLoss with logits sharded along the classes: dim 1, or dim 0 if there is no batch dim. Logits are never moved.

    Logits are a DTensor, with a DTensor of targets; or a torch.Tensor of this rank's classes, any number of them, with targets that are the
    same on every rank. In the second case the loss is plain. `mesh`, `mesh_dim`: the mesh and mesh dim of plain logits; default: all ranks.

    >>> logits = sw.zeros(2, 10, device_mesh=mesh, placements=[sw.Shard(1)])  # ten classes, sharded
    >>> labels = sw.distribute_tensor(torch.tensor([3, 9]), mesh, [sw.Replicate()])
    >>> round(sw.parallel.VocabParallelCrossEntropy()(logits, labels).item(), 4)  # the logarithm of 10
    2.3026
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        mesh: DeviceMesh | None = None,
        mesh_dim: int | str = 0,
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.mesh, self.mesh_dim = mesh, mesh_dim

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _C.vocab_parallel_cross_entropy(
            input, target, self.ignore_index, self.reduction, self.label_smoothing, self.mesh, self.mesh_dim
        )
