"""rattler-build accepts the conda recipe, which asks for what pyproject.toml asks for. To compile it takes conda's own world, which a test
does not have."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
RECIPE = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
VARIANTS = yaml.safe_load((ROOT / "conda" / "variants.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def named(requirements: list[str]) -> dict[str, str]:
    """The range of each by its name, as conda names it."""
    parts = [re.fullmatch(r"([\w.-]+) *(.*)", each).groups() for each in requirements if "${{" not in each]
    return {{"torch": "pytorch"}.get(name.replace("_", "-"), name.replace("_", "-")): spec for name, spec in parts}


def test_it_runs_with_what_a_wheel_asks_for() -> None:
    assert named(RECIPE["requirements"]["run"]) == {"python": "", **named(PROJECT["project"]["dependencies"])}


def test_it_compiles_with_what_an_sdist_asks_for() -> None:
    there = named([*RECIPE["requirements"]["build"], *RECIPE["requirements"]["host"]])
    wanted = named(PROJECT["build-system"]["requires"]) | {"cmake": PROJECT["tool"]["scikit-build"]["cmake"]["version"]}
    assert {name: there.get(name) for name in wanted} == wanted
    assert there["pytorch"] == named(PROJECT["project"]["dependencies"])["pytorch"]


def test_every_variable_of_a_variant_is_there() -> None:
    """rattler-build refuses stdlib("c") without c_stdlib; conda-forge would bring it, a checkout does not."""
    functions = {name for each in RECIPE["requirements"]["build"] for name in re.findall(r"\{\{ (\w+)\(", each)}
    assert functions == {"compiler", "stdlib"}
    assert {"python", "c_stdlib", "c_stdlib_version"} <= VARIANTS.keys()
    oldest = tuple(int(part) for part in PROJECT["project"]["requires-python"].removeprefix(">=").split("."))
    assert min(tuple(int(part) for part in each.split(".")[:2]) for each in VARIANTS["python"]) == oldest


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list:
    """What rattler-build makes of the recipe and of the variants beside it: one for each package."""
    rattler_build = pytest.importorskip("rattler_build")
    monkeypatch.setenv("SHARDWISE_VERSION", "1.2.3.dev4+gabcdef")
    variants = rattler_build.VariantConfig.from_file(ROOT / "conda" / "variants.yaml")
    config = rattler_build.RenderConfig(rattler_build.PlatformConfig(target_platform="linux-64"))
    return rattler_build.Stage0Recipe.from_file(ROOT / "conda" / "recipe.yaml").render(variants, config)


def test_rattler_build_renders_a_package_for_each_python(rendered: list) -> None:
    assert [each.variant["python"] for each in rendered] == VARIANTS["python"]
    tags = ["py" + "".join(each.split(".")[:2]) for each in VARIANTS["python"]]
    assert [each.recipe.build.string[: len(tags[0])] for each in rendered] == tags


def test_rattler_build_reads_each_part_of_the_recipe(rendered: list) -> None:
    for each in rendered:
        recipe = each.recipe.to_dict()
        assert recipe["package"] == {"name": "shardwise", "version": "1.2.3.dev4_gabcdef"}
        environment = recipe["build"]["script"]["env"]
        assert environment == {"CMAKE_GENERATOR": "Ninja", "SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.3.dev4+gabcdef"}
        asked = recipe["requirements"]
        assert {"gxx_linux-64", "sysroot_linux-64 2.28.*"} <= set(asked["build"])
        assert not [spec for part in asked.values() for spec in part if "{{" in spec]
        assert (asked["host"], asked["run"]) == (RECIPE["requirements"]["host"], RECIPE["requirements"]["run"])
        imports, commands = recipe["tests"]
        assert imports["python"]["imports"] == ["shardwise", "shardwise.parallel"]
        assert len(commands["script"]) == 2


def test_headers_of_torch_are_found_where_conda_forge_has_them(tmp_path: Path) -> None:
    """Its libtorch puts them in the include/ of the environment; the package torch keeps an include/ without them."""
    torch = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    for file in [torch / "include" / "dnnl.h", tmp_path / "include" / "c10" / "util" / "Exception.h"]:
        file.parent.mkdir(parents=True)
        file.touch()
    (torch / "version.py").write_text("__version__ = '2.13.0'\n")
    script = tmp_path / "find.cmake"
    script.write_text(f"""
        function(add_library)  # a script has no targets
        endfunction()
        function(set_target_properties)
          list(JOIN ARGN " " words)
          message("${{words}}")
        endfunction()
        set(SHARDWISE_TORCH_ROOT "{torch}")
        list(APPEND CMAKE_MODULE_PATH "{ROOT / "cmake"}")
        find_package(ShardwiseTorch 2.11 REQUIRED MODULE)
    """)
    cmake = Path(sys.executable).with_name("cmake")
    done = subprocess.run([cmake if cmake.exists() else "cmake", "-P", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    included = re.findall(r"INTERFACE_INCLUDE_DIRECTORIES (\S+)", done.stderr)
    assert [Path(each).resolve() for each in included] == [
        tmp_path / "include",
        tmp_path / "include/torch/csrc/api/include",
    ]
