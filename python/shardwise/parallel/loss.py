"""The loss of logits that are sharded by class."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from shardwise import _C
from shardwise.dtensor import DTensor
from shardwise.placement_types import Placement, Replicate, Shard

__all__ = ["loss_parallel"]

LOSSES = (F.cross_entropy, F.nll_loss)


class loss_parallel(TorchFunctionMode):
    """A `with` block in which cross_entropy and nll_loss of a DTensor take plain labels and class weights.

        with loss_parallel():
            loss = F.cross_entropy(logits, labels)      # logits: Shard(-1), labels: plain
            loss.backward()

    Plain labels are this rank's: of its part of the batch where logits are sharded along the batch, replicas along other mesh
    dims. Plain class weights are replicas. Raises ValueError for labels that do not fit this rank's logits. Logits that are sharded by class are never gathered, in the block or outside it.

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
            with _C.outside_forward():  # a piece is read for its shape
                _distribute_labels(kwargs)
        return func(*args, **kwargs)


def _distribute_labels(arguments: dict[str, Any]) -> None:
    """Makes DTensors of plain labels and class weights, where the logits are one."""
    logits = arguments["input"]
    if not isinstance(logits, DTensor):
        return
    labels, weight = arguments["target"], arguments.get("weight")
    if type(labels) is torch.Tensor:
        is_class = labels.dim() < logits.dim()
        _check_fit(labels, logits, is_class)
        placements = [_of_labels(placement, logits.dim(), is_class) for placement in logits.placements]
        arguments["target"] = DTensor.from_local(labels, logits.device_mesh, placements)
    if isinstance(weight, torch.Tensor) and not isinstance(weight, DTensor):
        replicas = [Replicate()] * logits.device_mesh.ndim
        arguments["weight"] = DTensor.from_local(weight, logits.device_mesh, replicas)


def _check_fit(labels: torch.Tensor, logits: DTensor, is_class: bool) -> None:
    """Raises ValueError where labels are not of this rank's logits."""
    piece = list(logits._local_tensor.shape)
    class_dim = 1 if logits.dim() > 1 else 0
    if is_class and list(labels.shape) != piece[:class_dim] + piece[class_dim + 1 :]:
        raise ValueError(
            f"[loss_parallel] plain labels of shape {list(labels.shape)} do not fit this rank's logits of shape {piece}, placed as "
            f"{list(logits.placements)}. Give this rank's labels, or a DTensor."
        )


def _of_labels(placement: Placement, n_dims: int, is_class: bool) -> Placement:
    """How labels lie beside logits of `placement`: they lack its dim of classes, unless they are probabilities. They are no terms of a sum."""
    if placement.is_partial():
        return Replicate()
    class_dim = 1 if n_dims > 1 else 0
    if not is_class or not isinstance(placement, Shard) or placement.dim < class_dim:
        return placement
    return Replicate() if placement.dim == class_dim else Shard(placement.dim - 1, placement.sizes)
