"""python -m shardwise.compat [-m] program [arguments ...]"""

import argparse
import os

from shardwise.compat.program import run_program


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m shardwise.compat",
        description="Runs a program that was written for torch.distributed.tensor, unchanged, on Shardwise.",
        epilog="torchrun --nproc-per-node 4 -m shardwise.compat train.py --lr 0.1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", help="a script or, after -m, a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    options = parser.parse_args()
    if not options.is_module and not os.path.exists(options.program):
        parser.error(f'there is no file "{options.program}". Name a script, or a module after -m.')
    run_program([options.program, *options.arguments], is_module=options.is_module)


main()
