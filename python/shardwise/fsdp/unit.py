"""A group of parameters and the modules that compute with them: the hooks of these modules."""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.fsdp.extensions import Extension, has_extensions
from shardwise.fsdp.nested_tensors import cast_floats, replaced, tensors_in
from shardwise.fsdp.policies import MixedPrecisionPolicy
from shardwise.placement_types import Placement

Places = list[tuple[nn.Module, str]]  # where modules keep one parameter

# The original parameter, and the unit that has its parts: others may keep it still.
_dealt = WeakIdKeyDictionary()


def unit_of(module: nn.Module) -> "Unit | None":
    return module.__dict__.get("_shardwise_unit")


def units_of(modules: Iterable[nn.Module]) -> list["Unit"]:
    """The units of the modules, each once."""
    return list(dict.fromkeys(unit for module in modules if (unit := unit_of(module)) is not None))


class Resharding(NamedTuple):
    """What is freed after a forward."""

    after_forward: bool
    is_automatic: bool = False  # a module around it changes that
    n_keeping: int = 0  # ranks that keep a slice each; 0: none does


class Family:
    """The units of one model: that of the outermost module, and those within it."""

    def __init__(self) -> None:
        self.schedule = _C.GatherSchedule()
        self.units: list[Unit] = []

    def take(self, other: "Family") -> None:
        self.schedule.take(other.schedule)
        for unit in other.units:
            unit.family = self
        self.units += other.units


