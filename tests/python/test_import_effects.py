"""`import shardwise` changes nothing of torch, and programs of torch's own tensors run beside ours as they run without them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import TORCHS, forked_ranks

REPOSITORY = Path(__file__).parents[2]

# Prints what differs between two looks at the modules of torch and of the libraries of the table: their attributes, and those of their classes, by
# identity. Modules that Shardwise imports are imported before the first look, for their own code may change others.
# Two things are left out: a counter that every hook takes a number of (RemovableHandle.next_id), and torch.load's set of functions that files may
# call, to which a program adds its own by add_safe_globals(): it is looked at by what was added.
LOOK = """
import copyreg, importlib, json, signal, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.serialization import get_safe_globals
from torch.utils._pytree import SUPPORTED_NODES

LIBRARIES = ("torch", "transformers", "accelerate", "safetensors")

def look():
    seen = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in LIBRARIES:
            for key, value in list(vars(module).items()):
                if key != "_marked_safe_globals_set":
                    seen[name, key] = value
                if isinstance(value, type):
                    held = {(name, key, each): it for each, it in vars(value).items()}
                    seen |= {place: it for place, it in held.items() if not place[2].startswith("_abc_") and place[2] != "next_id"}
    return seen

def state():
    return {
        "finders": list(sys.meta_path), "path hooks": list(sys.path_hooks), "excepthook": sys.excepthook,
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "copyreg": dict(copyreg.dispatch_table), "pytree": set(SUPPORTED_NODES), "foreach": list(_foreach_supported_types),
    }

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
before, others, safe = look(), state(), set(get_safe_globals())
import shardwise
if sys.argv[2] == "mesh":
    shardwise.init_device_mesh("cpu", (1,))
after, now = look(), state()
known = {key[0] for key in before}
changed = {key for key, value in after.items() if key in before and before[key] is not value} | before.keys() - after.keys()
# A new attribute is a module that an import put there.
changed |= {key for key in after.keys() - before.keys() if key[0] in known and not isinstance(after[key], type(sys))}
added = {each for each in set(get_safe_globals()) - safe if not each.__module__.startswith("shardwise")}
print(json.dumps(sorted([*(".".join(key) for key in changed), *(name for name in now if now[name] != others[name]), *map(str, added)])))
"""
# Modules that other libraries import with Shardwise are not its doing: they are there before the first look.
IMPORTED = """
import json, sys
import shardwise
print(json.dumps([name for name in sys.modules if name.partition(".")[0] == "torch" and not name.startswith("torch.classes")]))
"""


def printed(program, *arguments):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def imported():
    """Modules of torch that `import shardwise` imports, and those of the table."""
    from shardwise.interop.replacements import TABLE

    of_table = {row.module for row in TABLE if row.module.startswith("torch.")}
    return json.dumps([*printed(IMPORTED), *sorted(of_table)])


def test_an_import_changes_no_attribute_of_torch(imported):
    assert printed(LOOK, imported, "import") == []


def test_the_first_mesh_replaces_what_the_table_says(imported):
    from shardwise.interop.replacements import TABLE

    rows = {str(row): row for row in TABLE if row.module.startswith("torch.")}
    # torch's lists stay, with a class more.
    appended = {name for name, row in rows.items() if row.is_value and row.name != "DTensor"}
    changed = set(printed(LOOK, imported, "mesh")) - {"finders", "foreach"}  # a finder waits for other libraries
    assert rows.keys() - appended <= changed, rows.keys() - appended - changed
    # The rest are these classes and functions by names that other modules of torch have them by, and attributes of a class that was replaced.
    last = {row.name.rpartition(".")[2] for row in rows.values()}
    replaced = tuple(f"{row}." for row in rows)
    assert [name for name in changed if name.rpartition(".")[2] not in last and not name.startswith(replaced)] == []


def test_no_finder_is_left_and_no_module_of_another_library_is_imported():
    program = """
import json, sys
before = list(sys.meta_path)
import shardwise
print(json.dumps([
    before == sys.meta_path,
    [name for name in ("torch._dynamo", "torch.distributed.tensor", "transformers", "accelerate", "safetensors") if name in sys.modules],
]))
"""
    assert printed(program) == [True, []]


@pytest.mark.parametrize("when", ["import", "mesh"])
def test_programs_of_torch_run_as_without_shardwise(when, tmp_path):
    """Values, collectives and groups of two processes. Imported by rank 0 alone it changes nothing either."""
    reports = {}
    for mode in ("none", when, *(["rank_0"] if when == "import" else [])):
        folder = tmp_path / mode
        folder.mkdir()
        imported = () if mode == "import" else TORCHS  # it imports shardwise before torch._dynamo
        result = forked_ranks("torchs_own_program.py", 2, mode, folder, timeout=200, imported=imported)
        assert result.returncode == 0, result.stderr
        reports[mode] = [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]
    for mode, report in reports.items():
        assert report == reports["none"], mode
    assert {"dtensor", "fsdp", "pipeline", "checkpoint", "async_save", "compile"} <= reports["none"][0].keys()


def test_cpp_looks_up_no_module_of_ours_by_its_name():
    """The package hands its functions over: python/package.h."""
    found = []
    for path in [*REPOSITORY.glob("python/*.cpp"), *REPOSITORY.glob("python/*.h")]:
        for argument in re.findall(r"(?:module_::import|PyImport_\w+)\(([^)]*)\)", path.read_text()):
            if not re.fullmatch(r'"(torch|torch\._C|sys|threading|builtins)"', argument):
                found.append(f"{path.name}: import of {argument}")
        found += [f"{path.name}: {name}" for name in re.findall(r'"shardwise\.[\w.]+"', path.read_text())]
    assert found == []
