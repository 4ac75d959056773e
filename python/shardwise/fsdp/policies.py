"""In which dtypes a fully sharded module computes and reduces, and where its parameters are kept."""

from dataclasses import dataclass

import torch

__all__ = ["CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of one module's forward and backward; sharded parameters and their gradients keep the parameter's own.

    `param_dtype`: parameters are gathered and used in it. `reduce_dtype`: gradients are added up in it, after a backward without
    synchronization, too; without it halves are added in float32 and sent as they are. A sum in a wider dtype sends no more. `output_dtype`:
    floating-point outputs are cast to it. `cast_forward_inputs`: floating-point inputs are cast to `param_dtype`.

    >>> policy = sw.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, mp_policy=policy)
    >>> model(torch.ones(2, 8)).dtype, model.weight.dtype
    (torch.bfloat16, torch.float32)
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """Parameters, gradients and optimizer states are kept on the device of the mesh.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, offload_policy=sw.fsdp.OffloadPolicy())
    >>> model.weight.device
    device(type='cpu')
    """


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """They are kept in the memory of the host, which they are on a mesh of CPUs; `pin_memory` has no meaning there.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, offload_policy=sw.fsdp.CPUOffloadPolicy())
    >>> model.weight.device
    device(type='cpu')
    """

    pin_memory: bool = True
