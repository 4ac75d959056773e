"""Replacements in transformers: save_pretrained, generate and the Trainer, for models with our tensors."""

from typing import Any

from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.forward_scope import forward_of
from shardwise.interop.accelerator import are_equal_batches, has_our_tensors, read_equal_batches, with_full_state
from shardwise.interop.state_dicts import any_ours, full_state_dict, whole


def gather_state_dict(
    original: Any,
    self: Any,
    model_to_save: Any,
    state_dict: dict[str, Any],
    *arguments: Any,
    save_on_this_rank: bool = True,
    **options: Any,
) -> Any:
    """Gathers full values for the rank that saves, in save_pretrained(), which all ranks call."""
    if not any_ours(state_dict):
        return original(self, model_to_save, state_dict, *arguments, save_on_this_rank=save_on_this_rank, **options)
    full = full_state_dict(state_dict, cpu_offload=True, keep=save_on_this_rank)
    return full if save_on_this_rank else {}


def is_distributed(original: Any, model: Any) -> Any:
    """True for models with our tensors: the Trainer then does not place them or sum their gradients, and all ranks take part in saving."""
    return original(model) or has_our_tensors(model)


def init_trainer(
    original: Any, self: Any, model: Any = None, args: Any = None, *arguments: Any, **options: Any
) -> None:
    """Hides `save_only_model=False` during the constructor, which would refuse to save the optimizer's state of a model that is sharded already."""
    is_refused = args is not None and not args.save_only_model and has_our_tensors(model)
    if is_refused:
        args.save_only_model = True
    try:
        original(self, model, args, *arguments, **options)
    finally:
        if is_refused:
            args.save_only_model = False


def save_optimizer(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
    """Gathers the optimizer's full state on all ranks before one of them saves it."""
    if not has_our_tensors(self.model):
        return original(self, *arguments, **options)
    optimizer = self.optimizer
    self.optimizer = with_full_state(optimizer, keep=self.args.should_save)
    try:
        original(self, *arguments, **options)
    finally:
        self.optimizer = optimizer


def create_accelerator(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """Makes all ranks read the same batches when a Trainer makes its accelerator."""
    original(self, *arguments, **options)
    if has_our_tensors(self.model):
        read_equal_batches(self.accelerator)


def tp_size(original: Any, self: Any) -> int:
    """The number of ranks that read the same batches. The Trainer divides counts of tokens by it."""
    equal = has_our_tensors(self.model) and are_equal_batches(self.accelerator)
    return self.accelerator.num_processes if equal else original(self)


def synchronise(original: Any, self: Any, model: Any, *arguments: Any, **options: Any) -> None:
    """Skips the step in which a Trainer broadcasts plain parameters and averages their gradients: with equal batches, both are equal already."""
    if not has_our_tensors(model):
        original(self, model, *arguments, **options)


def step(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """Makes losses and predictions plain and whole on every rank, as the Trainer expects."""
    return whole(original(self, *arguments, **options))


def generate(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """Runs the loop of generate() in the scope of a forward, because it appends to plain ids. The results are plain, too."""
    if not has_our_tensors(self):
        return original(self, *arguments, **options)
    with forward_of(self, arguments, options):
        results = original(self, *arguments, **options)
    return pytree.tree_map_only(DTensor, DTensor.full_tensor, results)
