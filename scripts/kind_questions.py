"""Refuses questions for a placement's kind outside the rooms that know the kinds.

A new kind of placement has to be thought of in these rooms alone. All other code asks what a placement does.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS_OF_KINDS = ("placements/", "plans/", "runtime/rules/")
ROOMS = ("kernels", "text", "pictures", "runtime", "ops", "wrappers", "shardwise", "python")
QUESTION = re.compile(r"\bis_(?:shard|partial|replicate|sharded|ragged)\(|\bin_pieces\(|\bKind::k")
ADVICE = (
    "Ask what the placement does: placements/placement_list.h (mesh_dims_splitting, without_partial, whole_along, ...), "
    "Layout (splits, has_terms, has_one_box_each, is_first_replica, ...) or Placement (split_dim, terms, is_whole, ...). "
    "An enum of something else than placements needs a name other than Kind."
)


def complaints(path: Path, name: str) -> list[str]:
    """The questions in a file, as "file:line: the line"."""
    lines = path.read_text().splitlines()
    return [f"{name}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if QUESTION.search(line)]


def main() -> int:
    """Prints the questions and what to ask instead; the exit status is 0 if there are none."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"} and not name.startswith(ROOMS_OF_KINDS):
                found += complaints(path, name)
    if found:
        print("Questions for a placement's kind:", *found, ADVICE, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
