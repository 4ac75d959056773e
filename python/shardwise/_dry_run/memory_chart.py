"""The memory of a rank over time as an SVG drawing."""

from html import escape
from itertools import pairwise

from shardwise._dry_run.figures import RankFigures
from shardwise.debug.text_tables import in_units

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
