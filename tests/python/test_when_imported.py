"""What waits for a module of another library is called once, right after that module's own code."""

import importlib
import importlib.util
import sys

import pytest

from shardwise.interop import when_imported as when_imported_module
from shardwise.interop.when_imported import when_imported

NAME = "module_of_the_test"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)

    def write(text):
        (tmp_path / f"{NAME}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop(NAME, None)


def test_who_looks_for_a_module_need_not_import_it(write):
    write("x = 1")
    calls = []
    when_imported(NAME, calls.append)
    assert importlib.util.find_spec(NAME) is not None and not calls
    module = importlib.import_module(NAME)
    assert calls == [module] and module.x == 1
    importlib.reload(module)
    assert calls == [module]


def test_a_finder_stands_only_while_something_waits(write, monkeypatch):
    monkeypatch.setattr(when_imported_module, "_waiting", {})
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not when_imported_module._watcher])
    finders = list(sys.meta_path)
    write("x = 3")
    when_imported(NAME, lambda module: None)
    assert len(sys.meta_path) == len(finders) + 1
    importlib.import_module(NAME)
    assert sys.meta_path == finders
    when_imported(NAME, lambda module: None)  # at once
    assert sys.meta_path == finders


def test_an_import_that_fails_is_waited_for_again(write, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write("raise OSError('not yet')")
    calls = []
    when_imported(NAME, calls.append)
    with pytest.raises(OSError, match="not yet"):
        importlib.import_module(NAME)
    assert not calls
    write("x = 2")
    assert calls == [importlib.import_module(NAME)]
