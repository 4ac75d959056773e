"""scripts/wheel_contents.py finds what is wrong with a wheel. The library in these wheels is the smallest that a compiler makes."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD_NAME = "shardwise-0.2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
LIBRARIES = ("libshardwise", "libshardwise_core", "_C.cpython-311-x86_64-linux-gnu")
TORCH_BESIDE = "$ORIGIN:$ORIGIN/../torch/lib"


def library(folder: Path, *, rpath: str, needs: Path | None = None, name: str = "library.so") -> Path:
    """A shared library without code of its own."""
    made = folder / name
    words = ["-Wl,--no-as-needed", needs] if needs else []
    command = [
        "g++",
        "-shared",
        "-x",
        "c++",
        "/dev/null",
        "-o",
        made,
        *([f"-Wl,-rpath,{rpath}"] if rpath else []),
        "-x",
        "none",
        *words,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return made


def wheel(
    folder: Path,
    binary: Path,
    *,
    name: str = GOOD_NAME,
    without: str = "",
    extra: str = "",
    torch: str = "torch==2.13.*",
) -> Path:
    made = folder / name
    package = ROOT / "python" / "shardwise"
    files = {f"shardwise/{path.relative_to(package)}" for path in package.rglob("*") if path.suffix in (".py", ".pyi")}
    files |= {"shardwise/py.typed", "shardwise/_build_facts.py"}
    with zipfile.ZipFile(made, "w") as archive:
        for each in files - {without}:
            archive.writestr(each, "")
        for each in (*(f"shardwise/{name}.so" for name in LIBRARIES), extra):
            if each not in ("", without):
                archive.write(binary, each)
        archive.writestr(
            "shardwise-0.2.0.dist-info/METADATA", f"Name: shardwise\nRequires-Dist: {torch}\nRequires-Dist: numpy\n"
        )
    return made


def verdict(made: Path) -> str:
    script = ROOT / "scripts" / "wheel_contents.py"
    ran = subprocess.run([sys.executable, script, made], capture_output=True, text=True, timeout=60)
    assert ran.returncode == bool(ran.stdout), ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("library"), rpath=TORCH_BESIDE)


def test_a_whole_wheel_has_no_problem(tmp_path: Path, good: Path) -> None:
    assert verdict(wheel(tmp_path, good)) == ""


# what is done to the wheel, words of the sentence
FLAWS = [
    ({"without": "shardwise/py.typed"}, "shardwise/py.typed is missing."),
    ({"without": "shardwise/_C/__init__.pyi"}, "shardwise/_C/__init__.pyi is missing."),
    ({"without": "shardwise/libshardwise.so"}, "shardwise/libshardwise.so is missing."),
    ({"extra": "shardwise.libs/libtorch_cpu-12345678.so"}, "libtorch_cpu-12345678.so is another's library."),
    ({"torch": "torch>=2.11"}, "It asks for no single minor version of torch"),
    ({"name": "shardwise-0.2.0-cp311-cp311-linux_x86_64.whl"}, "is no manylinux wheel"),
]


@pytest.mark.parametrize("flaw, words", FLAWS)
def test_flaws_are_named(tmp_path: Path, good: Path, flaw: dict[str, str], words: str) -> None:
    assert words in verdict(wheel(tmp_path, good, **flaw))


def test_libraries_look_for_torch_beside_the_package_and_nowhere_else(tmp_path: Path) -> None:
    assert "has no RPATH $ORIGIN/../torch/lib" in verdict(wheel(tmp_path, library(tmp_path, rpath="")))
    fixed = library(tmp_path, rpath=f"{TORCH_BESIDE}:/opt/torch/lib")
    assert "looks for libraries in /opt/torch/lib" in verdict(wheel(tmp_path, fixed))


def test_libraries_need_nothing_that_is_not_there(tmp_path: Path) -> None:
    gloo = library(tmp_path, rpath="", name="libgloo.so.0")
    needing = library(tmp_path, rpath=TORCH_BESIDE, needs=gloo)
    assert "libgloo.so.0, which neither torch nor the system has" in verdict(wheel(tmp_path, needing))
