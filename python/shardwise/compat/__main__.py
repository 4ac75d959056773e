"""python -m shardwise.compat [-m] program [arguments ...]"""

import sys

from shardwise.compat.program import run_program

USAGE = "usage: python -m shardwise.compat [-m] program [arguments ...]"


def main() -> None:
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[is_module:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(f"{USAGE}\n[compat] no program is given. Name a script, or a module after -m.")
    run_program(arguments, is_module=is_module)


main()
