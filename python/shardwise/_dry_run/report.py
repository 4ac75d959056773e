"""The report of a dry run: as text its memory, communication, work and differences between ranks; and the memory over time as an SVG drawing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwise._C import page_style
from shardwise._dry_run.agreement import divergences, lines_of, unpaired
from shardwise._dry_run.figures import Communication, Machine, RankFigures, Work
from shardwise.debug.picture import template_of
from shardwise.debug.profile_tables import unasked_table
from shardwise.debug.text_tables import in_units, ranks_in_words, ranks_text, table_text

MOST_LINES = 20
PAGE = Path(__file__).parent / "page.html"

Key = tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The figures of the ranks that ran, and how they are shown."""

    ranks: Sequence[RankFigures]
    machine: Machine

    def has_errors(self) -> bool:
        """True if the program failed on a rank, or if ranks do not make the same collectives."""
        return any(each.failure for each in self.ranks) or bool(self.disagreements)

    @cached_property
    def disagreements(self) -> str:
        """Collectives in which ranks differ, and a message between two ranks that does not arrive; empty if there are none."""
        found, messages = divergences(self.ranks), unpaired(self.ranks)
        text = (
            "the ranks do not make the same collectives:\n" + "".join(f"  {each}\n" for each in found) if found else ""
        )
        return text + (f"a message between two ranks does not arrive:\n  {messages}\n" if messages else "")

    def __str__(self) -> str:
        """The tables of the rank with the largest peak, after one that compares the ranks if there are several."""
        ranks, shown, machine = self.ranks, largest(self.ranks), self.machine
        has_failed = any(each.failure for each in ranks)
        parts = []
        if len(ranks) > 1 or len(shown.alike) > 1:
            parts = [compared(ranks), self.disagreements or ("" if has_failed else agreement(ranks))]
        if shown.allocations or not has_failed:
            parts += [memory_by_kind(shown), memory_by_layer(shown)]
        if shown.communications or not has_failed:
            spans = [each.span for each in shown.communications]
            parts += [communication_by_layer(shown, machine), unasked_table(spans, MOST_LINES)]
        if shown.works or not has_failed:
            parts.append(work_by_operator(shown))
        parts += [
            checkpoints(shown),
            times(shown, machine) if shown.communications or not has_failed else "",
            outside_meshes(ranks),
            reads(shown),
            unread(ranks),
            f"ids and choices of experts are a model: {shown.ids}\n" if shown.ids else "",
            *(
                f"on {ranks_in_words(sorted(rank for each in alike for rank in each.alike))}: {failure}\n"
                for failure, alike in _grouped(
                    (each for each in ranks if each.failure), lambda each: each.failure
                ).items()
            ),
        ]
        return "\n".join(part for part in parts if part)

    def json(self) -> str:
        return json.dumps([each.as_json(self.machine) for each in self.ranks])

    def html(self) -> str:
        """A page that needs nothing else. Raises ModuleNotFoundError without jinja2."""
        shown = largest(self.ranks)
        title = f"Dry run of {shown.n_ranks:,} ranks"
        drawings = [memory_chart(shown), *shown.pictures]
        return str(template_of(PAGE).render(title=title, drawings=drawings, text=str(self), svg_rules=page_style()))


def largest(ranks: Sequence[RankFigures]) -> RankFigures:
    return max(ranks, key=lambda figures: figures.peak_bytes)


def memory_by_kind(figures: RankFigures) -> str:
    kinds, of_rank = figures.peak_by_kind, f"rank {figures.rank} of {figures.n_ranks:,}"
    title = f"{of_rank}: peak {in_units(figures.peak_bytes)} in steps, {in_units(figures.setup_peak_bytes)} before them"
    rows = [(kind, in_units(n), f"{100 * n / max(figures.peak_bytes, 1):.1f}") for kind, n in kinds.items()]
    return table_text(title, ["memory at the peak", "bytes", "%"], rows, 1)


def memory_by_layer(figures: RankFigures) -> str:
    sizes = _grouped(figures.at_peak(), lambda each: (each.kind, each.place.layers, each.op))
    rows = [
        (*key, f"{len(found):,}", in_units(sum(each.n_bytes for each in found)))
        for key, found in _most_first(sizes, lambda each: each.n_bytes)[:MOST_LINES]
    ]
    return table_text("", ["at the peak", "allocated in", "for", "tensors", "bytes"], rows, 3)


