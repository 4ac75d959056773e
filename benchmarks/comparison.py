"""A table of the costs of each row on several sides: the time that each distributed side adds to the plain call, and the ratio of the two."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from dispatch_rows import Row
from sides import PLAIN, SHARDWISE, SUBCLASS, TORCH, machine_line

# Shardwise's added cost over torch.distributed.tensor's, at most.
TARGET_HOT, TARGET_FRESH = 1 / 15, 1 / 50

HEADER = ("row", PLAIN, f"{SUBCLASS} adds", TORCH, "adds", SHARDWISE, "adds", "ratio")


@dataclass(frozen=True)
class Comparison:
    row: Row
    cost: dict[str, float]  # by side's name, per call
    resolution: float  # the least difference of costs that means something

    def added(self, side):
        """The cost that a side adds to the plain call, at least the resolution and 1 % of that call; None if the side was not measured."""
        least = max(self.resolution, self.cost[PLAIN] / 100)
        return max(self.cost[side] - self.cost[PLAIN], least) if side in self.cost else None

    def ratio(self):
        """Shardwise's added cost divided by torch's."""
        return self.added(SHARDWISE) / self.added(TORCH) if SHARDWISE in self.cost else None

    def cells(self):
        costs = [self.cost[PLAIN], self.added(SUBCLASS)]
        for side in (TORCH, SHARDWISE):
            costs += [self.cost.get(side), self.added(side)]
        return [self.row.label, *map(_number, costs), _fraction(self.ratio())]

    def as_json(self):
        return {"row": self.row.label, "fresh": self.row.fresh, "cost": self.cost, "ratio": self.ratio()}


def render(comparisons):
    """The table, one line per row, and a line per target."""
    return "\n".join([*aligned([HEADER, *(c.cells() for c in comparisons)]), "", *summary(comparisons)])


def summary(comparisons):
    hot = [c for c in comparisons if not c.row.fresh]
    fresh = [c for c in comparisons if c.row.fresh]
    kinds = (("hot calls", hot, TARGET_HOT), ("first calls with a new shape", fresh, TARGET_FRESH))
    return [_summary_line(name, group, target) for name, group, target in kinds if group]


def add_row_arguments(parser, seconds):
    """--rows and --seconds; is_chosen() reads the first."""
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=seconds, help="for each row (default: %(default)s)")


def is_chosen(name, options):
    return not options.rows or any(text in name for text in options.rows)


def above_target(ratios, target):
    """The line below a table: the mean, and the rows whose ratio is above the target, worst first."""
    above = sorted((name for name in ratios if ratios[name] > target), key=ratios.get, reverse=True)
    mean = geometric_mean(ratios.values())
    return f"{len(ratios)} rows: geometric mean {mean:.2f}; {len(above)} above {target}: {', '.join(above) or 'none'}"


def write_json(path, figures):
    """Writes the machine and the figures there, if there is a path."""
    if path:
        Path(path).write_text(json.dumps({"machine": machine_line(), **figures}, indent=1))


def geometric_mean(values):
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _summary_line(name, group, target):
    ratios = [c.ratio() for c in group if c.ratio() is not None]
    rows = f"{len(group)} rows of {name}"
    if not ratios:
        return f"{rows}: no ratio, {SHARDWISE} is not installed; target {_fraction(target)}"
    mean, worst = geometric_mean(ratios), max(ratios)
    verdict = "reached" if mean <= target else "missed"
    return f"{rows}: geometric mean {_fraction(mean)}, worst {_fraction(worst)}; target {_fraction(target)}, {verdict}"


def aligned(lines):
    """Columns as wide as their widest cell: the first flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]


def _number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _fraction(ratio):
    """1/8.0 for an eighth, 2.00 for the double."""
    if ratio is None:
        return "-"
    return f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.2f}"
