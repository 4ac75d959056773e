"""Policies: the dtypes in which a fully sharded module computes and reduces, and where its parameters are kept."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of one module's forward and backward. Sharded parameters and their gradients keep the dtype of the parameter.

    `param_dtype`: the dtype in which parameters are gathered and used. `reduce_dtype`: the dtype in which gradients are added up, also in a
    backward without synchronization; by default gradients of half precision are added in float32. Gradients are sent in their own dtype, so a
    wider `reduce_dtype` sends no more bytes. `output_dtype`: floating-point outputs are cast to it. `cast_forward_inputs`: floating-point
    inputs are cast to `param_dtype`.

    >>> policy = sw.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, mp_policy=policy)
    >>> model.weight.dtype, model(torch.ones(2, 8)).dtype
    (torch.float32, torch.bfloat16)
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """Keeps parameters, gradients and optimizer states on the device of the mesh.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, offload_policy=sw.fsdp.OffloadPolicy())
    >>> model.weight.device
    device(type='cpu')
    """


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Keeps parameters, gradients and optimizer states in host memory. On a CPU mesh they are already there, and `pin_memory` has no
    effect.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh, offload_policy=sw.fsdp.CPUOffloadPolicy())
    >>> model.weight.device
    device(type='cpu')
    """

    pin_memory: bool = True
