"""FSDPModule: the methods that a module gains by fully_shard()."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

import torch
from torch import nn

from shardwise.fsdp.unit import Unit, _after_forward, _before_forward, unit_of, units_of


class UnshardHandle:
    """Parameters that are being gathered.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh)
    >>> handle = model.unshard(async_op=True)
    >>> handle.wait()
    >>> type(model.weight.data).__name__
    'Tensor'
    """

    def __init__(self, unit: Unit | None = None) -> None:
        self._unit = unit

    def wait(self) -> None:
        """Waits until they have arrived, and puts them into the module."""
        if self._unit is not None:
            self._unit.group.gather()
        self._unit = None


class FSDPModule:
    """A module that fully_shard() was called on: its class is derived from this one and from the module's own.

    Its parameters are DTensors that hold this rank's parts. During its forward and its backward they are replaced by whole plain tensors
    (under tensor parallelism, by DTensors on the tensor-parallel mesh). Between forward and backward the module has the parts again, even
    if the gathered parameters are not freed. Methods with `recurse` also act on the modules within it.

    >>> model = sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh)
    >>> isinstance(model, sw.fsdp.FSDPModule), isinstance(model, torch.nn.Linear), model.weight.placements
    (True, True, (Shard(0),))
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a module of the original class: a container makes a slice of itself by calling its class."""
        original = cls.__mro__[2]
        self = original.__new__(original, *args, **kwargs)
        self.__init__(*args, **kwargs)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            f"[fully_shard] {type(self).__name__} cannot be copied: hooks and buffers of messages belong to one module. Make the copy "
            "before fully_shard(), or copy its state_dict()."
        )

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the parameters of this module's group. They stay until reshard(), or until a forward or backward frees them.
        With `async_op` it returns a handle at once. Collective over the mesh."""
        unit = _unit(self)
        unit.take_replacements()
        if unit.group.is_stale:
            unit.group.release()
        unit.group.start_gather()
        handle = UnshardHandle(unit)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Frees the gathered parameters of this module's group; the module then has the parts again. Sends nothing, but the next forward or
        backward gathers them again, so call it on all ranks."""
        _unit(self).group.release()

    def reset_iter_state(self) -> None:
        """Call it after an exception in a forward or backward was caught: it waits for messages on their way, and drops gradients that were not
        reduced. After a backward that failed, the next forward or backward does so itself. After a forward that was interrupted
        (KeyboardInterrupt) the call is needed, because torch runs no hooks then."""
        _unit(self).settings.schedule.reset()

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """False: the next backward is not the last one of its forwards: further backward passes of the same forwards follow."""
        _unit(self).settings.schedule.set_last_backward(is_last_backward)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: each rank adds up whole gradients, until a backward with True reduces the sum. Until then nothing is sent over the mesh of
        fully_shard. Under tensor parallelism, gradients are still reduced over its mesh each time."""
        for unit in _units(self, recurse):
            unit.settings.reduces = requires_gradient_sync
            unit.group.set_all_reduces(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """False: on a mesh of two dims, gradients are reduced only over the second dim, until a backward with True reduces their sum over
        the first dim."""
        for unit in _units(self, recurse):
            unit.group.set_all_reduces(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether gathered parameters are freed after a forward and gathered again for the backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(
                f"[fully_shard] reshard_after_forward={reshard_after_forward!r} is no bool. Give True, which saves memory, or False, "
                "which saves messages."
            )
        for unit in _units(self, recurse):
            unit.settings.set_reshard_after_forward(reshard_after_forward, unit.mesh)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False keeps gathered parameters after a backward: for micro-batches between which no optimizer steps."""
        for unit in _units(self, recurse):
            unit.settings.reshards_after_backward = reshard_after_backward

    def set_modules_to_forward_prefetch(self, modules: list["FSDPModule"]) -> None:
        """When this module's forward begins, the parameters of these modules are gathered, too. Default: the module whose forward followed
        it the last time."""
        _unit(self).settings.set_ahead_in_forward([_unit(module).settings for module in _checked(modules)])

    def set_modules_to_backward_prefetch(self, modules: list["FSDPModule"]) -> None:
        """The same for the backward. Default: the module whose forward came before this one's."""
        _unit(self).settings.set_ahead_in_backward([_unit(module).settings for module in _checked(modules)])

    def set_gradient_divide_factor(self, factor: float) -> None:
        """The number that the sum of the ranks' gradients is divided by. Default: the number of ranks."""
        _unit(self).group.set_divide_factor(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The former name of set_gradient_divide_factor."""
        self.set_gradient_divide_factor(factor)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """True: a parameter without a gradient counts as if its gradient were zeros, and gets the reduced gradient. Set it if one rank has
        no gradient for any parameter of a group and other ranks have some. If one rank's loss ignores the outputs of a module that the
        losses of other ranks use, this module also needs reshard_after_forward=False: otherwise the other ranks gather its parameters again
        in the backward, and wait for that rank."""
        for unit in _units(self, recurse):
            unit.settings.fills_unused = reduce_scatter_unused_params

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: the group's parameters are not gathered for the backward, because it reads none of them, for example in an embedding."""
        _unit(self).settings.gathers_in_backward = unshard_in_backward

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Has no effect: gradients are always summed, and then divided."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """For to(), half() and similar. A group whose parameters `fn` does not change stays as it is."""
        changed, hidden = [], []
        for unit in _units(self, recurse=True):
            if unit.is_changed_by(fn):
                changed.append(unit)
                unit.group.release()
            else:
                hidden += [(module, name, module._parameters[name]) for place in unit.places for module, name in place]
        try:
            for module, name, _ in hidden:
                module._parameters[name] = None
            result = super()._apply(fn, recurse)  # type: ignore[misc]
        finally:
            for module, name, parameter in hidden:
                module._parameters[name] = parameter
        for unit in changed:
            unit.take_replacements(have_changed=True)
        return result


def become_fsdp_module(module: nn.Module) -> None:
    """Gives the module a class derived from FSDPModule and its own class. The own class keeps the new one, so both are freed together."""
    original = module.__class__
    if "_shardwise_fsdp_class" not in vars(original):
        derived = type(f"FSDP{original.__name__}", (FSDPModule, original), {"__module__": original.__module__})
        setattr(original, "_shardwise_fsdp_class", derived)  # noqa: B010  a name that torch's classes do not have
    module.__class__ = vars(original)["_shardwise_fsdp_class"]


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes `module.<method_name>(...)` gather the module's parameters before it runs and free them after, as its forward does. Does
    nothing for a module that is not fully sharded. Raises ValueError if the module has no such method.

    >>> class Doubling(torch.nn.Linear):
    ...     def doubled(self, x):
    ...         return 2 * self(x)
    >>> model = sw.fsdp.fully_shard(Doubling(8, 4), mesh=mesh)
    >>> sw.fsdp.register_fsdp_forward_method(model, "doubled")
    >>> model.doubled(torch.ones(2, 8)).shape
    torch.Size([2, 4])
    """
    if not isinstance(module, FSDPModule):
        return
    method = getattr(module, method_name, None)
    if method is None:
        raise ValueError(
            f"[register_fsdp_forward_method] {type(module).__name__} has no method {method_name}. Give the name of one that it has."
        )

    @functools.wraps(method)
    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _before_forward(module, args, kwargs)
        output = None
        try:
            output = method(*args, **kwargs)
        finally:
            output = _after_forward(module, args, output)
        return output

    setattr(module, method_name, forward)


def _unit(module: object) -> Unit:
    unit = unit_of(cast(nn.Module, module))
    assert unit is not None
    return unit


def _units(module: object, recurse: bool) -> list[Unit]:
    return units_of(cast(nn.Module, module).modules() if recurse else [cast(nn.Module, module)])


def _checked(modules: Iterable[object]) -> list["FSDPModule"]:
    result = []
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(
                f"[fully_shard] {type(module).__name__} is not fully sharded, so there is nothing to gather ahead. Give modules that "
                "fully_shard() was called on."
            )
        result.append(module)
    return result
