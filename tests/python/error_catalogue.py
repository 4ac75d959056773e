"""Runs the cases of error_cases/, and makes the list of docs/error_messages.md from them.

python tests/python/error_catalogue.py          # prints the list; scripts/docs puts it into the page
"""

import functools
import importlib
import json
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed.tensor
import torch.nn.functional as F
from error_cases import Case
from torch.distributed.checkpoint.api import CheckpointException
from torchrun import forked_ranks

import shardwise as sw
from shardwise.testing import run_ranks

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [
    *(
        "placements",
        "meshes",
        "tensors",
        "wrappers",
        "local_classes",
        "moves",
        "operators",
        "rules",
        "lookups",
        "embedding_plans",
    ),
    *(
        "many_tables",
        "ids",
        "parallel_models",
        "fully_sharded_models",
        "experts",
        "pipelines",
        "traced_programs",
        "checkpoints",
    ),
    *("pictures", "ranks", "suggestions"),
]
NAMES = (
    *("DTensor", "EnumerableShard", "LocalShardsWrapper", "Partial", "RaggedShard", "Replicate", "Shard"),
    "ShardMetadata",
)
PREAMBLE = f"""
import torch
import torch.nn.functional as F
import shardwise as sw
from shardwise import {", ".join(NAMES)}
"""

# "[op] the thing with its value: the rule. The way out."
PREFIX = re.compile(r"\[[\w:. ()]+\] ")
WAY_OUT = re.compile(
    r"(?<![\w'])(Use|Give|Call|Pass|Make|Name|Leave|Move|Wrap|Take|Redistribute|Reduce|Write|Convert|Add|Keep|Lower|Plan|Place|"
    r"Correct|Compare|Work|Draw|Flatten|Close|Specify|Start|Look|Say|Ask|Compile|Load|Rename|Register|State|Reshape|Split|Let|Begin|Make|"
    r"Combine|Detach|Implement|Put|Set|Merge|Shard the|Replace|Slice|Copy|Clip|Run|Read|Pad|replace|Weights go|Bag 0 begins|Expect|Return|Must|start\(\)|pip install|use|give|set|must|should|expected)(?![\w'])"
    r"|is none of|There are|The mesh has|the mesh is|is needed|It has|is in \[0|: to_local\(\)|each rank gives"
)
INTERNALS = re.compile(r"DispatchKey|c10::|at::|0x[0-9a-f]{4}|Exception raised from|object at|<lambda>|std::")


def sections() -> Iterator[tuple[str, ModuleType]]:
    for name in SECTIONS:
        yield name, importlib.import_module(f"error_cases.{name}")


def names() -> dict[str, Any]:
    return {"torch": torch, "F": F, "sw": sw, **{name: getattr(sw, name) for name in NAMES}}


def message_of(error: BaseException) -> str:
    """Without the trace of C++ that some builds of torch append."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text.split("\nException raised from")[0].rstrip()


def unwrapped(error: BaseException) -> BaseException:
    """What torch.distributed.checkpoint raises holds each rank's own exception and trace."""
    if isinstance(error, CheckpointException):
        return next(iter(error.failures.values()))[0]
    return error


_once_lock = threading.Lock()
_kept: dict[
    str, dict[str, Any]
] = {}  # names of what has been run once; a library of operators is gone with its last name


def run_once(code: str) -> None:
    with _once_lock:
        if code not in _kept:
            _kept[code] = names()
            exec(code, _kept[code])


def outcome_of(setup: str, case: Case) -> tuple[BaseException | None, bool]:
    """What this rank gets, and whether the ranks are in step afterwards."""
    here = names()
    raised: BaseException | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(setup, here)
        run_once(case.once)
        try:
            exec(case.code, here)
        except (Exception, CheckpointException) as error:  # the latter is a BaseException
            raised = unwrapped(error)
    mesh = sw.init_device_mesh("cpu", (2,))
    total = sw.distribute_tensor(torch.ones(6, 2), mesh, [sw.Shard(0)]).sum().item()
    return raised, total == 12


def provoke(setup: str, case: Case) -> list[tuple[BaseException | None, bool]]:
    """The outcomes of two ranks that are threads."""
    return run_ranks(2, lambda rank: outcome_of(setup, case), timeout=20)


@functools.cache
def of_processes() -> tuple[list[str], dict[str, tuple[str, str]]]:
    """What two processes complain about, and by title the type and the words of what only processes have: one launch."""
    finished = forked_ranks("error_program.py", 2)
    assert finished.returncode == 0, finished.stderr
    complaints, messages = json.loads(finished.stdout)
    return complaints, messages


def raised_by(section: str, setup: str, case: Case) -> tuple[str, str]:
    """The type and the words on the page."""
    if case.of_processes:
        return of_processes()[1][f"{section}: {case.title}"]
    raised = provoke(setup, case)[case.only_on or 0][0]
    assert raised is not None, case
    return type(raised).__name__, alike(message_of(raised))


def alike(message: str) -> str:
    """The message without what says which rank found the mistake, and with one name for folders that each rank makes."""
    message = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "/tmp/folder", message)
    message = re.sub(r"__[0-9a-f]{32}_", "__", message)  # in names of a checkpoint's files
    message = re.sub(r"-pid\d+", "-pid", message)
    return re.sub(r" \(on rank \d+\)$", "", message)


def is_well_formed(message: str) -> bool:
    """[op] the thing, the rule, the way out."""
    prefix = PREFIX.match(message)
    return prefix is not None and WAY_OUT.search(message, prefix.end()) is not None


HEAD = f"""\
The code of every section follows these lines:

```py
{PREAMBLE.strip()}
```

"""


@functools.cache
def page() -> str:
    """The list of errors: what was done, the code that does it, and what every rank gets, or the one that is named."""
    text = HEAD
    for name, section in sections():
        text += f"## {section.TITLE}\n\n```py\n{section.SETUP.strip()}\n```\n\n"
        for case in section.CASES:
            kind, message = raised_by(name, section.SETUP, case)
            code = f"{case.once}\n\n{case.code}" if case.once else case.code
            text += f"### {case.title[0].upper()}{case.title[1:]}\n\n```py\n{code}\n```\n\n"
            if case.only_on is not None:
                text += f"On rank {case.only_on}:\n\n"
            text += f"```text\n{kind}: {message}\n```\n\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(page())
