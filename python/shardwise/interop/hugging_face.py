"""Replacements in transformers (save_pretrained, generate, the Trainer), accelerate and safetensors, for models with our tensors.

accelerate does not wrap such models, and all ranks read the same batches.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn
from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.forward_scope import forward_of
from shardwise.interop.state_dicts import any_ours, full_state_dict, whole

Function = Callable[..., Any]

# True while a loader is prepared that gives all ranks the same batches.
_gives_all_the_same: ContextVar[bool] = ContextVar("_gives_all_the_same", default=False)


def has_our_tensors(model: Any) -> bool:
    return isinstance(model, nn.Module) and any(isinstance(tensor, DTensor) for tensor in model.parameters())


def read_equal_batches(accelerator: Any) -> None:
    """Makes loaders that are prepared later give all ranks the same batches, unless the program has a parallelism config."""
    accelerator._reads_equal_batches = accelerator.parallelism_config is None


def are_equal_batches(accelerator: Any) -> bool:
    return getattr(accelerator, "_reads_equal_batches", False)


def with_full_state(optimizer: Any, keep: bool) -> Any:
    """A stand-in with the optimizer's full state, on ranks that `keep` it; collective. An optimizer without our tensors is returned as it is."""
    if not any_ours([group["params"] for group in optimizer.param_groups]):
        return optimizer
    state = full_state_dict(optimizer.state_dict(), cpu_offload=True, keep=keep)
    return SimpleNamespace(state_dict=lambda: state)


def save_state(
    original: Function, output_dir: str, model_states: list[Any], optimizers: list[Any], *arguments: Any, **options: Any
) -> Any:
    """Gathers full states in Accelerator.save_state(), which all ranks call and in which one writes."""
    whole = [with_full_state(optimizer, keep=True) for optimizer in optimizers]
    return original(output_dir, model_states, whole, *arguments, **options)


def get_state_dict(original: Function, *arguments: Any, **options: Any) -> Any:
    """Gathers full values. All ranks call it."""
    state = original(*arguments, **options)
    return full_state_dict(state, cpu_offload=True) if any_ours(state) else state


def prepare(original: Function, accelerator: Any, *arguments: Any, **options: Any) -> Any:
    """Looks for models first, because loaders and models come in any order."""
    if any(has_our_tensors(argument) for argument in arguments):
        read_equal_batches(accelerator)
    return original(accelerator, *arguments, **options)


def prepare_model(original: Function, accelerator: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    """Leaves the model without DistributedDataParallel around it, and on its device."""
    if not has_our_tensors(model):
        return original(accelerator, model, *arguments, **options)
    read_equal_batches(accelerator)
    return original(accelerator, model, **{**options, "device_placement": False, "evaluation_mode": True})


def prepare_loader_of(original: Function, accelerator: Any, *arguments: Any, **options: Any) -> Any:
    """Accelerator.prepare_data_loader(), which calls the function of the same name."""
    token = _gives_all_the_same.set(are_equal_batches(accelerator))
    try:
        return original(accelerator, *arguments, **options)
    finally:
        _gives_all_the_same.reset(token)


def prepare_loader(original: Function, *arguments: Any, **options: Any) -> Any:
    if _gives_all_the_same.get():
        options |= {"num_processes": 1, "process_index": 0, "dispatch_batches": False}
    return original(*arguments, **options)


def gather(original: Function, accelerator: Any, tensor: Any) -> Any:
    return original(accelerator, whole(tensor))


def gather_for_metrics(original: Function, accelerator: Any, input_data: Any, *arguments: Any, **options: Any) -> Any:
    """Counts results once that all ranks computed from the same batch."""
    if are_equal_batches(accelerator):
        return whole(input_data)
    return original(accelerator, whole(input_data), *arguments, **options)


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
    with mock.patch.object(args, "save_only_model", True) if is_refused else nullcontext():
        original(self, model, args, *arguments, **options)


def save_optimizer(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
    """Gathers the optimizer's full state on all ranks before one of them saves it."""
    if not has_our_tensors(self.model):
        return original(self, *arguments, **options)
    with mock.patch.object(self, "optimizer", with_full_state(self.optimizer, keep=self.args.should_save)):
        original(self, *arguments, **options)


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


def load_model(
    original: Callable[..., tuple[list[str], list[str]]],
    model: nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
) -> tuple[list[str], list[str]]:
    """Has each rank read all values and take its part of them. Returns the missing and the unexpected names; raises RuntimeError for any if
    `strict`. A file has tied values once, and all tied tensors get them."""
    if not has_our_tensors(model):
        return original(model, filename, strict=strict, device=device)
    from safetensors.torch import load_file

    values = load_file(filename, device=device)
    named = list(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))
    names = {id(tensor): name for name, tensor in named if name in values}
    values |= {name: values[names[id(tensor)]] for name, tensor in named if name not in values and id(tensor) in names}
    keys = model.load_state_dict(values, strict=strict)
    return keys.missing_keys, keys.unexpected_keys


def prepare_local_plan(original: Any, self: Any, plan: Any) -> Any:
    """Makes HuggingFaceStorageWriter raise ValueError if this rank has several pieces of a tensor, of which a file would have one. torch raises the
    error on all ranks, before anything is written."""
    counts = Counter(item.index.fqn for item in plan.items if item.type.name == "SHARD")
    several = [f"{n} of {name}" for name, n in counts.items() if n > 1]
    if several:
        raise ValueError(
            f"[checkpoint] a safetensors file holds one piece per name, but this rank has {', '.join(several)}. Redistribute to Shard or "
            "Replicate before, or save with torch's or shardwise.checkpoint's FileSystemWriter."
        )
    return original(self, plan)
