"""Experts of a mixture, each on one rank: tokens go to them and come back."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from shardwise._C import RoutedTokens, combine_tokens, dispatch_tokens
from shardwise._utils import compute_local_shape_and_global_offset
from shardwise.device_mesh import DeviceMesh
from shardwise.dtensor import DTensor
from shardwise.interop.data_parallel import dtensor_places, put_back
from shardwise.interop.state_dicts import take_plain_values
from shardwise.module_tensors import Place
from shardwise.parallel.style import ParallelStyle, one_dim, shard_parameters
from shardwise.placement_types import Placement, Shard


class ExpertParallel(ParallelStyle):
    """A style for the experts of a mixture, in one module whose parameters are stacked by expert: each rank has some experts, and receives the
    tokens for them.

    The module is called in one of two forms: with `(hidden_states, top_k_index, top_k_weights)`, as the experts of transformers are
    (Mixtral, GPT-OSS, Qwen3-MoE and others), or with `(x, num_tokens_per_expert)`, where the rows of `x` are ordered by expert. Tokens are
    [n_tokens, features].

    The module's parameters become DTensors sharded along dim 0. On each rank its forward runs as if this rank's experts were all experts:
    parameters are plain tensors of these experts, and the arguments, in the same two forms, hold the tokens for them, each token once per
    expert. If the module has an attribute `num_experts`, it is the number of this rank's experts during the forward. No expert is gathered,
    and no token dropped. The number of experts need not be a multiple of the number of ranks, but each rank needs at least one expert. The
    module's load_state_dict() also takes plain values that are equal on all ranks: each rank takes its experts.

    `input_layouts`: Shard(0) (the default) if plain tokens are this rank's own, any number of them; Replicate() if they are the same on all
    ranks. The output has the layout of the tokens. `use_local_output`: if True, plain tokens give a plain output; if False, plain replicated
    tokens give a DTensor.
    `num_experts`: the name of that attribute.

    Collective over the mesh in each forward and backward, also on ranks without tokens: dispatch_tokens() and combine_tokens() say what is
    sent. Raises ValueError if parameters differ in their dim 0 or there are fewer experts than ranks, and TypeError for calls of another
    form.

    >>> class Experts(torch.nn.Module):
    ...     def __init__(self, n_experts, features):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.randn(n_experts, features, features))
    ...     def forward(self, x, num_tokens_per_expert):
    ...         offs = num_tokens_per_expert.cumsum(0, dtype=torch.int32)
    ...         return torch.nn.functional.grouped_mm(x, self.weight, offs=offs)
    >>> experts = sw.parallel.parallelize_module(Experts(6, 8), mesh, sw.parallel.ExpertParallel())
    >>> experts.weight.placements  # 6 experts on 4 ranks
    (Shard(0, sizes=[2, 2, 1, 1]),)
    >>> experts(torch.ones(9, 8), torch.tensor([3, 0, 2, 0, 0, 4])).shape  # this rank's 9 tokens, ordered by expert
    torch.Size([9, 8])
    """

    def __init__(
        self, *, input_layouts: Placement | None = None, use_local_output: bool = True, num_experts: str = "num_experts"
    ) -> None:
        self.input_layouts = (input_layouts or Shard(0),)
        self.use_local_output = use_local_output
        self.num_experts = num_experts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mesh = one_dim(self, device_mesh)
        _shard_by_expert(module, mesh, self.src_data_rank)
        take_plain_values(module)
        calls: list[_Call] = []

        def enter(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            tokens, *of_tokens = _arguments(layer, args, kwargs)
            while calls:  # left over after a KeyboardInterrupt, for which torch calls no hooks
                calls.pop().end(layer)
            is_plain = not isinstance(tokens, DTensor)
            if is_plain and not self.input_layouts[0].is_shard():
                tokens = DTensor.from_local(tokens, mesh, self.input_layouts)
                of_tokens = [
                    value if isinstance(value, DTensor) else DTensor.from_local(value, mesh, self.input_layouts)
                    for value in of_tokens
                ]
            calls.append(_Call.begin(layer, self.num_experts, tokens, of_tokens, is_plain and self.use_local_output))
            return calls[-1].inputs, {}

        def leave(layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor | None) -> torch.Tensor | None:
            if not calls:  # the arguments did not fit
                return None
            call = calls.pop()
            call.end(layer)
            return None if output is None else call.combined(output)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)
        return module


def _shard_by_expert(module: nn.Module, mesh: DeviceMesh, src_data_rank: int | None) -> None:
    """Shards all parameters along dim 0. Raises ValueError if they are not stacked by expert, or a rank would have no expert."""
    named = module.named_parameters(remove_duplicate=False)
    shapes = {path: tuple(parameter.shape) for path, parameter in named}
    counts = {shape[0] if shape else 0 for shape in shapes.values()}
    n, n_ranks = max(counts, default=0), mesh.size()
    if len(counts) != 1 or n == 0:
        raise ValueError(
            f"[ExpertParallel] {type(module).__name__} has the parameters {shapes or 'none'}: each must be stacked by expert, with "
            "as many experts in its dim 0 as the others. Name the module that has the experts' parameters alone, and stack those of "
            "experts that are modules of their own."
        )
    if n < n_ranks:
        raise ValueError(
            f"[ExpertParallel] {type(module).__name__} has {n} experts for the {n_ranks} ranks of {mesh}: some would have none. Use a "
            f"mesh dim of at most {n} ranks, and the other ranks for data."
        )
    placement = Shard(0, sizes=[n // n_ranks + (rank < n % n_ranks) for rank in range(n_ranks)])
    shard_parameters(module, mesh, dict.fromkeys(shapes, placement), src_data_rank)


def _arguments(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The arguments of a call, in the order of the forward's parameters. Raises TypeError for other forms of calls."""
    values = list(inspect.signature(layer.forward).bind(*args, **kwargs).arguments.values())
    if len(values) not in (2, 3) or not all(isinstance(value, torch.Tensor) for value in values):
        raise TypeError(
            f"[ExpertParallel] {type(layer).__name__} was called with {', '.join(type(value).__name__ for value in values)}: tokens can go "
            "to their experts only if a call gives (hidden_states, top_k_index, top_k_weights) or (x, num_tokens_per_expert), all tensors. "
            "Call dispatch_tokens() and combine_tokens() in the forward of other modules."
        )
    return values


