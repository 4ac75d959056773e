"""Checks who includes whom: every room may include the rooms that come earlier in ORDER, less those that EXCEPT names.

The pure rooms are free of tensors, and only python/ knows Python.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the bottom up. A file belongs to the longest room that its path begins with.
ORDER = [
    "text",
    "placements",
    "plans",
    "pictures",
    "kernels",
    "runtime/comm",
    "runtime/threads",
    "runtime/tensor",
    "runtime/redistribute",
    "runtime/rules",
    "runtime/api",
    "runtime/dispatch",
    "ops/families.h",
    "ops/support",
    "ops/indexing",
    "ops/elementwise",
    "ops/products",
    "ops/reductions",
    "ops/norms",
    "ops/shapes",
    "ops/spatial",
    "ops/random",
    "ops/sparse",
    "ops/embedding",
    "ops",
    "wrappers/embedding_plan",
    "wrappers",
    "wrappers/distributed_embedding",
    "wrappers/fsdp",
    "shardwise",
    "python",
]

# Includes that are forbidden although the including room stands above. Families of operators know each other's helpers only where the
# second list says so.
FAMILIES = {room for room in ORDER if room.startswith("ops/") and room not in ("ops/support", "ops/families.h")}
NEIGHBOURS = {"ops/shapes": {"ops/indexing"}, "ops/embedding": {"ops/indexing"}, "ops/products": {"ops/indexing"}}
EXCEPT = {room: FAMILIES - {room} - NEIGHBOURS.get(room, set()) for room in FAMILIES}
EXCEPT["wrappers"] = FAMILIES - {"ops/embedding"} | {"ops", "ops/support", "ops/families.h", "kernels"}
EXCEPT["wrappers/embedding_plan"] = set(ORDER) - {"text", "placements", "plans", "pictures", "wrappers/embedding_plan"}
EXCEPT["wrappers/distributed_embedding"] = EXCEPT["wrappers"] - {"kernels"}
EXCEPT["wrappers/fsdp"] = EXCEPT["wrappers/distributed_embedding"] | {
    "wrappers",
    "wrappers/distributed_embedding",
    "ops/embedding",
}
EXCEPT["python"] = {"kernels"}
NO_KERNELS = {room for room in ORDER if room.startswith("runtime/")}  # rows of tables are the lookups' business

PURE = {"kernels", "text", "placements", "plans", "pictures", "wrappers/embedding_plan"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FORBIDDEN_IN_PURE = re.compile(r"^(torch|ATen|caffe2|c10/core)/")
FORBIDDEN_OUTSIDE_PYTHON = re.compile(r"^(Python\.h|pybind11/|torch/csrc/utils/pybind)")


def room_of(path: str) -> str | None:
    """The room of a file, given its path from the repository's root."""
    inside = [room for room in ORDER if path == room or path.startswith(room + "/")]
    return max(inside, key=len, default=None)


def may_include(room: str, other: str) -> bool:
    """True where `other` is the same room, or one earlier in ORDER that is not excepted."""
    if ORDER.index(other) > ORDER.index(room) or other in EXCEPT.get(room, set()):
        return False
    return other != "kernels" or room not in NO_KERNELS


def complaints(path: Path, room: str) -> list[str]:
    """The forbidden includes of one file, each with its place."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match[2]
        place = f"{path.relative_to(ROOT)}:{number}"
        if match[1] == '"':
            other = room_of(target)
            if other is None or not may_include(room, other):
                found.append(f'{place}: {room}/ may not include "{target}"')
            elif not (ROOT / target).is_file():
                found.append(f'{place}: "{target}" does not exist')
        if room in PURE and FORBIDDEN_IN_PURE.match(target):
            found.append(f"{place}: {room}/ is free of tensors and may not include <{target}>")
        if room != "python" and FORBIDDEN_OUTSIDE_PYTHON.match(target):
            found.append(f"{place}: only python/ may include <{target}>")
    return found


def main() -> int:
    """Prints every complaint; the exit status says whether there was one."""
    found = []
    for top in sorted({room.split("/")[0] for room in ORDER}):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu"}:
                continue
            name = str(path.relative_to(ROOT))
            room = room_of(name)
            found += complaints(path, room) if room else [f"{name}: stands in no room of scripts/include_directions.py"]
    print("\n".join(found) or "every include points the right way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
