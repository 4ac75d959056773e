"""Unit: a group of parameters, the modules that compute with them, and the hooks of these modules."""

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

Places = list[tuple[nn.Module, str]]  # the places where modules keep one parameter

# The name of the module of the unit that a parameter was sharded in, by the original and the sharded parameter: other modules may still have these.
_sharded_in = WeakIdKeyDictionary()


def unit_of(module: nn.Module) -> "Unit | None":
    return module.__dict__.get("_shardwise_unit")


def units_of(modules: Iterable[nn.Module]) -> list["Unit"]:
    """The units of the modules, each once."""
    return list(dict.fromkeys(unit for module in modules if (unit := unit_of(module)) is not None))


class Resharding(NamedTuple):
    """Which gathered parameters are freed after a forward."""

    after_forward: bool
    is_automatic: bool = False  # True: a module around this one sets after_forward
    n_keeping: int = 0  # the number of ranks that each keep a slice; 0: none keeps any


class Family:
    """The units of one model: the unit of the outermost module comes first."""

    def __init__(self) -> None:
        self.schedule = _C.GatherSchedule()
        self.units: list[Unit] = []

    def take(self, other: "Family") -> None:
        self.schedule.take(other.schedule)
        for unit in other.units:
            unit.family = self
        self.units += other.units