class Unit:
    """A group, its modules, and what they are to do."""

    def __init__(
        self,
        modules: list[nn.Module],
        names: list[str],
        places: list[Places],
        along: list[Placement],
        mesh: DeviceMesh,
        policy: MixedPrecisionPolicy,
        resharding: Resharding,
    ) -> None:
        """Deals the parameters at `places` and puts the parts there. Raises as ParameterGroup, before anything is done."""
        parameters = [module._parameters[name] for (module, name), *_ in places]
        root = mesh._get_root_mesh()
        self.modules, self.names, self.places, self.policy, self.mesh = modules, names, places, policy, mesh
        group = _C.ParameterGroup(names, parameters, mesh, root, policy.param_dtype, policy.reduce_dtype, along)  # type: ignore[arg-type]
        self.settings = _C.GroupSchedule()
        self.is_automatic = resharding.is_automatic
        self.settings.reshards_after_forward = resharding.after_forward
        self.settings.n_keeping = resharding.n_keeping
        self.family = Family()
        self.family.units.append(self)
        self.calls: list[Call] = []  # that run, one within another
        self.waiting: set[nn.Module] = set()  # modules of several that did not run in this forward
        self.sharded = [nn.Parameter(each, requires_grad=each.requires_grad) for each in group.sharded]
        self.dtypes = [each.dtype for each in self.sharded]
        self.name = type(modules[0]).__name__
        self.group = group.with_sharded(self.sharded)
        self.family.schedule.add(self.group, self.settings)
        self._listen()
        for place, sharded, parameter in zip(places, self.sharded, parameters, strict=True):
            _keep(place, sharded)
            _dealt[parameter] = _dealt[sharded] = self.name
        for module in modules:
            module.__dict__["_shardwise_unit"] = self
            module.register_forward_pre_hook(_before_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(_after_forward, always_call=True)
        for module in {id(module): module for place in places for module, _ in place}.values():
            module.register_state_dict_post_hook(partial(self._into_state_dict))  # torch gives the hook an attribute
            module.register_load_state_dict_pre_hook(self._before_loading)

    def contain(self, inner: "Unit") -> None:
        """`inner` is of a module within this one's."""
        if inner.family is self.family:
            return
        for unit in inner.family.units:
            if unit.is_automatic:
                unit.settings.reshards_after_forward = True
        self.family.take(inner.family)

    def _listen(self) -> None:
        """Has the group call this unit."""
        self._take_leaves()
        self.extensions = {
            i: Extension(place[0][0], self.mesh, self.policy)
            for i, (name, place, sharded) in enumerate(zip(self.names, self.places, self.sharded, strict=True))
            if has_extensions(name, sharded)
        }
        of_unit = weakref.ref(self)

        def told(is_gathered: bool) -> None:
            if unit := of_unit():
                unit._exchange(is_gathered)

        def pieces(index: int, sizes: list[int]) -> tuple[list[torch.Tensor], str]:
            unit = of_unit()
            assert unit is not None
            return unit.extensions[index].pieces(_C.subclass_in(unit.sharded[index]), sizes)

        def whole(
            index: int, gathered: list[torch.Tensor], kept: torch.Tensor | None
        ) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
            unit = of_unit()
            assert unit is not None
            own = _C.subclass_in(unit.sharded[index])
            return unit.extensions[index].whole(unit.names[index], unit.sharded[index], own, gathered, kept)

        self.group.on_exchange(told)
        if self.extensions:
            self.group.set_class_calls(pieces, whole)

    def _take_leaves(self) -> None:
        """Gives the whole parameters their Python objects, which stand in the modules while they are gathered."""
        with torch.inference_mode(False):  # which the first forward may run under
            self.leaves = [
                each if isinstance(each, nn.Parameter) else nn.Parameter(each, requires_grad=each.requires_grad)
                for each in self.group.leaves
            ]
        self.group.leaves = list(self.leaves)

    def _exchange(self, is_gathered: bool) -> None:
        if is_gathered and not all(isinstance(self.group.leaves[i], nn.Parameter) for i in self.extensions):
            self._take_leaves()
        for place, parameter in zip(self.places, self.leaves if is_gathered else self.sharded, strict=True):
            _keep(place, parameter)

    def forget_calls(self) -> None:
        """After forwards that torch did not end by our hook."""
        self.calls.clear()
        self.waiting.clear()
        for module in self.modules:
            module.__dict__.pop("_shardwise_entered", None)

    def _into_state_dict(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
        """The parts stand in state dicts, also while the module has the whole parameters. The group stays as it is: a rank may read its state
        dict alone."""
        if not self.group.is_in_place:
            return
        for place, leaf, sharded in zip(self.places, self.leaves, self.sharded, strict=True):
            for owner, name in place:
                if owner is module and prefix + name in state_dict:
                    keeps_vars = state_dict[prefix + name] is leaf
                    state_dict[prefix + name] = sharded if keeps_vars else sharded.detach()

    def is_changed_by(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        """Whether `fn`, which module.to() and the like apply to parameters, gives others. Asked with tensors without elements."""
        for each in self.sharded:
            probe = torch.empty([0] * each.dim(), dtype=each.dtype, device=each.device)
            if fn(probe) is not probe:
                return True
        return False

    def _before_loading(self, *_: Any) -> None:
        """The parts stand in the modules, where values are loaded to."""
        self.group.release()

    def take_replacements(self, have_changed: bool = False) -> None:
        """Parameters that a program has put in the place of the parts, as loading with assign=True does, are the parts from now on.
        `have_changed`: they may be others although they are the same objects, as those are whose data has another dtype now."""
        if self.group.is_in_place:
            return
        now: list[Any] = [module._parameters[name] for (module, name), *_ in self.places]
        if not have_changed and all(
            new is old and new.dtype == dtype for new, old, dtype in zip(now, self.sharded, self.dtypes, strict=True)
        ):
            return
        fresh = self.group.with_sharded(now)
        self.sharded, self.dtypes = now, [each.dtype for each in now]
        for place, sharded in zip(self.places, self.sharded, strict=True):
            _keep(place, sharded)
        self.family.schedule.replace(self.group, fresh)
        self.group = fresh
        self._listen()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self.mesh.get_coordinate() is None:
            raise ValueError(
                f"[fully_shard] {type(module).__name__} is called on a rank that is not on {self.mesh}, over which its parameters are "
                "sharded: the rank has no part of them. Call it only on the ranks of the mesh."
            )
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, DTensor) and self._is_over_data(tensor.device_mesh):
                raise ValueError(
                    f"[fully_shard] {type(module).__name__} got a DTensor placed as {list(tensor.placements)} on {self.mesh}, over which "
                    "its parameters are sharded: it computes with plain tensors, on this rank's part of the batch. Give it x.to_local(), "
                    "or shard the model with distribute_module."
                )
        if not self.waiting:
            self.waiting.update(self.modules)
        self.take_replacements()
        if self.policy.cast_forward_inputs and self.policy.param_dtype is not None:
            args, kwargs = cast_floats((args, kwargs), self.policy.param_dtype)
        self.family.schedule.enter_forward(self.group)
        self.calls.append(call := Call(self))
        if torch.is_grad_enabled():
            args, kwargs = call.watch_inputs((args, kwargs))
        return args, kwargs

    def _is_over_data(self, mesh: DeviceMesh) -> bool:
        names = set(mesh.mesh_dim_names or ()) & set(self.mesh.mesh_dim_names or ())
        return mesh == self.mesh or (bool(names) and mesh._get_root_mesh() == self.mesh._get_root_mesh())

    def leave(self, module: nn.Module, output: Any) -> Any:
        self.waiting.discard(module)
        self.family.schedule.leave_forward(self.group, not self.waiting)
        call = self.calls.pop()
        if self is self.family.units[0] and not self.calls:
            for unit in self.family.units:  # of several modules, not all of which ran
                if unit.waiting:
                    unit.waiting.clear()
                    self.family.schedule.reshard_after_forward(unit.group)
        if torch.is_grad_enabled():
            output = call.watch_outputs(output)
        return output if self.policy.output_dtype is None else cast_floats(output, self.policy.output_dtype)


class Call:
    """One call of a module, and its backward: that begins with the gradient of an output and ends with those of all inputs."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.begun_in = -1  # the backward in which an output's gradient came last
        self.handles: list[Any] = []  # of the inputs' hooks
        self.n_missing = 0  # inputs whose gradients have not come in that backward
        self.inputs: set[int] = set()  # the ids of these tensors

    def watch_inputs(self, inputs: Any) -> Any:
        """Returns them, views of those that are leaves: autograd gives a leaf its gradient before it goes on with the module's backward,
        and a view its own after."""
        inputs = replaced(inputs, lambda tensor: _view(tensor) if tensor.requires_grad and tensor.is_leaf else tensor)
        watched = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
        self.inputs = {id(tensor) for tensor in watched}
        for tensor in watched:
            self.handles.append(self._end_at(tensor))
        return inputs

    def _end_at(self, tensor: torch.Tensor) -> Any:
        """The hook by which this call's backward ends: before that of the call of another unit that gave the tensor begins, so that no more
        than two units are whole at once. torch calls hooks in the order in which their dict was filled."""
        handle = tensor.register_hook(self._input_arrived)
        hooks: Any = tensor._backward_hooks
        for key, hook in list(hooks.items()):
            giver = getattr(hook, "__self__", None)
            if isinstance(giver, Call) and giver.unit is not self.unit:
                hooks[key] = hooks.pop(key)
        return handle

    def watch_outputs(self, outputs: Any) -> Any:
        """Returns them, views of those that are inputs: of one tensor, the end of this call's backward would come before its begin."""
        outputs = replaced(outputs, lambda tensor: _view(tensor) if id(tensor) in self.inputs else tensor)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._output_arrived)
        return outputs

    def _output_arrived(self, grad: torch.Tensor) -> None:
        schedule = self.unit.family.schedule
        if self.begun_in == schedule.n_ended:  # by another output
            if self.unit.settings.gathers_in_backward:
                self.unit.group.gather()
            return
        self.begun_in = schedule.n_ended
        self.n_missing = len(self.handles)
        schedule.before_backward(self.unit.group)

    def _input_arrived(self, grad: torch.Tensor) -> None:
        self.n_missing -= 1
        schedule = self.unit.family.schedule
        if self.n_missing == 0 and self.begun_in == schedule.n_ended:
            for handle in self.handles:  # inputs may outlive the call
                handle.remove()
            schedule.after_backward(self.unit.group)


def _view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor) if tensor.layout == torch.strided else tensor  # others have none


