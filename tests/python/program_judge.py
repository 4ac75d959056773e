"""Runs a program on tensors and on DTensors, compares them, and shrinks one that differs to the shortest that still does."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from program_writer import Program, dense_scope, tensors_in

import shardwise as sw
from shardwise import EnumerableShard, RaggedShard, Replicate, Shard
from shardwise.testing import run_ranks

TOLERANCE = 1e-7  # of float64 values, relative to the largest
TIMEOUT = 20.0  # seconds that a rank waits for another


# Differences that are meant: who raises, words of the error, why.
KNOWN = [
    ("tensors", "modified by an inplace operation", "torch saves more for its backward than its formula reads"),
    ("DTensors", "of memory are not all in the DTensor", "ranks have no memory between the elements of a tensor"),
    ("DTensors", "with strides that do not tell where", "the same, for a view whose base was cut in place"),
    ("DTensors", "gave a view the memory of another tensor", "torch takes the gradient for one of the old memory"),
    ("DTensors", "does not grow", "a base in pieces cannot grow with its view"),
]


@dataclass
class Outcome:
    """What a program gave: the errors by step, the tensors at its end, the gradients of its inputs."""

    errors: dict[int | str, str] = field(default_factory=dict)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    flags: dict[str, tuple] = field(default_factory=dict)
    facts: dict[str, dict] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    kind: str  # what shrinking keeps
    text: str


def execute(program: Program, scope: dict) -> Outcome:
    """Every step, whatever those before it did; then the gradient of all that has one."""
    outcome = Outcome()
    for i, step in enumerate(program.steps):
        try:
            exec(step, scope)
        except Exception as error:
            outcome.errors[i] = f"{type(error).__name__}: {error}"
    tensors = tensors_in(scope)
    if program.is_of_views:
        outcome.facts = {name: facts_of(x, tensors) for name, x in tensors.items()}
    outcome.flags = {name: flags_of(x) for name, x in tensors.items()}
    sources = []
    for name, x in tensors.items():
        try:
            if x.requires_grad:
                sources.append((x * x.detach().cos()).sum())
        except Exception as error:
            outcome.errors[f"use of {name}"] = f"{type(error).__name__}: {error}"
    try:
        if sources:
            sum(sources).backward()
    except Exception as error:
        outcome.errors["the final backward"] = f"{type(error).__name__}: {error}"
    outcome.values = {name: x.detach() for name, x in tensors.items()}
    # One that raises has gone through part of the graph, and which part is nobody's promise.
    if not any("backward" in line_of(program, step) for step in outcome.errors):
        outcome.values |= {
            f"{leaf.name}.grad": scope[leaf.name].grad for leaf in program.inputs if has_grad(scope[leaf.name])
        }
    return outcome


def line_of(program: Program, step: int | str) -> str:
    return program.steps[step] if isinstance(step, int) else step


def flags_of(x: torch.Tensor) -> tuple:
    """Its shape, whether it has a gradient and whether it is a leaf; torch refuses to say that of some views."""
    try:
        return tuple(x.shape), x.requires_grad, x.is_leaf
    except (RuntimeError, ValueError) as error:
        return tuple(x.shape), type(error).__name__


def facts_of(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict:
    """How it lies in memory, which tensor it is a view of, and whether and how often autograd has seen it written to."""
    return {
        "strides": x.stride(),
        "offset": x.storage_offset(),
        "is_view": x._is_view(),
        "base": x._is_view() and next((name for name, other in tensors.items() if other is x._base), None),
        "is_inference": x.is_inference(),
        "version": "none" if x.is_inference() else x._version,
    }


def has_grad(x: torch.Tensor) -> bool:
    try:
        return x.is_leaf and x.grad is not None
    except RuntimeError:
        return False


def run_dense(program: Program) -> Outcome:
    return execute(program, dense_scope() | {leaf.name: leaf.dense() for leaf in program.inputs})


def run_distributed(program: Program) -> Outcome:
    """On this rank, whose world is as large as the program's mesh."""
    mesh = sw.init_device_mesh("cpu", program.mesh)

    def make(leaf):
        values = leaf.dense().detach()
        return sw.distribute_tensor(values, mesh, leaf.placements).requires_grad_(leaf.requires_grad)

    def relayout(tensor, placements):
        return tensor.redistribute(placements=placements).clone()

    scope = dense_scope() | {"relayout": relayout} | {leaf.name: make(leaf) for leaf in program.inputs}
    outcome = execute(program, scope)
    outcome.values = {name: x.full_tensor() if isinstance(x, sw.DTensor) else x for name, x in outcome.values.items()}
    return outcome