def communication_by_layer(figures: RankFigures, machine: Machine) -> str:
    if not figures.communications:
        return "no communication\n"

    moving = [each for each in figures.communications if each.span.bytes_sent + each.span.bytes_received > 0]
    lines = {ranks: lines_of(ranks, figures.grids) for ranks in {each.span.ranks for each in moving}}
    dims = {
        ranks: ", ".join(each.grid.names[dim] for dim in each.dims if each.grid.names) for ranks, each in lines.items()
    }

    def key(each: Communication) -> Key:
        link = "between hosts" if machine.is_between_hosts(each.span) else "within a host"
        return (
            each.place.layers,
            each.place.phase,
            each.span.collective,
            each.span.op,
            dims[each.span.ranks],
            ranks_text(each.span.ranks),
            link,
        )

    rows = [
        (
            *texts,
            f"{len(found):,}",
            in_units(sum(each.span.bytes_sent for each in found)),
            in_units(sum(each.span.bytes_received for each in found)),
        )
        for texts, found in _most_first(
            _grouped(moving, key), lambda each: each.span.bytes_sent + each.span.bytes_received
        )[:MOST_LINES]
    ]
    title = (
        f"{len(moving):,} communications: {in_units(figures.bytes_sent)} sent, "
        f"{in_units(figures.bytes_received)} received"
    )
    columns = ["layer", "phase", "collective", "operator", "mesh", "ranks", "link", "calls", "sent", "received"]
    return table_text(title, columns, rows, 7)


def work_by_operator(figures: RankFigures) -> str:
    groups = _grouped(
        figures.works, lambda each: (each.op, each.place.phase, "DTensors" if each.is_on_pieces else "plain tensors")
    )
    ordered = _most_first(groups, lambda each: each.flops * 1e-3 + each.n_bytes)  # a product costs more than its bytes
    rows = [
        (*key, f"{sum(each.n_calls for each in found):,}", f"{flops / 1e9:,.1f}", in_units(_bytes(found)))
        for key, found in ordered[:MOST_LINES]
        for flops in [sum(each.flops for each in found)]
    ]
    title = f"{figures.flops / 1e12:,.3f} TFLOP, {in_units(_bytes(figures.works))} read and written"
    return table_text(title, ["operator", "phase", "on", "calls", "GFLOP", "bytes"], rows, 3)


def seconds(figures: RankFigures, machine: Machine) -> tuple[float, float]:
    """Estimates of the time of computation, and of communication. They overlap as far as the program lets them."""
    computing = sum(machine.seconds_of(each) for each in figures.works)
    return computing, sum(machine.seconds_of_message(each.span) for each in figures.communications)


def times(figures: RankFigures, machine: Machine) -> str:
    computing, communicating = seconds(figures, machine)
    known = f"{communicating * 1e3:,.3f} ms of communication"
    rates = {"--flops": machine.flops, "--memory-bandwidth": machine.memory_bandwidth}
    missing = " and ".join(option for option, rate in rates.items() if not rate)
    if len(missing.split()) > 1:
        return f"estimated time: {known}. That of computation is not known without {missing}.\n"
    known = f"{computing * 1e3:,.3f} ms of computation, {known}"
    if missing:
        part = "memory traffic" if machine.flops else "arithmetic"
        return f"estimated time: at least {known}. The {part} of operators is not known without {missing}.\n"
    return (
        f"estimated time: {known}; {max(computing, communicating) * 1e3:,.3f} ms if they overlap fully, "
        f"{(computing + communicating) * 1e3:,.3f} ms if not\n"
    )


def checkpoints(figures: RankFigures) -> str:
    if not figures.files:
        return ""
    rows = [
        (
            each.line,
            each.verb + " (not there)" * (not each.is_there),
            each.path,
            f"{each.n_items:,}",
            in_units(each.n_bytes),
        )
        for each in figures.files
    ]
    title = "checkpoints, which a dry run does not write"
    return table_text(title, ["line", "call", "folder", "pieces", "bytes"], rows, 3)


def reads(figures: RankFigures) -> str:
    if not figures.reads:
        return ""
    rows = [(place, name, f"{n:,}") for (place, name), n in figures.reads.items()]
    return table_text("values that the program read, and a dry run does not have", ["line", "call", "reads"], rows, 2)


def unread(ranks: Sequence[RankFigures]) -> str:
    lines = ", ".join(sorted(set.intersection(*(each.unread for each in ranks))))
    return f"the program read no value at {lines}, for which one is given\n" if lines else ""


def outside_meshes(ranks: Sequence[RankFigures]) -> str:
    members = {rank for each in ranks for grid in each.grids for rank in grid.ranks}
    others = set(range(ranks[0].n_ranks)).difference(members) if members else ()
    are = "is" if len(others) == 1 else "are"
    return f"{ranks_in_words(sorted(others))} {are} in no mesh that the program made\n" if others else ""


