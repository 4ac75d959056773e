"""The time and the memory of a training step under a plan, by dry runs."""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from shardwise._C import EmbeddingPlan
from shardwise._dry_run.figures import OPTIMIZER, Machine
from shardwise._dry_run.meta_mode import NoValue, Value
from shardwise._dry_run.run import MESSAGES, WORKS, dry_run
from shardwise._suggest.layers import MEASURED_BLOCKS, lookups_in, with_fewer
from shardwise._suggest.plans import Plan, Subject
from shardwise.distributed_embedding import DistributedEmbedding

NUMBERS = ("computing", "waiting", "gathering", "sent", "n_bytes", "flops", "optimizer_bytes")


@dataclass(frozen=True)
class Cost:
    """A training step of one rank."""

    computing: float = 0  # seconds
    waiting: float = 0  # seconds for messages that the program waits for
    gathering: float = 0  # seconds for those of fully_shard, which are sent beside the computation
    sent: float = 0  # bytes
    n_bytes: float = 0  # the most that is held
    flops: float = 0
    optimizer_bytes: float = 0  # that the optimizer reads and writes
    failure: str = ""
    embeddings: tuple[EmbeddingPlan, ...] = ()
    alike: tuple[int, ...] = ()  # the ranks that it is of

    @property
    def seconds(self) -> float:
        return self.waiting + max(self.computing, self.gathering)

    def plus(self, n: int, more: "Cost", less: "Cost") -> "Cost":
        """This cost and `n` times the difference of the others."""
        sums = {name: getattr(self, name) + n * (getattr(more, name) - getattr(less, name)) for name in NUMBERS}
        return replace(self, **sums, failure=self.failure or more.failure)


@dataclass
class Meter:
    """Measures plans for one model and job, each plan once."""

    subject: Subject
    batch: tuple[tuple[Any, ...], dict[str, Any]]  # of all ranks, on meta
    n_samples: int
    loss: Callable[[Any], torch.Tensor]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    n_ranks: int
    machine: Machine
    value: Value = None  # of each element that the model reads
    found: dict[Plan | None, Cost] = field(default_factory=dict)

    def inspect(self) -> str:
        """Runs the model with the whole batch on one rank. Notes whether its result is a tensor, and its lookups. Returns the error, or ""."""
        model, blocks = self.subject.model, [each for each in self.subject.blocks if len(each[1]) > MEASURED_BLOCKS]
        self.longer = [(len(each[1]) - MEASURED_BLOCKS, with_fewer(model, blocks, each)) for each in blocks]
        failure = ""
        for self.short in (with_fewer(model, blocks), model):  # the model may need all of its blocks
            copied, results = copy.deepcopy(self.short), list[Any]()
            lookups = list(lookups_in(copied))
            copied.register_forward_hook(lambda module, args, result, to=results: to.append(result))
            failure = self.run(copied, None).failure
            if not failure:
                self.subject.gives_tensor = isinstance(results[0], torch.Tensor)
                self.subject.lookups = [path for path, is_lookup in lookups if is_lookup()]
                break
            self.longer = []
        return failure

    def cost(self, plan: Plan | None) -> Cost:
        """From dry runs of models with few blocks: each further block costs as much as the last one."""
        if plan not in self.found:
            cost = short = self.run(self.short, plan)
            for n, model in self.longer if not short.failure else ():
                cost = cost.plus(n, self.run(model, plan), short)
            self.found[plan] = cost
        return self.found[plan]

    def run(
        self, model: nn.Module, plan: Plan | None, rank: int = 0, n_steps: int = 1, others: list[int] | None = None
    ) -> Cost:
        """A step of a copy of `model` as this rank under `plan`; without a plan, as one rank that has the whole batch. Says which of `others` are
        alike."""
        n_ranks, per_host, device = self.n_ranks if plan else 1, self.machine.ranks_per_host, self.subject.device_type
        run = dry_run(n_ranks, rank, device_type=device, value=self.value, ranks_per_host=per_host, _others=others)
        begin, code = list[int](), dict[str, Any]()
        try:
            with warnings.catch_warnings(), run:
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", message=".*were one parameter")  # it would be trained as two
                model = copy.deepcopy(model)  # here, so that its memory counts
                if plan:
                    exec(self.subject.code(plan, model), code)
                    model = code["shard"](model)
                self._train(model, plan.n_parts if plan else 1, n_steps, lambda: begin.extend(run._counters()))
        except NoValue:
            raise
        except Exception as error:
            return Cost(failure=f"{type(error).__name__}: {error}".split("\n")[0])
        works, messages = run.figures.works[begin[WORKS] :], run.figures.communications[begin[MESSAGES] :]
        seconds = {True: 0.0, False: 0.0}
        for each in messages:
            seconds[each.span.op == "fully_shard"] += self.machine.seconds_of_message(each.span)
        return Cost(
            computing=sum(map(self.machine.seconds_of, works)),
            waiting=seconds[False],
            gathering=seconds[True],
            sent=sum(each.span.bytes_sent for each in messages),
            n_bytes=run.figures.peak_bytes,
            flops=sum(each.flops for each in works),
            optimizer_bytes=sum(each.n_bytes for each in works if each.place.phase == OPTIMIZER),
            embeddings=tuple(each.plan for each in model.modules() if isinstance(each, DistributedEmbedding)),
            alike=tuple(run.figures.alike),
        )

    def _train(self, model: nn.Module, n_parts: int, n_steps: int, before: Callable[[], None]) -> None:
        """Steps with the largest of `n_parts` parts of the batch. Calls `before` before the last one, when the optimizer has its state."""
        parameters = [each for each in model.parameters() if each.requires_grad]
        optimizer = self.optimizer(parameters)

        def part(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            is_divided = value.dim() > 0 and len(value) == self.n_samples
            return (value[: -(-self.n_samples // n_parts)] if is_divided else value).clone()

        args, kwargs = tree_map(part, self.batch)
        if n_steps == 1:  # gradients of zeros make the state as well
            for each in (each for group in optimizer.param_groups for each in group["params"]):
                each.grad = torch.zeros_like(each)
            optimizer.step()
            optimizer.zero_grad()
        for step in range(n_steps):
            if step == n_steps - 1:
                before()
            self.loss(model(*args, **kwargs)).backward()
            optimizer.step()
            optimizer.zero_grad()


def loss_of(result: Any) -> torch.Tensor:
    """The loss in a model's result, as transformers' models return it, or else the mean of the result."""
    given = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(given, torch.Tensor):
        return given
    means = [each.mean() for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    return sum(means[1:], means[0])
