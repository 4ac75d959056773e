"""Replacements in accelerate: models with our tensors are not wrapped, and all ranks read the same batches."""

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from torch import nn

from shardwise.dtensor import DTensor
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