def _keep(place: Places, parameter: torch.Tensor) -> None:
    for module, name in place:
        module._parameters[name] = parameter  # type: ignore[assignment]


def dealt_by(parameter: torch.Tensor) -> str | None:
    """The name of the module with which `parameter` was dealt, while other modules keep the whole of it."""
    return _dealt.get(parameter)


def refuse_calls_outside(module: nn.Module, unit: Unit) -> None:
    """`module`, whose parameters are in the unit's group, stands in a module outside of it, too: a call from there finds parts."""
    watched = module.__dict__.setdefault("_shardwise_refuses_outside", set())
    if id(unit) in watched:
        return
    watched.add(id(unit))

    def check(module: nn.Module, args: Any) -> None:
        if not unit.group.is_in_place:
            raise ValueError(
                f"[fully_shard] {type(module).__name__} is called outside of the group of {unit.name}, which its parameters belong to, so "
                "they are not gathered. Call fully_shard on the module that is shared, before the modules that share it, or on all of "
                "these at once: fully_shard([a, b])."
            )

    module.register_forward_pre_hook(check, prepend=True)


# Functions of this module, and not methods of units: a module has its own unit.


def _before_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    unit = unit_of(module)
    assert unit is not None
    result = unit.enter(module, args, kwargs)
    module.__dict__["_shardwise_entered"] = module.__dict__.get("_shardwise_entered", 0) + 1
    return result


def _after_forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    entered = module.__dict__.get("_shardwise_entered", 0)
    if entered == 0:  # the hook before it failed
        return output
    module.__dict__["_shardwise_entered"] = entered - 1
    unit = unit_of(module)
    assert unit is not None
    return unit.leave(module, output)
