"""Programs that run on real ranks and in a dry run: test_dry_run_truth.py compares what they send, hold and lay out.

    truth_program.py FOLDER NAME program.py ARGUMENTS

Runs program.py as `python program.py ARGUMENTS` does, and writes FOLDER/NAME-RANK.json. A dry run writes its layouts alone.
"""

import gc
import json
import os
import resource
import runpy
import sys
from pathlib import Path
from weakref import WeakSet

import torch
from dry_run_program import most_bytes, sent
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile

import shardwise as sw
from shardwise import _C


def run(program, *arguments):
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")


def choose_in_turn():
    """Has choices of experts go round, as a dry run plans."""

    def topk(scores, n_chosen):
        chosen = torch.arange(len(scores) * n_chosen).view(-1, n_chosen) % scores.shape[1]
        return scores.gather(1, chosen), chosen

    torch.Tensor.topk = topk


def spread_ids_and_send():
    """Has lookups name all rows evenly, and ranks of one machine send rows instead of sharing memory, as a dry run plans."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    start = sw.DistributedEmbedding.start

    def start_evenly(layer, inputs):
        tables = dict(zip(layer.feature_names, layer._tables_of_inputs, strict=True))
        rows = {name: layer.configs[table].n_rows for name, table in tables.items()}
        n = {name: ids.numel() for name, ids in inputs.items()}
        even = {name: torch.arange(n[name]) * rows[name] // n[name] for name in inputs}
        return start(layer, {name: even[name].view(ids.shape) for name, ids in inputs.items()})

    sw.DistributedEmbedding.start = start_evenly


VALUES = {"moe": choose_in_turn, "two_tower": spread_ids_and_send}  # by the program's name


class Layouts:
    """Notes the layout of each parameter when its module first runs."""

    def __init__(self):
        self.seen, self.found = WeakSet(), []
        register_module_forward_pre_hook(self.note)

    def note(self, module, inputs):
        if module not in self.seen:
            self.seen.add(module)
            self.found += [
                [type(module).__name__, name, str(each.placements), list(each.shape), list(each.to_local().shape)]
                for name, each in module._parameters.items()
                if isinstance(each, sw.DTensor)
            ]


def main(folder, name, *command):
    is_dry = torch.empty(()).is_meta
    layouts = Layouts()
    figures = {}
    rank = os.environ["RANK"]
    VALUES.get(name, lambda: None)()
    if is_dry:
        run(*command)
    else:
        gc.collect()
        events = _C.EventReader("test", operators=True, plain_collectives=True)
        events.open()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory:
            run(*command)
            gc.collect()
        events.close()
        figures = {"sent": sent(events.communications()), "peak": most_bytes(memory)}
    figures["layouts"] = layouts.found
    Path(folder, f"{name}-{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
