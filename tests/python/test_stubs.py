"""The stub files say what the module has."""

import ast
import inspect
from pathlib import Path

import shardwise
from shardwise import _C

STUBS = Path(shardwise.__file__).with_name("_C")


def declarations():
    for stub in sorted(STUBS.glob("_*.pyi")):
        yield from ast.parse(stub.read_text()).body


def public(names):
    return {name for name in names if not name.startswith("_")}


def stubbed():
    """Name -> names of its members (None for functions)."""
    result = {}
    for node in declarations():
        if isinstance(node, ast.ClassDef):
            functions = {item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.ClassDef))}
            values = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
            result[node.name] = functions | values
        elif isinstance(node, ast.FunctionDef):
            result[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            result[node.target.id] = None
    return result


def test_the_stub_and_the_module_have_the_same_names():
    assert public(stubbed()) == public(vars(_C))


def test_classes_have_the_same_members():
    for name, members in stubbed().items():
        if members is not None and not name.startswith("_"):
            assert public(members) == public(vars(getattr(_C, name))), name


def test_functions_take_the_same_arguments():
    for node in declarations():
        if isinstance(node, ast.FunctionDef):
            signature = getattr(_C, node.name).__doc__.split("\n")[0]
            arguments = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
            positions = [signature.find(f"{argument}:") for argument in arguments if argument != "self"]
            assert all(position >= 0 for position in positions), (node.name, signature)
            assert positions == sorted(positions), (node.name, signature)


def test_public_names_are_exported_and_documented():
    for name in shardwise.__all__:
        assert inspect.getdoc(getattr(shardwise, name)), name
