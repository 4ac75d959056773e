"""What one rank keeps and returns, over torch's own list of operators: a DTensor of one rank against the plain tensor.

    python tests/opinfo/one_rank.py                  a few samples of each operator
    python tests/opinfo/one_rank.py --samples 1000   all of them
    python tests/opinfo/one_rank.py --ops linear     these, with every difference

Compared for each sample, with its operands as they are, transposed, and channels last:

    strides   of every result
    kept      bytes that the forward's graph holds for the backward, each memory once, for every subset of one, or all, operands that need
              a gradient
    writes    for every operand: whether the backward refuses it after a write to it
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
import torch.distributed as dist
from judge import UNINITIALIZED
from sweep import DEADLINE, float_ops
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

# What differs from dense, and why.
KNOWN = {
    "combinations": "keeps the positions of the mask's elements, which are what is sent",
    "masked_select": "the same",
    "nn.functional.embedding_bag": "keeps copies of offsets and weights, so that writes to them are taken",
    "nn.functional.instance_norm": "dense keeps a copy of the weight",
    "nn.functional.scaled_dot_product_attention": "a mask of bools is kept as terms",
    "nn.functional.multi_head_attention_forward": "the same",
    "linalg.eig": "LAPACK's vectors are column-major, and torch's meta kernel, which is asked, is row-major",
    "svd_lowrank": "the same",
    "pca_lowrank": "the same",
}


@dataclass
class Result:
    name: str
    n_cases: int = 0
    differences: list[str] = field(default_factory=list)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor.clone()


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.clone()


MEMORY = {"as given": torch.clone, "transposed": transposed, "channels last": channels_last}


class Side:
    """Plain tensors, or DTensors of one rank."""

    def __init__(self, mesh: Any = None) -> None:
        self.mesh = mesh

    def operand(self, tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        """A copy with the same strides."""
        own = tensor.detach().clone(memory_format=torch.preserve_format)
        if self.mesh is not None:
            import shardwise as sw

            placement = sw.Shard(0) if own.dim() else sw.Replicate()
            own = sw.DTensor.from_local(own, self.mesh, [placement], run_check=False).detach()
        return own.requires_grad_(requires_grad)

    def call(self, op: Any, leaves: list[Any], spec: Any, needing: frozenset[int]) -> tuple[list[torch.Tensor], Any]:
        """The operands, by number, and the result."""
        numbers = itertools.count()
        operands: list[torch.Tensor] = []
        ours = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                leaf = self.operand(leaf, next(numbers) in needing)
                operands.append(leaf)
            ours.append(leaf)
        sample_input, args, kwargs = tree_unflatten(ours, spec)
        torch.manual_seed(0)
        return operands, op.op(sample_input, *args, **kwargs)


def local(tensor: torch.Tensor) -> torch.Tensor:
    import shardwise as sw

    return tensor._local_tensor if isinstance(tensor, sw.DTensor) else tensor


def strides(result: Any) -> list[Any]:
    found = []
    for out in tree_leaves(result):
        if isinstance(out, torch.Tensor) and out.layout == torch.strided:
            meaningful = [s if n > 1 else 0 for n, s in zip(out.shape, out.stride(), strict=True)]
            found.append(meaningful if out.numel() else [])
    return found


def kept_bytes(side: Side, op: Any, leaves: list[Any], spec: Any, needing: frozenset[int]) -> int:
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:
            storage = local(tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _, result = side.call(op, leaves, spec, needing)
    del result
    return sum(storages.values())


def refuses_write(side: Side, op: Any, leaves: list[Any], spec: Any, needing: frozenset[int], written: int) -> bool:
    operands, result = side.call(op, leaves, spec, needing)
    outputs = [out for out in tree_leaves(result) if isinstance(out, torch.Tensor) and out.requires_grad]
    with torch.no_grad():
        operands[written].zero_()
    try:
        torch.autograd.grad(
            outputs,
            [operands[i] for i in sorted(needing)],
            [torch.ones_like(out) for out in outputs],
            allow_unused=True,
        )
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            return True
        raise
    return False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def judge(name: str, max_samples: int) -> Result:
    import shardwise as sw

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        torch.set_num_threads(1)
    op, result = float_ops()[name], Result(name)
    if op.name in UNINITIALIZED:
        return result
    plain, ours = Side(), Side(sw.init_device_mesh("cpu", (1,)))
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    if len(samples) > max_samples:
        step = len(samples) / max_samples
        samples = [samples[int(i * step)] for i in range(max_samples)]
    for number, sample in enumerate(samples):
        for memory, change in MEMORY.items():
            tree = (sample.input, tuple(sample.args), dict(sample.kwargs))
            leaves, spec = tree_flatten(tree)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if any(tensor.layout != torch.strided for tensor in tensors):
                continue
            able = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
            changed = [change(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            if memory != "as given" and all(
                a.stride() == b.stride() for a, b in zip(tensors, changed) if isinstance(b, torch.Tensor)
            ):
                continue
            compare(result, f"sample {number}, {memory}", plain, ours, op, changed, spec, able)
    return result


def compare(
    result: Result, at: str, plain: Side, ours: Side, op: Any, leaves: list[Any], spec: Any, able: list[int]
) -> None:
    with quiet():
        try:
            expected = strides(plain.call(op, leaves, spec, frozenset())[1])
        except Exception:
            return  # not a call that plain tensors answer
        result.n_cases += 1
        try:
            with sw_implicit():
                found = strides(ours.call(op, leaves, spec, frozenset())[1])
                if found != expected:
                    result.differences.append(f"{at}: strides {found}, dense {expected}")
                subsets = {frozenset(able), *(frozenset([i]) for i in able)} - {frozenset()}
                for needing in sorted(subsets, key=sorted):
                    of = f"{at}, gradients of {sorted(needing)}"
                    dense, kept = (kept_bytes(side, op, leaves, spec, needing) for side in (plain, ours))
                    if kept > dense:
                        result.differences.append(f"{of}: {kept} bytes kept, dense {dense}")
                    for written in range(sum(isinstance(leaf, torch.Tensor) for leaf in leaves)):
                        if not able or written in needing:
                            continue
                        theirs = refuses_write(plain, op, leaves, spec, needing, written)
                        mine = refuses_write(ours, op, leaves, spec, needing, written)
                        if theirs != mine:
                            result.differences.append(
                                f"{of}: a write to {written} {'is refused' if mine else 'is taken'}"
                            )
        except Exception as error:
            result.differences.append(f"{at}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")


def sw_implicit() -> Any:
    import shardwise as sw

    return sw.implicit_replication()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", help="these operators only")
    parser.add_argument("--samples", type=int, default=1, help="at most so many of an operator (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all differences here")
    parser.add_argument("--junit", type=Path, help="write a report for scripts/tally.py here")
    options = parser.parse_args()
    names = [
        name for name, op in float_ops().items() if not options.ops or name in options.ops or op.name in options.ops
    ]
    begin, results = time.monotonic(), {}
    with ProcessPoolExecutor(options.jobs) as pool:
        if time.time() < DEADLINE:
            for done in as_completed(pool.submit(judge, name, options.samples) for name in names):
                results[done.result().name] = done.result()
    results = [results[name] for name in names if name in results and results[name].n_cases]
    for result in results:
        reason = f"  (known: {KNOWN[result.name]})" if result.name in KNOWN else ""
        for difference in result.differences if options.ops else result.differences[:1]:
            print(f"{result.name} ({len(result.differences)}): {difference}{reason}")
    equal = sum(not result.differences for result in results)
    n_cases = sum(result.n_cases for result in results)
    print(f"{len(results)} operators, {n_cases:,} cases in {time.monotonic() - begin:.0f} s: {equal} as dense")
    if options.json:
        options.json.write_text(json.dumps({result.name: result.differences for result in results}, indent=1))
    if options.junit:
        suite = ElementTree.Element("testsuite", name="one_rank")
        for result in results:
            case = ElementTree.SubElement(suite, "testcase", classname="one_rank", name=result.name)
            if result.differences:
                ElementTree.SubElement(case, "skipped" if result.name in KNOWN else "failure")
        ElementTree.ElementTree(suite).write(options.junit)
    return int(any(result.differences and result.name not in KNOWN for result in results))


if __name__ == "__main__":
    sys.exit(main())
