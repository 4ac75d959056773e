"""The cross entropy of logits that are sharded by class."""

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh


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
