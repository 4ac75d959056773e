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

    Its parameters are DTensors that hold this rank's parts. During its forward and its backward they are replaced by whole plain tensors (under
    tensor parallelism, by DTensors on the tensor-parallel mesh). Between a forward that does not reshard and its backward the module keeps the whole
    ones, so a loss may use them; if no output has a gradient, it has the parts. Methods with `recurse` also act on the modules within it.

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
        raise AssertionError(  # as torch's
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
        if not async_op:
            handle.wait()
        return handle if async_op else None

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

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: torch.Stream | None = None) -> None:
        """Calls `hook` with this rank's reduced gradients, before they are added to those of the parameters: for an all-reduce over further
        ranks. It gets all of a group in one tensor of one dim, with zeros between them, and may write to it. `stream`: where it runs, on a mesh
        of one dim; default: the current stream."""
        unit = _unit(self)
        if stream is not None and unit.mesh.ndim > 1:
            raise ValueError(
                f"[fully_shard] set_all_reduce_hook() got a stream, and the mesh {unit.mesh} has replicas, which are reduced on the current "
                "stream. Leave the stream out."
            )
        unit.group.on_reduced(hook if stream is None else functools.partial(_call_on, stream, hook))

    def set_custom_all_gather(self, comm: object) -> None:
        """Raises NotImplementedError: parameters are gathered by one exchange of parts of any sizes, which such a function cannot do."""
        raise NotImplementedError(
            f"[fully_shard] set_custom_all_gather() got comm of type {type(comm).__name__}: parts of any sizes and dtypes are gathered by one exchange, "
            "which an all-gather of equal parts cannot stand for. Leave the call out."
        )

    def set_custom_reduce_scatter(self, comm: object) -> None:
        """Raises NotImplementedError: gradients are reduced by one exchange of parts of any sizes, which such a function cannot do."""
        raise NotImplementedError(
            f"[fully_shard] set_custom_reduce_scatter() got comm of type {type(comm).__name__}: gradients of any sizes and dtypes are reduced by one "
            "exchange, which a reduce-scatter of equal parts cannot stand for. Leave the call out, or use set_all_reduce_hook()."
        )

    def set_post_optim_event(self, event: torch.Event | None) -> None:
        """Makes the current stream, on which parameters are gathered, wait for `event`, recorded after the optimizer's step."""
        if event is not None:
            event.wait()

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Nothing changes: a reduction and a gather are on their way at once without a group for each."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Nothing changes for a positive number: gradients are sent from their own memory, and one group's reduction is on its way at a time."""
        if type(max_input_buffers) is not int:
            raise TypeError(
                f"[fully_shard] max_input_buffers={max_input_buffers!r} is of type {type(max_input_buffers).__name__}. Give an int from 1."
            )
        if max_input_buffers < 1:
            raise ValueError(
                f"[fully_shard] max_input_buffers={max_input_buffers} is not positive. Give an int from 1."
            )

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Raises NotImplementedError: the exchange sends from and to ordinary memory on every backend."""
        raise NotImplementedError(
            f'[fully_shard] set_symm_mem_for_comm("{backend}"): parameters on {_unit(self).mesh} are exchanged from ordinary memory, not from '
            "symmetric memory. Leave the call out: results are the same."
        )

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Nothing changes, as in torch for a backend without an allocator: messages are sent from ordinary memory."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: the group's parameters are not gathered for the backward, because it reads none of them, for example in an embedding."""
        _unit(self).settings.gathers_in_backward = unshard_in_backward

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Has no effect: gradients are always summed, and then divided."""

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Has no effect: it chooses the stream whose memory torch's all-gathers use, and the exchange has no such streams."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Also clears the gradients of parts that whole parameters stand for until the backward."""
        super().zero_grad(set_to_none)  # type: ignore[misc]
        for unit in _units(self, recurse=True):
            nn.ParameterList(unit.sharded).zero_grad(set_to_none)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """For to(), half() and similar. A group whose parameters `fn` does not change stays as it is. Groups convert their parameters themselves,
        because torch would exchange tensors that the groups hold, after set_swap_module_params_on_conversion()."""
        # The call for a module around this one hides the parameters that it has converted.
        units = [unit for unit in _units(self, recurse=True) if not unit.is_hidden()]
        for unit in units:
            if unit.is_changed_by(fn):
                unit.convert(fn)
        places = [place for unit in units for places in unit.places for place in places]
        hidden = [(module, name, module._parameters[name]) for module, name in places]
        try:
            for module, name in places:
                module._parameters[name] = None
            return super()._apply(fn, recurse)  # type: ignore[misc]
        finally:
            for module, name, parameter in hidden:
                module._parameters[name] = parameter


def _call_on(stream: torch.Stream, hook: Callable[[torch.Tensor], None], gradients: torch.Tensor) -> None:
    current = torch.accelerator.current_stream(gradients.device)
    stream.wait_stream(current)
    with stream:
        hook(gradients)
    current.wait_stream(stream)


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Checks that all `modules` are fully sharded. Nothing else changes: gathers and reductions have no streams that modules could share.

    >>> models = [sw.fsdp.fully_shard(torch.nn.Linear(8, 4), mesh=mesh) for _ in range(2)]
    >>> sw.fsdp.share_comm_ctx(models)
    """
    _checked(modules)


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


def _checked(modules: Iterable[object]) -> list[object]:
    modules = list(modules)
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(
                f"[fully_shard] {type(module).__name__} is not fully sharded, so it has no parameters to gather. Give modules that "
                "fully_shard() was called on."
            )
    return modules
