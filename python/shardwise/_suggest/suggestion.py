"""The result of suggest(), as tables and as code."""

from dataclasses import dataclass

from shardwise._suggest.costs import Cost
from shardwise._suggest.layers import WHOLE
from shardwise._suggest.plans import SHARD, TP, Plan
from shardwise._suggest.search import Search
from shardwise.debug.text_tables import in_time, in_units, table_text

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
