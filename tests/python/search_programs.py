"""Looks for programs that differ between tensors and DTensors, and prints each as short as it gets.

python tests/python/search_programs.py                   the first 1,000 seeds
python tests/python/search_programs.py --seeds 5000 6000
python tests/python/search_programs.py --views           programs of views and changes of shape in place
"""

import argparse
import sys
from collections import Counter
from time import perf_counter

from program_judge import judge, shrink, to_lines, to_source
from program_writer import programs, programs_of_views

BATCH = 50


def main() -> int:
    parser = argparse.ArgumentParser(description="Random programs on tensors and on DTensors.")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1000), metavar=("FIRST", "END"))
    parser.add_argument("--views", action="store_true", help="programs of views and changes of shape in place")
    parser.add_argument("--brief", action="store_true", help="only the lines of each program")
    args = parser.parse_args()
    kinds: Counter[str] = Counter()
    begin = perf_counter()
    for first in range(args.seeds[0], args.seeds[1], BATCH):
        seeds = range(first, min(first + BATCH, args.seeds[1]))
        batch = list((programs_of_views if args.views else programs)(seeds))
        for seed, program, difference in zip(seeds, batch, judge(batch), strict=True):
            if difference is None:
                continue
            kinds[difference.kind] += 1
            short, what = shrink(program, difference)
            source = "\n".join(to_lines(short)) + "\n" if args.brief else to_source(short)
            print(f"# seed {seed}, mesh {short.mesh}, {what.kind}: {what.text}\n{source}", flush=True)
    print(
        f"{sum(kinds.values())} of {args.seeds[1] - args.seeds[0]} programs differ: {dict(kinds)}, {perf_counter() - begin:.0f} s"
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
