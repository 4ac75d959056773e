"""save_pretrained, generate and the Trainer of transformers, and accelerate, for models with our tensors."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.forward_scope import forward_of
from shardwise.interop.state_dicts import full_state_dict


def teach(module: ModuleType) -> None:
    """Replaces the methods of `module`'s classes that have a replacement here."""
    for owner in list(vars(module).values()):
        if not isinstance(owner, type) or owner.__module__ != module.__name__:
            continue
        for method, replacement in _REPLACEMENTS.items():
            if method in vars(owner):
                setattr(owner, method, replacement(vars(owner)[method]))


def _gathering(original: Any) -> Any:
    """In save_pretrained, which all ranks call: full values on the rank that saves."""

    @functools.wraps(original)
    def gather(
        self: Any,
        model_to_save: Any,
        state_dict: dict[str, Any],
        *arguments: Any,
        save_on_this_rank: bool = True,
        **options: Any,
    ) -> Any:
        if not any(isinstance(value, DTensor) for value in state_dict.values()):
            return original(self, model_to_save, state_dict, *arguments, save_on_this_rank=save_on_this_rank, **options)
        full = full_state_dict(state_dict, cpu_offload=True, keep=save_on_this_rank)
        return full if save_on_this_rank else {}

    return gather


def _has_our_tensors(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(isinstance(tensor, DTensor) for tensor in model.parameters())


def _sharded_already(original: Any) -> property:
    """Of a model: its placement and its gradients' sums are its own business. The Trainer leaves it as it is, and all ranks take
    part in saving it."""

    return property(lambda self: original.fget(self) or _has_our_tensors(self), doc=original.__doc__)


def _with_equal_batches(original: Any) -> Any:
    """When a Trainer makes its accelerator: all ranks read the same batches, as those of a tensor-parallel model do."""

    @functools.wraps(original)
    def create(self: Any, *arguments: Any, **options: Any) -> Any:
        n_ranks = dist.get_world_size() if dist.is_initialized() else 1
        if n_ranks > 1 and self.args.parallelism_config is None and _has_our_tensors(self.model):
            self.args.parallelism_config = import_module("accelerate").ParallelismConfig(tp_size=n_ranks)
        return original(self, *arguments, **options)

    return create


def _with_plain_results(original: Any) -> Any:
    """Losses and predictions as the Trainer adds up and gathers them: plain, and whole on every rank."""

    @functools.wraps(original)
    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        results = original(self, *arguments, **options)
        return pytree.tree_map_only(DTensor, lambda tensor: tensor.detach().full_tensor(), results)

    return step


def _as_one_forward(original: Any) -> Any:
    """generate(), which calls the model in a loop: ids that it appends to are plain, and so is what it gives."""

    @functools.wraps(original)
    def generate(self: Any, *arguments: Any, **options: Any) -> Any:
        if not _has_our_tensors(self):
            return original(self, *arguments, **options)
        with forward_of(self, arguments, options):
            results = original(self, *arguments, **options)
        return pytree.tree_map_only(DTensor, DTensor.full_tensor, results)

    return generate


def _without_wrapping(original: Any) -> Any:
    """In accelerate's prepare_model: no DistributedDataParallel around a model with our tensors, and no move to a device."""

    @functools.wraps(original)
    def prepare(
        self: Any, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False, **options: Any
    ) -> Any:
        if _has_our_tensors(model):
            device_placement, evaluation_mode = False, True
        return original(self, model, device_placement=device_placement, evaluation_mode=evaluation_mode, **options)

    return prepare


_REPLACEMENTS = {
    "gather_sharded_state_dict_for_save": _gathering,
    "is_distributed_loading_by_transformers": _sharded_already,
    "create_accelerator_and_postprocess": _with_equal_batches,
    "training_step": _with_plain_results,
    "prediction_step": _with_plain_results,
    "prepare_model": _without_wrapping,
    "generate": _as_one_forward,
}
