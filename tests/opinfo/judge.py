"""One sample of one operator, distributed and dense: the dense result is the judge."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.testing._internal.common_methods_invocations as invocations
from layouts import N_RANKS, Scheme, distribute, schemes
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import shardwise as sw
from shardwise.testing import run_ranks

# Ranks wait no longer than this for each other: a lost step is a failure, not a hang.
COLLECTIVE_SECONDS = 20.0

# Their values are whatever was in memory.
UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


DEVICE = os.environ.get("SHARDWISE_SWEEP_DEVICE", "cpu")  # what sweep.py --device says to its workers

# Torch's samples of random operators draw after seeding. What chance decides is not compared, so let it.
invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@dataclass(frozen=True)
class Verdict:
    """What came of one sample under one scheme; an empty `failure` is a success."""

    sample: int
    scheme: str
    stage: str  # "forward", "gradient" or "second order"
    failure: str


@dataclass
class Dense:
    """What plain tensors give; no gradients: the operator has none for these arguments."""

    outputs: list[Any]
    gradients: list[torch.Tensor | None] | None = None
    second: list[torch.Tensor | None] | None = None


@dataclass
class Outcome:
    n_cases: int = 0
    failures: list[Verdict] = field(default_factory=list)
    needs_implicit: bool = False  # torch writes it in Python and makes plain tensors there
    gathered: list[str] = field(default_factory=list)  # operators without a rule for these layouts


@contextmanager
def another_seed() -> Iterator[None]:
    """Calls that seed the generator themselves are random all the same."""
    seed = torch.manual_seed
    torch.manual_seed = lambda number: seed(int(number) + 1)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.manual_seed = seed  # type: ignore[assignment]


def call(op: OpInfo, tree: Any) -> Any:
    sample_input, args, kwargs = tree
    return op.op(sample_input, *args, **kwargs)


def differentiable(outputs: Sequence[Any]) -> list[torch.Tensor]:
    return [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad and out.numel() >= 0]


def fresh(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def cotangent(out: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(out.numel(), dtype=torch.float64, device=out.device) % 7 / 4 - 0.5
    return steps.reshape(out.shape).to(out.dtype)


def run_dense(op: OpInfo, sample: SampleInput, tree: Any) -> Dense:
    tree = tree_map(fresh, tree)
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    outputs = tree_leaves(call(op, tree))
    chosen = differentiable(tree_leaves(sample.output_process_fn_grad(outputs[0]) if len(outputs) == 1 else outputs))
    dense = Dense([out.detach() if isinstance(out, torch.Tensor) else out for out in outputs])
    if leaves and chosen:
        dense.gradients = gradients(chosen, leaves, op.supports_gradgrad)
        again = differentiable(dense.gradients)
        if op.supports_gradgrad and again:
            dense.second = gradients(again, leaves, create_graph=False)
    return dense


def gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], create_graph: bool) -> list[Any]:
    """Of `leaves`, for fixed gradients of `outputs`."""
    seeds = [replica(cotangent(out), out) for out in outputs]
    return list(torch.autograd.grad(outputs, leaves, seeds, allow_unused=True, create_graph=create_graph))


def strays(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> str:
    """Empty where the .grad of each leaf lies as the leaf after backward()."""
    outputs = [out for out in outputs if not out.is_leaf]
    if not outputs:
        return ""
    seeds = [replica(cotangent(out), out) for out in outputs]
    torch.autograd.backward(outputs, seeds, inputs=leaves, retain_graph=True)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, sw.DTensor) and leaf.grad is not None:
            wanted = tuple(sw.Replicate() if each.is_partial() else each for each in leaf.placements)
            if leaf.grad.placements != wanted:
                return f".grad {i} lies as {leaf.grad.placements}, its leaf as {leaf.placements}"
    return ""


def replica(tensor: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    if not isinstance(beside, sw.DTensor):
        return tensor
    placements = [sw.Replicate()] * beside.device_mesh.ndim
    return sw.distribute_tensor(tensor, beside.device_mesh, placements, src_data_rank=None)


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Empty where they are equal within float32's rounding."""
    actual, expected = actual.detach(), expected.detach()
    if isinstance(actual, sw.DTensor):
        actual = actual.full_tensor()
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)}, dense {list(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, dense {expected.dtype}"
    if actual.layout != expected.layout:
        return f"layout {actual.layout}, dense {expected.layout}"
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    scale = 1.0
    if expected.is_floating_point() or expected.is_complex():
        finite = expected[expected.isfinite()].abs()
        scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    try:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def strides_differ(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Empty where they are equal along dims of several elements, or there is no element."""
    if expected.layout != torch.strided or expected.numel() == 0:
        return ""
    dims = [dim for dim, n in enumerate(expected.shape) if n > 1]
    ours, theirs = ([tensor.stride(dim) for dim in dims] for tensor in (actual, expected))
    return "" if ours == theirs else f"strides {list(actual.stride())}, dense {list(expected.stride())}"


def compare(actual: Sequence[Any], expected: Sequence[Any], distributed: bool, strides: bool = False) -> str:
    if len(actual) != len(expected):
        return f"{len(actual)} results, dense {len(expected)}"
    for i, (ours, theirs) in enumerate(zip(actual, expected)):
        if not isinstance(theirs, torch.Tensor):
            same = ours == theirs or (ours != ours and theirs != theirs)
            if not same and isinstance(theirs, float):
                same = abs(ours - theirs) <= 1e-4 * max(1.0, abs(theirs))
            if not same:
                return f"result {i} is {ours}, dense {theirs}"
            continue
        if distributed and not isinstance(ours, sw.DTensor):
            return f"result {i} is a plain tensor"
        if found := difference(ours, theirs) or (strides_differ(ours, theirs) if strides else ""):
            return f"result {i}: {found}"
    return ""


def run_scheme(
    op: OpInfo, sample: SampleInput, tree: Any, scheme: Scheme, dense: Dense, skip: Collection[int], implicit: bool
) -> list[tuple[str, str]]:
    """The stages that failed, with their reasons: the first rank's."""
    leaves, spec = tree_flatten(tree)

    def run(rank: int) -> list[tuple[str, str]]:
        with sw.implicit_replication() if implicit else nullcontext():
            return run_member(rank)

    def run_member(rank: int) -> list[tuple[str, str]]:
        mesh = sw.init_device_mesh(DEVICE, (N_RANKS,))
        ours, index = [], 0
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                leaf = distribute(leaf, mesh, scheme.place(leaf, index), rank)
                index += 1
            ours.append(leaf)
        wanted = [leaf for leaf in ours if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        try:
            outputs = tree_leaves(call(op, tree_unflatten(ours, spec)))
            kept = [(out, theirs) for i, (out, theirs) in enumerate(zip(outputs, dense.outputs)) if i not in skip]
            pairs = list(zip(*kept)) if kept else [(), ()]
            if len(outputs) != len(dense.outputs):
                return [("forward", f"{len(outputs)} results, dense {len(dense.outputs)}")]
            if found := compare(pairs[0], pairs[1], distributed=index > 0, strides=True):
                return [("forward", found)]
        except Exception as error:
            return [("forward", describe(error))]
        if dense.gradients is None:
            return []
        stage = "gradient"
        try:
            results = tree_leaves(sample.output_process_fn_grad(outputs[0]) if len(outputs) == 1 else outputs)
            if found := strays(differentiable(results), wanted):
                return [(stage, found)]
            first = gradients(differentiable(results), wanted, dense.second is not None)
            if found := compare(first, dense.gradients, distributed=True):
                return [(stage, found)]
            if dense.second is not None:
                stage = "second order"
                if found := compare(gradients(differentiable(first), wanted, False), dense.second, distributed=True):
                    return [(stage, found)]
        except Exception as error:
            return [(stage, describe(error))]
        return []

    try:
        by_rank = run_ranks(N_RANKS, run, timeout=COLLECTIVE_SECONDS)
    except Exception as error:
        return [("forward", f"lost step: {describe(error)}")]
    return next((failures for failures in by_rank if failures), [])


def gathered_operators(op: OpInfo, tree: Any, scheme: Scheme) -> set[str]:
    """The operators that this call reaches and that gather what is sharded."""
    leaves, spec = tree_flatten(tree)

    def run(rank: int) -> set[str]:
        mesh = sw.init_device_mesh(DEVICE, (N_RANKS,))
        tensors = iter(range(len(leaves)))
        ours = [
            distribute(leaf.detach(), mesh, scheme.place(leaf, next(tensors)), rank)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        ]
        trace = sw._C.EventReader("explain", operators=True)
        trace.open()
        with contextlib.suppress(Exception):
            call(op, tree_unflatten(ours, spec))
        trace.close()
        return {
            record.op
            for record in trace.operators(with_composites=False)
            if "replicated" in record.rule and record.given != record.used
        }

    try:
        return set().union(*run_ranks(N_RANKS, run, timeout=COLLECTIVE_SECONDS))
    except Exception:
        return set()


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def random_state() -> torch.Tensor:
    return torch.get_rng_state() if DEVICE == "cpu" else torch.get_device_module(DEVICE).get_rng_state()


def random_outputs(a: Sequence[Any], b: Sequence[Any]) -> set[int]:
    """Numbers of the outputs that differ between two runs."""
    return {i for i, (x, y) in enumerate(zip(a, b)) if compare([x], [y], distributed=False)}


def judge(op: OpInfo, max_samples: int, report: Callable[[str], None] = lambda text: None) -> Outcome:
    """All schemes over at most `max_samples` samples of `op`, evenly chosen."""
    outcome = Outcome()
    if op.name in UNINITIALIZED:
        return outcome
    torch.manual_seed(0)
    samples = list(op.sample_inputs(DEVICE, torch.float32, requires_grad=op.supports_autograd))
    if len(samples) > max_samples:
        step = len(samples) / max_samples
        samples = [samples[int(i * step)] for i in range(max_samples)]
    for number, sample in enumerate(samples):
        tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
        if any(isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided for leaf in tree_leaves(tree)):
            continue
        try:
            torch.manual_seed(1)
            before = random_state()
            dense = run_dense(op, sample, tree)
            draws = 1 if torch.equal(before, random_state()) else 12  # few values are often equal by chance
            skip = set()
            for draw in range(draws):
                with another_seed():
                    torch.manual_seed(2 + draw)
                    skip |= random_outputs(run_dense(op, sample, tree).outputs, dense.outputs)
        except Exception:
            continue  # not a call that plain tensors answer
        if skip:
            dense.gradients = None
            if len(skip) == len(dense.outputs):
                continue
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        gathered: set[str] = set()
        for scheme in schemes(tensors):
            if scheme.name.startswith("uneven"):
                gathered |= gathered_operators(op, tree, scheme)
            outcome.n_cases += 1
            report(f"sample {number}, {scheme.name}")
            failures = run_scheme(op, sample, tree, scheme, dense, skip, outcome.needs_implicit)
            if any("next to a DTensor" in reason for _, reason in failures) and not outcome.needs_implicit:
                outcome.needs_implicit = True
                failures = run_scheme(op, sample, tree, scheme, dense, skip, implicit=True)
            outcome.gathered = sorted({*outcome.gathered, *gathered})
            outcome.failures += [Verdict(number, scheme.name, stage, reason) for stage, reason in failures]
    return outcome
