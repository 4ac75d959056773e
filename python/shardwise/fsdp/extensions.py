"""Calls fsdp_pre_all_gather and fsdp_post_all_gather, by which the class of a parameter says what ranks send and builds the whole parameter."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.fsdp.policies import MixedPrecisionPolicy

HOOKS = ("fsdp_pre_all_gather", "fsdp_post_all_gather")


def has_extensions(name: str, parameter: torch.Tensor) -> bool:
    """Whether the class of `parameter`, or of its local tensor, has both hooks. Raises TypeError, naming `name`, if Shardwise cannot gather it."""
    own: Any = _C.subclass_in(parameter)
    given = [hook for hook in HOOKS if hasattr(parameter if own is None else own, hook)]
    if own is None:
        if given:
            raise TypeError(
                f"[fully_shard] {name} is a {type(parameter).__name__} with {given[0]} but without a __torch_dispatch__: parts of it would "
                "be plain tensors. Give the class a __torch_dispatch__, or leave the parameter out, with ignored_params={...}."
            )
        return False
    if len(given) < 2:
        raise TypeError(
            f"[fully_shard] {name} is a {type(own).__name__}, whose memory only its own operators read, and has "
            f"{f'no {(set(HOOKS) - set(given)).pop()}' if given else 'neither fsdp_pre_all_gather nor fsdp_post_all_gather'}. Give the "
            "class both, or leave the parameter out, with ignored_params={...}."
        )
    if _n_arguments(own) not in (1, 5):
        raise TypeError(
            f"[fully_shard] {name} is a {type(own).__name__} whose fsdp_pre_all_gather takes "
            f"{inspect.signature(own.fsdp_pre_all_gather)}. Let it take (mesh, outer_size, outer_stride, module, mp_policy), or (mesh)."
        )
    return True


def _n_arguments(own: Any) -> int:
    return len(inspect.signature(own.fsdp_pre_all_gather).parameters)


class Extension:
    """The calls of the hooks of one parameter."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
        """`mesh`: the mesh of fully_shard. If it has two dims, the class gets the second, over which parameters are sharded."""
        self.module, self.policy = module, policy
        self.mesh = mesh if mesh.ndim == 1 else mesh[(mesh.mesh_dim_names or ("",))[-1]]
        self.metadata: Any = None

    def pieces(self, sharded: torch.Tensor, sizes: Sequence[int]) -> tuple[list[torch.Tensor], str]:
        """The tensors to send for this rank's piece of a parameter of `sizes`; if its hook returns something else, a description of that."""
        own: Any = _C.subclass_in(sharded)
        if _n_arguments(own) == 1:
            given = own.fsdp_pre_all_gather(self.mesh)
        else:
            strides = torch.empty(sizes, device="meta").stride()
            given = own.fsdp_pre_all_gather(self.mesh, torch.Size(sizes), strides, self.module, self.policy)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            return [], _kind_of(given)
        tensors, self.metadata = given
        if not isinstance(tensors, (tuple, list)):
            return [], f"({_kind_of(tensors)}, metadata)"
        strange = next((each for each in tensors if not isinstance(each, torch.Tensor)), None)
        return ([], f"{_kind_of(strange)} among its tensors") if strange is not None else (list(tensors), "")

    def whole(
        self, name: str, sharded: torch.Tensor, gathered: list[torch.Tensor], kept: torch.Tensor | None
    ) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        own: Any = _C.subclass_in(sharded)
        is_cast = self.policy.param_dtype is not None and sharded.is_floating_point()
        dtype = self.policy.param_dtype if is_cast else sharded.dtype
        if kept is not None:
            # Autograd saved `kept`, which gets the same values again.
            with torch.autograd.grad_mode._unsafe_preserve_version_counter(kept):
                own.fsdp_post_all_gather(tuple(gathered), self.metadata, dtype, out=kept)
            return None
        made = own.fsdp_post_all_gather(tuple(gathered), self.metadata, dtype)
        if (
            not isinstance(made, (tuple, list))
            or len(made) != 2
            or not isinstance(made[0], torch.Tensor)
            or not isinstance(made[1], (tuple, list))
            or not all(isinstance(each, torch.Tensor) for each in made[1])
        ):
            raise TypeError(
                f"[fully_shard] {name}, a {type(own).__name__}: fsdp_post_all_gather returns {_kind_of(made)}. Return the whole tensor, and "
                "a tuple of the tensors that hold its memory."
            )
        return made[0], list(made[1])


def _kind_of(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(type(each).__name__ for each in value) or 'nothing'}"
    return type(value).__name__