class Unit:
    """A group of parameters with its modules and settings."""

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
        """Shards the parameters at `places` and puts the parts there. Raises the errors of ParameterGroup before anything changes."""
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
        self.calls: list[Call] = []  # the calls that are running, outer ones first
        self.waiting: set[nn.Module] = set()  # the modules that have not run yet in this forward
        self.sharded = [nn.Parameter(each, requires_grad=each.requires_grad) for each in group.sharded]
        self.dtypes = [each.dtype for each in self.sharded]
        self.name = type(modules[0]).__name__
        self.group = group.with_sharded(self.sharded)
        self.family.schedule.add(self.group, self.settings)
        self._listen()
        for place, sharded, parameter in zip(places, self.sharded, parameters, strict=True):
            _keep(place, sharded)
            _sharded_in[parameter] = _sharded_in[sharded] = self.name
        for module in modules:
            module.__dict__["_shardwise_unit"] = self
            module.register_forward_pre_hook(_before_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(_after_forward, always_call=True)
        for module in {id(module): module for place in places for module, _ in place}.values():
            module.register_state_dict_post_hook(partial(self._into_state_dict))  # torch sets an attribute of the hook
            module.register_load_state_dict_pre_hook(self._before_loading)

    def contain(self, inner: "Unit") -> None:
        """Joins the families: `inner` is the unit of a module within this unit's."""
        if inner.family is self.family:
            return
        for unit in inner.family.units:
            if unit.is_automatic:
                unit.settings.reshards_after_forward = True
        self.family.take(inner.family)

    def _listen(self) -> None:
        """Sets the functions of this unit that the group calls."""
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
        """Makes the nn.Parameters that the modules have while the parameters are gathered."""
        with torch.inference_mode(False):  # the first forward may run under it
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
        """Forgets calls that torch did not end with our hook."""
        self.calls.clear()
        self.waiting.clear()
        for module in self.modules:
            module.__dict__.pop("_shardwise_entered", None)

    def _into_state_dict(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
        """Puts the parts into state dicts while the module has the whole parameters. The group does not change, because a rank may read its state
        dict alone."""
        if not self.group.is_in_place:
            return
        for place, leaf, sharded in zip(self.places, self.leaves, self.sharded, strict=True):
            for owner, name in place:
                if owner is module and prefix + name in state_dict:
                    keeps_vars = state_dict[prefix + name] is leaf
                    state_dict[prefix + name] = sharded if keeps_vars else sharded.detach()

    def is_changed_by(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        """Whether `fn`, which module.to() and similar apply to parameters, changes them. Tries it on tensors without elements."""
        for each in self.sharded:
            probe = torch.empty([0] * each.dim(), dtype=each.dtype, device=each.device)
            if fn(probe) is not probe:
                return True
        return False

    def _before_loading(self, *_: Any) -> None:
        """Puts the parts into the modules, so that values are loaded into them."""
        self.group.release()

    def take_replacements(self, have_changed: bool = False) -> None:
        """Takes the parameters that a program has put in the place of the parts, as loading with assign=True does, for the new parts.
        `have_changed`: they may have changed although they are the same objects, for example if their data has another dtype now."""
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
            for unit in self.family.units:  # a unit of several modules, of which not all ran, still waits
                if unit.waiting:
                    unit.waiting.clear()
                    self.family.schedule.reshard_after_forward(unit.group)
        if torch.is_grad_enabled():
            output = call.watch_outputs(output)
        return output if self.policy.output_dtype is None else cast_floats(output, self.policy.output_dtype)


class Call:
    """A call of a module and its backward, which begins with the gradient of an output and ends with the gradients of all inputs."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.begun_in = -1  # the number of the last backward in which an output's gradient came
        self.handles: list[Any] = []  # handles of the inputs' hooks
        self.n_missing = 0  # inputs whose gradients have not come in that backward
        self.inputs: set[int] = set()  # the ids of the inputs

    def watch_inputs(self, inputs: Any) -> Any:
        """Watches the gradients of the inputs, and returns the inputs with views instead of leaves: autograd gives a leaf its gradient before
        the rest of the module's backward, and a view after it."""
        inputs = replaced(inputs, lambda tensor: _view(tensor) if tensor.requires_grad and tensor.is_leaf else tensor)
        watched = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
        self.inputs = {id(tensor) for tensor in watched}
        for tensor in watched:
            self.handles.append(self._end_at(tensor))
        return inputs

    def _end_at(self, tensor: torch.Tensor) -> Any:
        """Registers the hook that ends this call's backward. It runs before the hook that begins the backward of the unit that made the tensor, so
        that at most two units are gathered at once: torch calls hooks in the order of their dict."""
        handle = tensor.register_hook(self._input_arrived)
        hooks: Any = tensor._backward_hooks
        for key, hook in list(hooks.items()):
            giver = getattr(hook, "__self__", None)
            if isinstance(giver, Call) and giver.unit is not self.unit:
                hooks[key] = hooks.pop(key)
        return handle

    def watch_outputs(self, outputs: Any) -> Any:
        """Watches the gradients of the outputs, and returns the outputs with views instead of inputs: on one tensor, the backward would end first."""
        outputs = replaced(outputs, lambda tensor: _view(tensor) if id(tensor) in self.inputs else tensor)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._output_arrived)
        return outputs

    def _output_arrived(self, grad: torch.Tensor) -> None:
        schedule = self.unit.family.schedule
        if self.begun_in == schedule.n_ended:  # another output has begun this backward
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
    return tensor.view_as(tensor) if tensor.layout == torch.strided else tensor  # other layouts have no views


def _keep(place: Places, parameter: torch.Tensor) -> None:
    for module, name in place:
        module._parameters[name] = parameter  # type: ignore[assignment]


def sharded_in(parameter: torch.Tensor) -> str | None:
    """The name of the module of the unit that `parameter` was sharded in; None if it was in none. Other modules may still have the whole one."""
    return _sharded_in.get(parameter)


def refuse_calls_outside(module: nn.Module, unit: Unit) -> None:
    """Makes calls of `module` from outside of the unit an error: its parameters are in the unit's group, and are parts there."""
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


# These hooks are not methods of a unit, because they find the unit of their module when called.


def _before_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    unit = unit_of(module)
    assert unit is not None
    result = unit.enter(module, args, kwargs)
    module.__dict__["_shardwise_entered"] = module.__dict__.get("_shardwise_entered", 0) + 1
    return result


def _after_forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    entered = module.__dict__.get("_shardwise_entered", 0)
    if entered == 0:  # _before_forward failed
        return output
    module.__dict__["_shardwise_entered"] = entered - 1
    unit = unit_of(module)
    assert unit is not None
    return unit.leave(module, output)
