"""Modules of the package import each other in one direction."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import shardwise

PACKAGE = Path(shardwise.__file__).parent


def name_of(path):
    parts = ["shardwise", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imported_by(source):
    """Modules of ours that `source` imports anywhere: within functions and for types, too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            submodules = {f"{node.module}.{each.name}" for each in node.names} & MODULES.keys()
            found |= submodules or {node.module}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), "an import from a package without its name"
    return found & MODULES.keys() - {"shardwise"}


def test_imports_within_functions_and_for_types_count():
    source = "if TYPE_CHECKING:\n from shardwise.dtensor import DTensor\ndef f():\n from shardwise import _C, debug\n"
    assert imported_by(source) == {"shardwise.dtensor", "shardwise.debug"}


def test_modules_import_each_other_in_one_direction():
    TopologicalSorter({name: imported_by(path.read_text()) for name, path in MODULES.items()}).prepare()
