"""DTensor: the class of every distributed tensor."""

from typing import Any

import torch

from shardwise import _C
from shardwise._C import DeviceMesh, Placement, distribute_tensor

__all__ = ["DTensor", "distribute_tensor"]


class DTensor(torch.Tensor):
    """One logical tensor whose pieces live on the ranks of a mesh. Every operator of torch works on it, in C++."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    from_local = staticmethod(_C.from_local)
    to_local = _C.to_local
    redistribute = _C.redistribute
    full_tensor = _C.full_tensor
    device_mesh = property(_C.mesh_of)
    placements = property(_C.placements_of)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        pieces = _C.to_pieces(self.detach())
        local = f"local_tensor={pieces[0]}" if len(pieces) == 1 else f"local_tensors={pieces}"
        return f"DTensor({local}, device_mesh={self.device_mesh}, placements={self.placements})"


_C.set_tensor_class(DTensor)
