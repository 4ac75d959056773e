"""Unit: a group of parameters, the modules that compute with them, and the hooks of these modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.device_mesh import DeviceMesh
from shardwise.fsdp.extensions import Extension, has_extensions
from shardwise.fsdp.nested_tensors import cast_floats, differentiated, replaced, tensors_in
from shardwise.fsdp.policies import MixedPrecisionPolicy
from shardwise.placement_types import Placement

Places = list[tuple[nn.Module, str]]  # the places where modules keep one parameter


def unit_of(module: nn.Module) -> Unit | None:
    return module.__dict__.get("_shardwise_unit")


def units_of(modules: Iterable[nn.Module]) -> list[Unit]:
    """The units of the modules, each once."""
    return list(dict.fromkeys(unit for module in modules if (unit := unit_of(module)) is not None))


class Unit:
    """A group of parameters with its modules and settings."""

    def __init__(
        self,
        modules: list[nn.Module],
        named: list[tuple[str, Places]],
        along: list[Placement],
        mesh: DeviceMesh,
        policy: MixedPrecisionPolicy,
        settings: _C.GroupSchedule,
    ) -> None:
        """Shards the parameters, `named` with their places, and puts the parts there. Raises the errors of ParameterGroup, before anything is done."""
        self.names, self.places = [name for name, _ in named], [places for _, places in named]
        self.modules, self.policy, self.mesh = modules, policy, mesh
        parameters = self._now()
        group = _C.ParameterGroup(self.names, parameters, mesh, policy.param_dtype, policy.reduce_dtype, along)
        self.settings, self.settings.n_modules = settings, len(modules)
        self.schedule = _C.GatherSchedule()  # owns the group, or its owner is the one that has taken it
        self.sharded = [nn.Parameter(each, requires_grad=each.requires_grad) for each in group.sharded]
        self.dtypes = [each.dtype for each in self.sharded]
        self.name = type(modules[0]).__name__
        self.group = group.with_sharded(self.sharded)
        self.schedule.add(settings, self.group)
        self._listen()
        self._put(self.sharded)
        for each in (*parameters, *self.sharded):
            _C.note_taken(each, self.name)
        for module in modules:
            module.__dict__["_shardwise_unit"] = self
            module.register_forward_pre_hook(_before_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(_after_forward, always_call=True)
            module.register_load_state_dict_post_hook(self._after_loading)
        for module in {id(module): module for places in self.places for module, _ in places}.values():
            module.register_state_dict_post_hook(partial(self._into_state_dict))  # torch sets an attribute of the hook
            # Puts the parts into the modules, so that values are loaded into them.
            module.register_load_state_dict_pre_hook(lambda *_: self.group.release())

    def _listen(self) -> None:
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
            unit: Any = of_unit()
            return unit.extensions[index].pieces(unit.sharded[index], sizes)

        def whole(index: int, gathered: list[torch.Tensor], kept: torch.Tensor | None) -> Any:
            unit: Any = of_unit()
            return unit.extensions[index].whole(unit.names[index], unit.sharded[index], gathered, kept)

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

    def _put(self, parameters: Sequence[torch.Tensor]) -> None:
        """Puts the parameters into the modules."""
        for place, parameter in zip(self.places, parameters, strict=True):
            for module, name in place:
                module._parameters[name] = parameter  # type: ignore[assignment]

    def _now(self) -> list[Any]:
        return [module._parameters[name] for (module, name), *_ in self.places]

    def _exchange(self, is_gathered: bool) -> None:
        if is_gathered and not all(isinstance(self.group.leaves[i], nn.Parameter) for i in self.extensions):
            self._take_leaves()
        self._put(self.leaves if is_gathered else self.sharded)

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
        probes = (torch.empty([0] * each.dim(), dtype=each.dtype, device=each.device) for each in self.sharded)
        return any(fn(probe) is not probe for probe in probes)

    def is_hidden(self) -> bool:
        """Whether the modules have None in the places of the parameters."""
        return all(module._parameters[name] is None for place in self.places for module, name in place)

    def convert(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Applies `fn` to the parameters and their gradients, as module.to() does. The parameters stay the same objects where torch can set their
        data; otherwise new ones take their places."""
        self.group.release()
        now: list[torch.Tensor] = []
        for parameter in self.sharded:
            with torch.no_grad():
                converted = fn(parameter)
                gradient = None if parameter.grad is None else fn(parameter.grad)
            if torch._has_compatible_shallow_copy_type(parameter, converted):
                parameter.grad = None
                parameter.data = converted
                converted = parameter
            else:
                converted = nn.Parameter(converted, requires_grad=parameter.requires_grad)
            converted.grad = gradient
            now.append(converted)
        self._put(now)
        self.take_replacements(have_changed=True)

    def _after_loading(self, *_: Any) -> None:
        """Takes the parameters that were loaded. The forward of another unit may gather them ahead, before this unit's own."""
        if not any(each.is_meta for each in self._now()):  # else some are still to be loaded
            self.take_replacements()

    def take_replacements(self, have_changed: bool = False) -> None:
        """Takes the parameters that a program has put in the place of the parts, as loading with assign=True does, for the new parts.
        `have_changed`: they may have changed although they are the same objects, for example if their data has another dtype now."""
        if self.group.is_in_place:
            return
        now = self._now()
        if not have_changed and all(
            new is old and new.dtype == dtype for new, old, dtype in zip(now, self.sharded, self.dtypes, strict=True)
        ):
            return
        fresh = self.group.with_sharded(now)
        self.sharded, self.dtypes = now, [each.dtype for each in now]
        self._put(self.sharded)
        self.settings.schedule.replace(self.settings, fresh)
        self.group = fresh
        self._listen()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.take_replacements()
        if self.policy.cast_forward_inputs and self.policy.param_dtype is not None:
            args, kwargs = cast_floats((args, kwargs), self.policy.param_dtype)
        inputs = list(tensors_in((args, kwargs)))
        return _with_views((args, kwargs), inputs, self.settings.enter(type(module).__name__, id(module), inputs))

    def leave(self, module: nn.Module, output: Any) -> Any:
        outputs = differentiated(list(tensors_in(output))) if torch.is_grad_enabled() else []
        output = _with_views(output, outputs, self.settings.leave(id(module), outputs))
        return output if self.policy.output_dtype is None else cast_floats(output, self.policy.output_dtype)


def _with_views(value: Any, tensors: list[torch.Tensor], views: list[tuple[int, torch.Tensor]]) -> Any:
    """`value`, in which `tensors` stand, with views of some of them."""
    by_id = {id(tensors[place]): view for place, view in views}
    return replaced(value, lambda tensor: by_id.get(id(tensor), tensor)) if by_id else value


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
    return unit.enter(module, args, kwargs)


def _after_forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    unit = unit_of(module)
    assert unit is not None
    return unit.leave(module, output)
