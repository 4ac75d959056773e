"""save_pretrained, generate and the Trainer of transformers, for models with our tensors."""

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
    """In save_pretrained, which all ranks call: full values on the rank that saves."""
    if not any_ours(state_dict):
        return original(self, model_to_save, state_dict, *arguments, save_on_this_rank=save_on_this_rank, **options)
    full = full_state_dict(state_dict, cpu_offload=True, keep=save_on_this_rank)
    return full if save_on_this_rank else {}


def is_distributed(original: Any, model: Any) -> Any:
    """A model's placement and its gradients' sums are its own business. The Trainer leaves it as it is, and all ranks take part in saving it."""
    return original(model) or has_our_tensors(model)


def init_trainer(
    original: Any, self: Any, model: Any = None, args: Any = None, *arguments: Any, **options: Any
) -> None:
    """A Trainer would refuse to save the optimizer's state of a model that is sharded already."""
    is_refused = args is not None and not args.save_only_model and has_our_tensors(model)
    if not is_refused:
        return original(self, model, args, *arguments, **options)
    args.save_only_model = True
    try:
        original(self, model, args, *arguments, **options)
    finally:
        args.save_only_model = False


def save_optimizer(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
    """When a Trainer saves the optimizer's state on one rank: with full values, which all ranks gather."""
    if not has_our_tensors(self.model):
        return original(self, *arguments, **options)
    optimizer = self.optimizer
    self.optimizer = with_full_state(optimizer, keep=self.args.should_save)
    try:
        original(self, *arguments, **options)
    finally:
        self.optimizer = optimizer


def create_accelerator(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """When a Trainer makes its accelerator: all ranks read the same batches."""
    original(self, *arguments, **options)
    if has_our_tensors(self.model):
        read_equal_batches(self.accelerator)


def tp_size(original: Any, self: Any) -> int:
    """The number of ranks that read the same batches, which the Trainer divides counts of tokens by."""
    equal = has_our_tensors(self.model) and are_equal_batches(self.accelerator)
    return self.accelerator.num_processes if equal else original(self)


def synchronise(original: Any, self: Any, model: Any, *arguments: Any, **options: Any) -> None:
    """When a Trainer makes parameters equal that are not torch's DTensors, and averages their gradients: with equal batches they are."""
    if not has_our_tensors(model):
        original(self, model, *arguments, **options)


def step(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """Losses and predictions as the Trainer adds up and gathers them: plain, and whole on every rank."""
    return whole(original(self, *arguments, **options))


def generate(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """It calls the model in a loop: ids that it appends to are plain, and so is what it gives."""
    if not has_our_tensors(self):
        return original(self, *arguments, **options)
    with forward_of(self, arguments, options):
        results = original(self, *arguments, **options)
    return pytree.tree_map_only(DTensor, DTensor.full_tensor, results)
