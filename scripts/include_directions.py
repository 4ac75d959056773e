"""Checks who includes whom: every room may include the rooms that come earlier in ORDER, less those that EXCEPT names. The core includes no layer,
and the layers include the core's public headers only.

The pure rooms are free of tensors, and only python/ knows Python.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the bottom up. A file belongs to the longest room that its path begins with.
CORE = [
    "runtime/numbers",
    "text",
    "placements",
    "plans",
    "runtime/comm",
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
    "ops",
    "shardwise/placements.h",
    "shardwise/device_mesh.h",
    "shardwise/device_mesh.cpp",
    "shardwise/dtensor.h",
    "shardwise/dtensor.cpp",
]
LAYERS = [
    "threads",
    "pictures",
    "kernels",
    "ops/embedding",
    "wrappers/embedding_plan",
    "wrappers",
    "wrappers/distributed_embedding",
    "wrappers/fsdp",
    "shardwise",
]
# python/ has the bindings of the core, which see no layer but the threads.
ORDER = [*CORE, *LAYERS, "python", "python/layers"]

# The core's public headers: these rooms, and these headers of the others. The layers may include no other header of the core.
PUBLIC_ROOMS = {"runtime/numbers", "text", "placements", "plans", "runtime/comm", "runtime/tensor", "runtime/api"}
PUBLIC_HEADERS = {
    "ops/indexing/index.h",
    "ops/indexing/index_operand.h",
    "ops/support/derivative.h",
    "ops/support/kernels.h",
    "ops/support/planned_values.h",
    "runtime/dispatch/plain_operand.h",
    "runtime/redistribute/execute.h",
    "runtime/redistribute/leaf_hooks.h",
    "runtime/redistribute/packed_messages.h",
    "runtime/redistribute/traced_step.h",
    "runtime/rules/op_info.h",
    "runtime/rules/propagate.h",
    "runtime/rules/rule.h",
}

# Includes that are forbidden although the including room stands above. Families of operators know each other's helpers only where the
# second list says so.
FAMILIES = {room for room in CORE if room.startswith("ops/") and room not in ("ops/support", "ops/families.h")}
NEIGHBOURS = {room: {"ops/indexing"} for room in ("ops/shapes", "ops/products", "ops/reductions")}
EXCEPT = {room: FAMILIES - {room} - NEIGHBOURS.get(room, set()) for room in FAMILIES}
EXCEPT |= {room: {"threads", "kernels"} for room in LAYERS if room not in ("threads", "kernels", "ops/embedding")}
EXCEPT["ops/embedding"] = {"threads", "pictures"}
EXCEPT["wrappers"] |= {"pictures"}
EXCEPT["wrappers/embedding_plan"] |= set(ORDER) - {"text", "placements", "plans", "pictures", "wrappers/embedding_plan"}
EXCEPT["wrappers/distributed_embedding"] |= {"pictures"}
EXCEPT["wrappers/fsdp"] |= {"pictures", "wrappers", "wrappers/distributed_embedding", "ops/embedding"}
EXCEPT["python"] = set(LAYERS) - {"threads"}
EXCEPT["python/layers"] = {"kernels"}

PURE = {"kernels", "runtime/numbers", "text", "placements", "plans", "pictures", "wrappers/embedding_plan"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FORBIDDEN_IN_PURE = re.compile(r"^(torch|ATen|caffe2|c10/core)/")
FORBIDDEN_OUTSIDE_PYTHON = re.compile(r"^(Python\.h|pybind11/|torch/csrc/utils/pybind)")


def room_of(path: str) -> str | None:
    """The room of a file, given its path from the repository's root."""
    inside = [room for room in ORDER if path == room or path.startswith(room + "/")]
    return max(inside, key=len, default=None)


def may_include(room: str, header: str) -> bool:
    """True where `header` is of the same room, or of one earlier in ORDER that is not excepted. Of the core, layers see the public headers."""
    other = room_of(header)
    if other is None or ORDER.index(other) > ORDER.index(room) or other in EXCEPT.get(room, set()):
        return False
    is_inside = room not in LAYERS or other not in CORE
    return is_inside or other in PUBLIC_ROOMS or header in PUBLIC_HEADERS or header.startswith("shardwise/")


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
            if not may_include(room, target):
                found.append(f'{place}: {room}/ may not include "{target}"')
            elif not (ROOT / target).is_file():
                found.append(f'{place}: "{target}" does not exist')
        if room in PURE and FORBIDDEN_IN_PURE.match(target):
            found.append(f"{place}: {room}/ is free of tensors and may not include <{target}>")
        if not room.startswith("python") and FORBIDDEN_OUTSIDE_PYTHON.match(target):
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
