"""Checks who includes whom: placements <- plans <- runtime <- ops <- wrappers <- python, kernels <- ops; no tensors in the pure rooms."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOMS_SEEN_BY = {
    "kernels": {"kernels"},
    "placements": {"placements"},
    "plans": {"placements", "plans"},
    "runtime": {"placements", "plans", "runtime"},
    "ops": {"kernels", "placements", "plans", "runtime", "ops"},
    "wrappers": {"placements", "plans", "runtime", "wrappers"},
    "python": {"placements", "plans", "runtime", "ops", "wrappers", "python", "shardwise"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FORBIDDEN_IN_PURE = re.compile(r"^(torch|ATen|caffe2|c10/core)/")


def complaints(path: Path, room: str) -> list[str]:
    """What is wrong with the includes of one file, each with its place."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match[2]
        place = f"{path.relative_to(ROOT)}:{number}"
        if match[1] == '"':
            if target.split("/")[0] not in ROOMS_SEEN_BY[room]:
                found.append(f'{place}: {room}/ may not include "{target}"')
            elif not (ROOT / target).is_file():
                found.append(f'{place}: "{target}" does not exist')
        if room in ("kernels", "placements", "plans") and FORBIDDEN_IN_PURE.match(target):
            found.append(f"{place}: {room}/ is free of tensors and may not include <{target}>")
        if room != "python" and re.match(r"^(Python\.h|pybind11/|torch/csrc/utils/pybind)", target):
            found.append(f"{place}: only python/ may include <{target}>")
    return found


def main() -> int:
    """Prints every complaint; the exit status says whether there was one."""
    found = [
        complaint
        for room in ROOMS_SEEN_BY
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in {".h", ".cpp", ".cu"}
        for complaint in complaints(path, room)
    ]
    print("\n".join(found) or "every include points the right way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