class _Call(NamedTuple):
    """One forward, between its hooks."""

    routed: RoutedTokens
    inputs: tuple[torch.Tensor, ...]
    held: list[Place]  # of the parameters, which local ones replace during the call
    counter: tuple[str, int] | None  # the attribute with the number of experts, and that number
    is_stand_in: bool  # this rank has no tokens, so its module gets a row of zeros
    gives_plain: bool

    @staticmethod
    def begin(
        layer: nn.Module, attribute: str, tokens: torch.Tensor, of_tokens: list[torch.Tensor], gives_plain: bool
    ) -> "_Call":
        held = dtensor_places(layer)
        experts: Any = held[0].original
        is_by_counts = len(of_tokens) == 1
        mistake = None
        if is_by_counts:
            ids, mistake = _experts_of_rows(tokens, of_tokens[0], experts)
            of_tokens = [ids]
        try:
            routed = dispatch_tokens(tokens, *of_tokens, experts=experts)
        except ValueError as error:  # on all ranks
            raise error if mistake is None else ValueError(mistake) from None
        (n_own, *_), (first, *_) = compute_local_shape_and_global_offset(
            experts.shape, experts.device_mesh, experts.placements
        )
        rows, own = routed.rows.to_local(), routed.expert_ids.to_local() - first
        is_stand_in = len(rows) == 0
        if is_stand_in:  # the module may not accept an empty input, and its parameters need a gradient
            rows, own = rows.new_zeros(1, rows.shape[1]), own.new_zeros(1)
        if is_by_counts:
            inputs: tuple[torch.Tensor, ...] = (rows, own.bincount(minlength=n_own))
        else:
            assert routed.weights is not None  # of_tokens has them
            weights = routed.weights.to_local()
            inputs = (rows, own[:, None], (weights.new_zeros(1) if is_stand_in else weights)[:, None])
        call = _Call(routed, inputs, held, (attribute, len(experts)), is_stand_in, gives_plain)
        try:
            for place in held:
                place.tensor = place.original.to_local()  # type: ignore[attr-defined]
            # An attribute computed from the parameters has changed with them.
            if n_own == len(experts) or getattr(layer, attribute, None) != len(experts):
                return call._replace(counter=None)
            setattr(layer, attribute, n_own)
        except BaseException:
            call._replace(counter=None).end(layer)
            raise
        return call

    def end(self, layer: nn.Module) -> None:
        put_back(self.held)
        if self.counter is not None:
            setattr(layer, *self.counter)

    def combined(self, output: torch.Tensor) -> torch.Tensor:
        result = combine_tokens(output[:0] if self.is_stand_in else output, self.routed)
        return result.to_local() if self.gives_plain and isinstance(result, DTensor) else result


def _experts_of_rows(tokens: torch.Tensor, counts: torch.Tensor, experts: DTensor) -> tuple[torch.Tensor, str | None]:
    """The expert of each row, from the `counts` of the experts in order, and None. If they do not fit: ids that dispatch_tokens() refuses on all
    ranks, so that no other rank waits for this one's tokens, and the error text."""
    whole = counts.full_tensor() if isinstance(counts, DTensor) else counts
    fits = whole.shape == experts.shape[:1] and bool((whole >= 0).all()) and int(whole.sum()) == len(tokens)
    mistake = None
    if fits:
        ids = torch.arange(len(whole), device=whole.device).repeat_interleave(whole.long())
    else:
        ids = torch.zeros(len(tokens) + 1, dtype=torch.long, device=tokens.device)
        mistake = (
            f"[ExpertParallel] num_tokens_per_expert of shape {list(whole.shape)}, {int(whole.sum())} in all, came with {len(tokens)} rows "
            f"for {len(experts)} experts. Give a number for each expert, none negative, which add up to the rows."
        )
    return (DTensor.from_local(ids, tokens.device_mesh) if isinstance(tokens, DTensor) else ids), mistake