def compare(program: Program, dense: Outcome, ours: Outcome) -> Difference | None:
    errors = [("tensors", text) for text in dense.errors.values()] + [
        ("DTensors", text) for text in ours.errors.values()
    ]
    if any(who == known and words in text for who, text in errors for known, words, _ in KNOWN):
        return None
    for i in [*range(len(program.steps)), *(dense.errors | ours.errors)]:
        if (i in dense.errors) != (i in ours.errors):
            who, error = ("DTensors", ours.errors[i]) if i in ours.errors else ("tensors", dense.errors[i])
            return Difference(f"only {who} raise", f"{line_of(program, i)}: only {who} raise {error}")
    for name, flags in dense.flags.items():
        if name not in ours.flags:
            return Difference("missing", f"{name} is missing")
        if ours.flags[name] != flags:
            kind = "shape" if ours.flags[name][0] != flags[0] else "flags"
            return Difference(kind, f"{name}: (shape, requires_grad, is_leaf) are {ours.flags[name]}, not {flags}")
    for name, facts in dense.facts.items():
        for fact, value in facts.items():
            if ours.facts[name][fact] != value:
                return Difference(fact, f"{name}: {fact} is {ours.facts[name][fact]}, not {value}")
    for name, expected in dense.values.items():
        kind = "gradient" if name.endswith(".grad") else "value"
        if name not in ours.values:
            return Difference(kind, f"{name} is missing")
        found = ours.values[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return Difference(
                kind, f"{name} is {found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}"
            )
        if not is_close(found, expected):
            return Difference(kind, f"{name} is\n{found}\nand not\n{expected}")
    extra = ours.values.keys() - dense.values.keys()
    return Difference("gradient", f"{sorted(extra)} are there on DTensors only") if extra else None


def is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = b[b.isfinite()].abs()
    scale = 1 + (finite.max().item() if finite.numel() else 0)
    return torch.allclose(a, b, rtol=0, atol=TOLERANCE * scale, equal_nan=True)


def judge(programs: Sequence[Program]) -> list[Difference | None]:
    """Each program's difference, None where it has none. Those of one number of ranks run in one world."""
    result: list[Difference | None] = [None] * len(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_ranks: dict[int, list[int]] = {}
        for i, program in enumerate(programs):
            by_ranks.setdefault(prod(program.mesh), []).append(i)
        for n_ranks, group in by_ranks.items():
            for i, difference in zip(group, judge_group(n_ranks, [programs[i] for i in group]), strict=True):
                result[i] = difference
    return result


def judge_group(n_ranks: int, programs: Sequence[Program]) -> list[Difference | None]:
    dense = [run_dense(program) for program in programs]

    def on_rank(rank):
        return [compare(program, d, run_distributed(program)) for program, d in zip(programs, dense, strict=True)]

    try:
        by_rank = run_ranks(n_ranks, on_rank, timeout=TIMEOUT)
    except Exception as error:
        if len(programs) == 1:
            return [Difference("ranks part", f"ranks part: {type(error).__name__}: {error}")]
        half = len(programs) // 2
        return judge_group(n_ranks, programs[:half]) + judge_group(n_ranks, programs[half:])
    return [next((d for d in found if d), None) for found in zip(*by_rank, strict=True)]


def shrink(program: Program, difference: Difference) -> tuple[Program, Difference]:
    """The shortest program found with a difference of the same kind."""
    shrinking = True
    while shrinking:
        shrinking = False
        for smaller in smaller_programs(program):
            found = judge([smaller])[0]
            if found and found.kind == difference.kind:
                program, difference, shrinking = smaller, found, True
                break
    return program, difference


def smaller_programs(program: Program) -> Iterable[Program]:
    steps = program.steps
    for n in (8, 4, 2, 1):
        for i in range(len(steps) - n + 1):
            fewer = steps[: len(steps) - i - n] + steps[len(steps) - i :]
            yield replace(program, steps=fewer)
    for i in range(len(program.inputs)):
        yield replace(program, inputs=program.inputs[:i] + program.inputs[i + 1 :])
    has_boxes = any(
        isinstance(placement, EnumerableShard | RaggedShard) for leaf in program.inputs for placement in leaf.placements
    )
    for smaller_mesh in [(1,), (2,)]:
        if not has_boxes and (prod(program.mesh) > prod(smaller_mesh) or len(program.mesh) > 1):
            yield replace(
                program,
                mesh=smaller_mesh,
                inputs=[replace(leaf, placements=leaf.placements[:1]) for leaf in program.inputs],
            )
    for i, leaf in enumerate(program.inputs):
        choices = [(Replicate(),) * len(program.mesh)]
        if leaf.shape and choices[0] != leaf.placements:
            choices.append((Shard(0),) + (Replicate(),) * (len(program.mesh) - 1))
        if leaf.placements != choices[0]:
            for placements in choices:
                if placements != leaf.placements:
                    yield replace(
                        program,
                        inputs=[*program.inputs[:i], replace(leaf, placements=placements), *program.inputs[i + 1 :]],
                    )
        if leaf.requires_grad:
            yield replace(
                program, inputs=[*program.inputs[:i], replace(leaf, requires_grad=False), *program.inputs[i + 1 :]]
            )


def to_lines(program: Program) -> list[str]:
    inputs = [
        f"{leaf.name} = make({leaf.shape}, {leaf.seed}, {list(leaf.placements)}, {leaf.requires_grad})"
        for leaf in program.inputs
    ]
    return inputs + program.steps


def to_source(program: Program) -> str:
    """The program as Python that runs by itself, on tensors and on DTensors."""
    body = "".join(f"    {line}\n" for line in to_lines(program))
    return SOURCE.format(mesh=program.mesh, n_ranks=prod(program.mesh), body=body)


SOURCE = """\
import torch
import shardwise as sw
from program_writer import PLACEMENTS, Program, dense_scope, tensors_in
from shardwise.testing import run_ranks

globals().update(PLACEMENTS)

def program(make, relayout):
{body}    for name, value in list(locals().items()):
        if isinstance(value, torch.Tensor):
            print(name, value.full_tensor() if isinstance(value, sw.DTensor) else value)

def values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

def make(shape, seed, placements, requires_grad):
    return values(shape, seed).requires_grad_(requires_grad)

def on_rank(rank):
    mesh = sw.init_device_mesh("cpu", {mesh})
    def make(shape, seed, placements, requires_grad):
        return sw.distribute_tensor(values(shape, seed), mesh, placements).requires_grad_(requires_grad)
    program(make, lambda x, placements: x.redistribute(placements=placements).clone())

program(make, lambda x, placements: x.clone())
run_ranks({n_ranks}, on_rank)
"""