def compared(ranks: Sequence[RankFigures]) -> str:
    """A line per figure: the least, the mean and the most of all ranks that ran."""
    columns: dict[str, tuple[Callable[[RankFigures], float], Callable[[float], str]]] = {
        "peak memory": (lambda each: each.peak_bytes, in_units),
        "bytes sent": (lambda each: each.bytes_sent, in_units),
        "bytes received": (lambda each: each.bytes_received, in_units),
        "communications": (lambda each: len(each.communications), lambda n: f"{n:,.0f}"),
        "TFLOP": (lambda each: each.flops / 1e12, lambda n: f"{n:,.3f}"),
    }
    rows, n_ranks = [], sum(len(each.alike) for each in ranks)
    for name, (figure, text) in columns.items():
        numbers = {each.rank: figure(each) for each in ranks}
        if not any(numbers.values()) and any(each.failure for each in ranks):
            continue
        most = max(numbers, key=lambda rank: numbers[rank])
        mean = sum(numbers[each.rank] * len(each.alike) for each in ranks) / n_ranks
        imbalance = f"{numbers[most] / mean:.2f}" if mean else "-"
        rows.append((name, text(min(numbers.values())), text(mean), text(numbers[most]), f"{most}", imbalance))
    if not rows:
        return ""
    title = f"{n_ranks:,} of {ranks[0].n_ranks:,} ranks"
    if n_ranks > len(ranks):
        alike = "; ".join(f"{ranks_text(each.alike)} as rank {each.rank}" for each in ranks[:8])
        title += f", by {len(ranks)} that ran: {alike}{'; ...' if len(ranks) > 8 else ''}"
    return table_text(title, ["figure", "least", "mean", "most", "of rank", "most / mean"], rows, 1)


def agreement(ranks: Sequence[RankFigures]) -> str:
    """A sentence for ranks that have no disagreements."""
    if sum(len(each.alike) for each in ranks) < ranks[0].n_ranks:
        return "these ranks make the same collectives in the same order in the groups that they share\n"
    return "all ranks make the same collectives in the same order in every group\n"


def _bytes(works: Iterable[Work]) -> int:
    return sum(each.n_bytes for each in works)


def _grouped(items: Iterable[Any], key: Callable[[Any], Key]) -> dict[Key, list[Any]]:
    groups: defaultdict[Key, list[Any]] = defaultdict(list)
    for each in items:
        groups[key(each)].append(each)
    return groups


def _most_first(groups: dict[Key, list[Any]], size: Callable[[Any], float]) -> list[tuple[Key, list[Any]]]:
    return sorted(groups.items(), key=lambda item: -sum(map(size, item[1])))


WIDTH, HEIGHT, LEFT, TOP = 960, 260, 90, 34
COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9498a0")


def memory_chart(figures: RankFigures) -> str:
    """The bytes of each kind of memory, stacked, after each allocation and release; the x axis counts these."""
    over_time = figures.bytes_over_time
    n, most = len(over_time), max(over_time, default=0)
    if most == 0:
        return ""
    columns = min(n, WIDTH)
    kinds = list(dict.fromkeys(each.kind for each in figures.allocations))
    changes = {kind: [0] * (n + 1) for kind in kinds}
    for each in figures.allocations:
        changes[each.kind][each.begin] += each.n_bytes
        changes[each.kind][each.end if each.end >= 0 else n] -= each.n_bytes

    def x(time: int) -> float:
        return LEFT + WIDTH * time / n

    def y(n_bytes: float) -> float:
        return TOP + HEIGHT * (1 - n_bytes / most)

    # The greatest moment of each column of pixels is drawn, so that no peak is lost.
    edges = [n * column // columns for column in range(columns + 1)]
    times = [max(range(a, b), key=over_time.__getitem__) for a, b in pairwise(edges)]
    below, areas = [0] * columns, []
    for kind, color in zip(kinds, COLORS * len(kinds)):
        in_use, sums = 0, []
        for change in changes[kind][:n]:
            in_use += change
            sums.append(in_use)
        above = [base + sums[time] for base, time in zip(below, times)]
        line = [f"{x(time):.1f},{y(top):.1f}" for time, top in zip(times, above)]
        back = [f"{x(time):.1f},{y(base):.1f}" for time, base in zip(reversed(times), reversed(below))]
        peak = in_units(figures.peak_by_kind.get(kind, 0))
        areas.append(
            f'<polygon fill="{color}" points="{" ".join(line + back)}"><title>{escape(kind)}: {peak} at the peak</title></polygon>'
        )
        below = above
    legend = "".join(
        f'<rect x="{LEFT + 130 * i}" y="8" width="10" height="10" fill="{color}"/>'
        f'<text x="{LEFT + 130 * i + 15}" y="17">{escape(kind)}</text>'
        for i, (kind, color) in enumerate(zip(kinds, COLORS * len(kinds)))
    )
    step = x(figures.first_step)
    axis = (
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{in_units(most)}</text>'
        f'<text x="{LEFT - 6}" y="{TOP + HEIGHT}" text-anchor="end">0</text>'
        f'<line x1="{step:.1f}" x2="{step:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="currentColor" stroke-dasharray="3 3"/>'
        f'<text x="{step + 4:.1f}" y="{TOP + HEIGHT + 14}">first step</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH}" height="{TOP + HEIGHT + 20}" font-size="12" '
        f'fill="currentColor" role="img"><title>memory of rank {figures.rank} over time</title>{legend}{"".join(areas)}{axis}</svg>'
    )
