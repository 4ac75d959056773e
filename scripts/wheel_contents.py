"""Checks what lies in a wheel: python scripts/wheel_contents.py dist/shardwise-*.whl

Everything that the package needs, nothing that torch brings, libraries that find torch's beside the package, and metadata that asks
for the torch that was compiled against.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_BESIDE = "$ORIGIN/../torch/lib"
# System libraries that manylinux allows. All others must belong to torch or to us.
SYSTEM = re.compile(
    r"(libstdc\+\+|libgcc_s|libm|libc|libdl|librt|libpthread|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d+"
)
TORCHS = re.compile(r"lib(torch|torch_cpu|torch_python|c10)\.so")


def problems(wheel: Path) -> list[str]:
    """Sentences; none where all is well."""
    found: list[str] = []
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = set(archive.namelist())
        sources = [
            path.relative_to(ROOT / "python").as_posix()
            for pattern in ("*.py", "*.pyi", "py.typed")
            for path in (ROOT / "python" / "shardwise").rglob(pattern)
        ]
        wanted = {*sources, "shardwise/_build_facts.py", "shardwise/libshardwise.so", "shardwise/libshardwise_core.so"}
        found += [f"{name} is missing." for name in sorted(wanted - names)]
        libraries = [name for name in sorted(names) if re.search(r"\.so(\.\d+)*$", name)]
        extra = [
            name
            for name in libraries
            if not re.fullmatch(r"shardwise/(libshardwise|libshardwise_core|_C\.[\w-]+)\.so", name)
        ]
        found += [f"{name} is another's library." for name in extra]
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        requirements = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
        if not any(re.fullmatch(r"torch==\d+\.\d+\.\*", requirement) for requirement in requirements):
            found.append(f"It asks for no single minor version of torch: {requirements}.")
        for name in libraries:
            found += library_problems(Path(archive.extract(name, folder)), name)
    if "linux_" in wheel.name and "manylinux_" not in wheel.name:
        found.append(f"{wheel.name} is no manylinux wheel: auditwheel repair has not seen it.")
    return found


def library_problems(library: Path, name: str) -> list[str]:
    shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    paths = [path for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", shown) for path in found.split(":")]
    found = [f"{name} has no RPATH {TORCH_BESIDE}: {paths}."] if TORCH_BESIDE not in paths else []
    found += [f"{name} looks for libraries in {path}." for path in paths if not path.startswith("$ORIGIN")]
    ours = re.compile(r"libshardwise(_core)?\.so")
    return found + [
        f"{name} needs {other}, which neither torch nor the system has."
        for other in needed
        if not any(each.fullmatch(other) for each in (SYSTEM, TORCHS, ours))
    ]


if __name__ == "__main__":
    failed = False
    for argument in sys.argv[1:]:
        for problem in problems(Path(argument)):
            failed = True
            print(f"{argument}: {problem}")
    sys.exit(failed)
