"""accelerate, for models with our tensors: they are not wrapped, and all ranks read the same batches."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree

from shardwise.dtensor import DTensor
from shardwise.interop.replacements import Function, replace_functions, replace_methods
from shardwise.interop.state_dicts import full_state_dict

# True while a loader is prepared that gives all ranks the same.
_gives_all_the_same: ContextVar[bool] = ContextVar("_gives_all_the_same", default=False)


def teach(module: ModuleType) -> None:
    replace_methods(module, _REPLACEMENTS)
    prepare = vars(module)["prepare_data_loader"]

    @functools.wraps(prepare)
    def prepare_data_loader(*arguments: Any, **options: Any) -> Any:
        if _gives_all_the_same.get():
            options |= {"num_processes": 1, "process_index": 0, "dispatch_batches": False}
        return prepare(*arguments, **options)

    vars(module)["prepare_data_loader"] = prepare_data_loader
    replace_functions(module, {"save_accelerator_state": _save_whole_states})


def has_our_tensors(model: Any) -> bool:
    return isinstance(model, nn.Module) and any(isinstance(tensor, DTensor) for tensor in model.parameters())


def read_equal_batches(accelerator: Any) -> None:
    """From now on loaders that are prepared give all ranks the same batches, unless the program said itself how ranks are arranged."""
    accelerator._reads_equal_batches = accelerator.parallelism_config is None


def are_equal_batches(accelerator: Any) -> bool:
    return getattr(accelerator, "_reads_equal_batches", False)


class _FullState:
    """Stands for an optimizer that is saved."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state


def with_full_state(optimizer: Any, keep: bool) -> Any:
    """What gives the optimizer's state with all values, on ranks that `keep` it. Collective where it has state of our tensors."""
    return _FullState(full_state_dict(optimizer.state_dict(), cpu_offload=True, keep=keep))


def _save_whole_states(
    original: Function, output_dir: str, model_states: list[Any], optimizers: list[Any], *arguments: Any, **options: Any
) -> Any:
    """In save_state(), which all ranks call and one writes in."""
    whole = [with_full_state(optimizer, keep=True) for optimizer in optimizers]
    return original(output_dir, model_states, whole, *arguments, **options)


def _with_full_values(original: Any) -> Any:
    """In get_state_dict(), which all ranks call."""

    @functools.wraps(original)
    def get_state_dict(self: Any, *arguments: Any, **options: Any) -> Any:
        return full_state_dict(original(self, *arguments, **options), cpu_offload=True)

    return get_state_dict


def _with_equal_batches(original: Any) -> Any:
    """In prepare(): loaders and models come in any order."""

    @functools.wraps(original)
    def prepare(self: Any, *arguments: Any, **options: Any) -> Any:
        if any(has_our_tensors(argument) for argument in arguments):
            read_equal_batches(self)
        return original(self, *arguments, **options)

    return prepare


def _without_wrapping(original: Any) -> Any:
    """In prepare_model(): no DistributedDataParallel around it, and no move to a device."""

    @functools.wraps(original)
    def prepare_model(
        self: Any, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False, **options: Any
    ) -> Any:
        if has_our_tensors(model):
            read_equal_batches(self)
            device_placement, evaluation_mode = False, True
        return original(self, model, device_placement=device_placement, evaluation_mode=evaluation_mode, **options)

    return prepare_model


def _undivided(original: Any) -> Any:
    @functools.wraps(original)
    def prepare_data_loader(self: Any, *arguments: Any, **options: Any) -> Any:
        token = _gives_all_the_same.set(are_equal_batches(self))
        try:
            return original(self, *arguments, **options)
        finally:
            _gives_all_the_same.reset(token)

    return prepare_data_loader


def _of_whole_tensors(original: Any) -> Any:
    """In gather(): our tensors as whole plain ones."""

    @functools.wraps(original)
    def gather(self: Any, tensor: Any) -> Any:
        return original(self, _whole(tensor))

    return gather


def _once(original: Any) -> Any:
    """In gather_for_metrics(): what all ranks computed of the same batch counts once."""

    @functools.wraps(original)
    def gather_for_metrics(self: Any, input_data: Any, *arguments: Any, **options: Any) -> Any:
        whole = _whole(input_data)
        return whole if are_equal_batches(self) else original(self, whole, *arguments, **options)

    return gather_for_metrics


def _whole(values: Any) -> Any:
    return pytree.tree_map_only(DTensor, lambda tensor: tensor.detach().full_tensor(), values)


_REPLACEMENTS = {
    "prepare": _with_equal_batches,
    "prepare_model": _without_wrapping,
    "prepare_data_loader": _undivided,
    "get_state_dict": _with_full_values,
    "gather": _of_whole_tensors,
    "gather_for_metrics": _once,
}
