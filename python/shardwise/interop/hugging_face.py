"""save_pretrained, generate and the Trainer of transformers, for models with our tensors."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.forward_scope import forward_of
from shardwise.interop.accelerator import are_equal_batches, has_our_tensors, read_equal_batches, with_full_state
from shardwise.interop.replacements import replace_methods
from shardwise.interop.state_dicts import full_state_dict


def teach(module: ModuleType) -> None:
    """Replaces what has a replacement here in the classes of `module`."""
    replace_methods(module, _REPLACEMENTS)
    if module.__name__ == "transformers.trainer":
        trainer = vars(module)["Trainer"]
        trainer.__init__ = _with_optimizer_state(trainer.__init__)


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


def _sharded_already(original: Any) -> property:
    """Of a model: its placement and its gradients' sums are its own business. The Trainer leaves it as it is, and all ranks take
    part in saving it."""

    return property(lambda self: original.fget(self) or has_our_tensors(self), doc=original.__doc__)


def _with_optimizer_state(original: Any) -> Any:
    """When a Trainer is made: it would refuse to save the optimizer's state of a model that is sharded already."""

    @functools.wraps(original)
    def init(self: Any, model: Any = None, args: Any = None, *arguments: Any, **options: Any) -> None:
        is_refused = args is not None and not args.save_only_model and has_our_tensors(model)
        if not is_refused:
            return original(self, model, args, *arguments, **options)
        args.save_only_model = True
        try:
            original(self, model, args, *arguments, **options)
        finally:
            args.save_only_model = False

    return init


def _saved_whole(original: Any) -> Any:
    """When a Trainer saves the optimizer's state on one rank: with full values, which all ranks gather."""

    @functools.wraps(original)
    def save(self: Any, *arguments: Any, **options: Any) -> None:
        if not has_our_tensors(self.model):
            return original(self, *arguments, **options)
        optimizer = self.optimizer
        self.optimizer = with_full_state(optimizer, keep=self.args.should_save)
        try:
            original(self, *arguments, **options)
        finally:
            self.optimizer = optimizer

    return save


def _with_equal_batches(original: Any) -> Any:
    """When a Trainer makes its accelerator: all ranks read the same batches."""

    @functools.wraps(original)
    def create(self: Any, *arguments: Any, **options: Any) -> Any:
        original(self, *arguments, **options)
        if has_our_tensors(self.model):
            read_equal_batches(self.accelerator)

    return create


def _of_equal_batches(original: Any) -> Any:
    """The number of ranks that read the same batches, which the Trainer divides counts of tokens by."""

    @functools.wraps(original)
    def size(self: Any) -> int:
        equal = has_our_tensors(self.model) and are_equal_batches(self.accelerator)
        return self.accelerator.num_processes if equal else original(self)

    return size


def _unless_ours(original: Any) -> Any:
    """When a Trainer makes parameters equal that are not torch's DTensors, and averages their gradients: with equal batches they are."""

    @functools.wraps(original)
    def synchronise(self: Any, model: Any, *arguments: Any, **options: Any) -> None:
        if not has_our_tensors(model):
            original(self, model, *arguments, **options)

    return synchronise


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
        if not has_our_tensors(self):
            return original(self, *arguments, **options)
        with forward_of(self, arguments, options):
            results = original(self, *arguments, **options)
        return pytree.tree_map_only(DTensor, DTensor.full_tensor, results)

    return generate


_REPLACEMENTS = {
    "gather_sharded_state_dict_for_save": _gathering,
    "is_distributed_loading_by_transformers": _sharded_already,
    "create_accelerator_and_postprocess": _with_equal_batches,
    "get_tp_size": _of_equal_batches,
    "_save_optimizer_and_scheduler": _saved_whole,
    "_sync_replicated_trainable_parameters": _unless_ours,
    "training_step": _with_plain_results,
    "prediction_step": _with_plain_results,
    "generate": _as_one_forward,
}
