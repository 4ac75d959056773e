"""The search for the plan with the shortest step that fits into the memory, and its result."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

from shardwise._suggest.costs import Cost, Meter
from shardwise._suggest.layers import WHOLE
from shardwise._suggest.plans import REPLICATE, SHARD, TP, Plan
from shardwise.debug.text_tables import in_time, in_units, table_text

N_IMPROVED = 2  # meshes
MOST_VERIFIED = 4  # plans
BY_COST, BY_MEMORY = 'strategy="cost_balanced"', 'strategy="memory_balanced"'
STRATEGIES = BY_COST, BY_MEMORY, f"{BY_MEMORY}, row_slice_threshold=1"  # the last one divides the rows of every table
SHARES = (0.25, 0.1, 0.03)  # of a rank's memory, for the tables alone


@dataclass
class Search:
    meter: Meter
    memory: float
    whole: dict[Plan, Cost] = field(default_factory=dict)  # of dry runs of the whole model

    def cost(self, plan: Plan) -> Cost:
        return self.whole.get(plan) or self.meter.cost(plan)

    def order(self, plan: Plan) -> tuple[bool, float, float, bool]:
        """Plans that fit come first, the fastest before others, and then those that lack the least memory. Times count with three digits."""
        cost = self.cost(plan)
        return bool(cost.failure), max(0.0, cost.n_bytes - self.memory), float(f"{cost.seconds:.3g}"), plan.keeps

    def best(self, plans: Iterable[Plan]) -> Plan:
        return min(plans, key=self.order)

    def weighed(self) -> list[Plan]:
        return [plan for plan, cost in self.meter.found.items() if plan and not cost.failure]

    def run(self, meshes: list[dict[str, int]]) -> Plan | None:
        """The best plan that dry runs of the whole model confirm. If none fits, the one that needs the least memory; None if none runs.

        The layouts that are best on one mesh are weighed on every mesh, and changed on the best ones.
        """
        host, layouts = self.meter.machine.ranks_per_host, [tuple(WHOLE for _ in self.meter.subject.kinds)]
        of_layers = [mesh for mesh in meshes if TP in mesh]
        if of_layers:
            first = max(of_layers, key=lambda mesh: (mesh[TP] <= host, min(mesh[TP], host), mesh.get(SHARD, 1)))
            kinds = self.meter.subject.kinds
            divided = tuple(kind.layouts[1] if len(kind.layouts) > 1 else WHOLE for kind in kinds)
            starts = [Plan(tuple(first.items()), each) for each in (*layouts, divided)]
            layouts.append(self.improved(self.best(starts)).layouts)
        for mesh in meshes:
            plan = Plan(tuple(mesh.items()), layouts[-1] if TP in mesh else layouts[0])
            self.best([plan, *self.changed(plan, len(plan.layouts) + 1)])
        improved: set[tuple[tuple[str, int], ...]] = set()
        for _ in meshes[:N_IMPROVED]:
            plans = [each for each in self.weighed() if each.mesh not in improved]
            if plans:
                best = self.best(plans)
                improved.add(best.mesh)
                self.improved(best)
        return self.verified()

    def improved(self, plan: Plan) -> Plan:
        """The plan after changes of one choice at a time, until none makes it better."""
        before = None
        while before != plan:
            before = plan
            for choice in range(len(plan.layouts) + 2):
                plan = self.best([plan, *self.changed(plan, choice)])
        return plan

    def changed(self, plan: Plan, choice: int) -> list[Plan]:
        """The plan with the other values of one choice: the layout of a kind, then `keeps` and `tables`."""
        subject, layouts = self.meter.subject, plan.layouts
        if choice < len(layouts):
            others = subject.kinds[choice].layouts if plan.size(TP) > 1 else ()
            return [replace(plan, layouts=(*layouts[:choice], each, *layouts[choice + 1 :])) for each in others]
        if choice == len(layouts):
            return [replace(plan, keeps=not plan.keeps)] if plan.size(SHARD) > 1 else []
        if not subject.lookups or len(plan.mesh) != 1 or plan.size(TP) > 1:
            return []
        limits = [int(self.memory * each) for each in SHARES] if self.memory < inf else []
        options = [*STRATEGIES, *(f"{BY_COST}, memory_per_rank={each}" for each in limits)]
        return [replace(plan, tables=f"{each}, {self.rates()}") for each in options]

    def rates(self) -> str:
        """The batch and the hardware as options of the planner of tables, if the batch is divided over all ranks."""
        n_ranks, machine = self.meter.n_ranks, self.meter.machine
        per_host = machine.ranks_per_host
        links = f"links=[{machine.links[n_ranks > per_host]}]"
        if n_ranks > per_host and n_ranks % per_host == 0:
            links = f"mesh_shape=({n_ranks // per_host}, {per_host}), links={[*machine.links[::-1]]}"
        batch = f"batch_per_rank={-(-self.meter.n_samples // n_ranks)}"
        return f"{batch}, {links}, machine=({machine.memory_bandwidth / 1e9:g}, 0, 0)"

    def verified(self) -> Plan | None:
        """The best plan by dry runs of the whole model, as the first rank, the last one and those with the largest and the busiest tables."""
        for _ in range(MOST_VERIFIED):
            plans = self.weighed()
            plan = self.best(plans) if plans else None
            if plan is None or plan in self.whole:
                return plan
            ranks = {0, self.meter.n_ranks - 1}
            for each in self.cost(plan).embeddings:
                ranks |= {each.heaviest_rank, each.most_loaded_rank}
            costs: list[Cost] = []
            while ranks:
                costs.append(
                    self.meter.run(self.meter.subject.model, plan, min(ranks), n_steps=2, others=sorted(ranks))
                )
                ranks -= {min(ranks), *costs[-1].alike}
            slowest = max(costs, key=lambda cost: (bool(cost.failure), cost.seconds))
            self.whole[plan] = replace(slowest, n_bytes=max(cost.n_bytes for cost in costs))
        return self.best(self.whole)


def meshes_of(n_ranks: int, per_host: int) -> Iterator[dict[str, int]]:
    """The meshes to weigh, outermost dim first. Parameters are replicated over all data, over none, or between hosts. Layers are divided within a host,
    or over all ranks."""
    divisors = [n for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    for inner in divisors:
        for tp in divisors:
            if inner % tp == 0 and inner in (tp, per_host, n_ranks) and (tp <= per_host or tp == n_ranks):
                yield {REPLICATE: n_ranks // inner, SHARD: inner // tp, TP: tp}


MOST_MESHES = 12


@dataclass(frozen=True)
class Suggestion:
    """The best plan, and its figures, which dry runs of the whole model gave. str() has tables, and code() the function that applies the plan."""

    plan: Plan
    search: Search

    @property
    def seconds(self) -> float:
        """The estimated time of a training step."""
        return self.search.cost(self.plan).seconds

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a rank holds."""
        return int(self.search.cost(self.plan).n_bytes)

    @property
    def bound_seconds(self) -> float:
        """No plan has a shorter step: the arithmetic of the whole batch and the optimizer's bytes, divided evenly over the ranks."""
        plain, machine = self.search.meter.cost(None), self.search.meter.machine
        seconds = plain.flops / machine.flops + plain.optimizer_bytes / machine.memory_bandwidth
        return seconds / self.search.meter.n_ranks

    def code(self) -> str:
        return self.search.meter.subject.code(self.plan)

    def __str__(self) -> str:
        search, plan, cost = self.search, self.plan, self.search.cost(self.plan)
        data = "fully sharded" if plan.size(SHARD) > 1 else "replicated"
        lines = (
            f"{search.meter.n_ranks:,} ranks as {plan}: {in_time(cost.seconds)} a step, {in_units(cost.n_bytes)} on a rank\n"
            f"computation {in_time(cost.computing)}, messages {in_time(cost.waiting)}, and {in_time(cost.gathering)} of fully_shard's beside it; a rank sends {in_units(cost.sent)}\n"
            f"no plan is faster than {in_time(self.bound_seconds)}; this one takes {cost.seconds / self.bound_seconds:.2f} times as long\n"
        )
        if plan.size(TP) > 1 and set(plan.layouts) == {WHOLE}:
            lines += (
                f"the {plan.size(TP)} ranks of tp all do the same: dividing a layer over them makes no step shorter\n"
            )
        rows = [
            (kind.names[0], type(kind.layer).__name__, f"{kind.n_elements:,}", layout, data)
            for kind, layout in zip(search.meter.subject.kinds, plan.layouts)
            if not (plan.tables and kind.names[0].startswith(tuple(search.meter.subject.lookups)))
        ]
        layers = table_text("", ["layers", "class", "parameters", "over tp", "over data"], rows, {0, 1, 3, 4})
        tables = "\n".join(f"{each}\n" for each in cost.embeddings)
        best: dict[str, Cost] = {}
        for each in sorted(search.weighed(), key=search.order):
            best.setdefault(str(each), search.cost(each))
        meshes = [
            (name, in_time(each.seconds), in_units(each.n_bytes), "yes" if each.n_bytes <= search.memory else "no")
            for name, each in list(best.items())[:MOST_MESHES]
        ]
        title = f"weighed: {len(search.weighed()):,} plans; the best of each mesh"
        weighed = table_text(title, ["mesh", "step", "memory", "fits"], meshes, {0, 3})
        return "\n".join(each for each in (lines, layers, tables, weighed, self.code()) if each)
