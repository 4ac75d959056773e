"""The table of what is replaced in other libraries: its names are there, and without a tensor of ours the original alone runs."""

import importlib
import sys
import timeit
import types
import warnings
from concurrent.futures import Future
from inspect import getattr_static
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shardwise.interop import replacements
from shardwise.interop.replacements import TABLE, Replacement, replace
from shardwise.testing import run_ranks

PLAIN = torch.ones(2)
LAYER = nn.Linear(2, 2)
TRAINER = SimpleNamespace(model=LAYER, accelerator=SimpleNamespace(), args=SimpleNamespace(should_save=True))
STAGE = SimpleNamespace(submod=LAYER)
SCHEDULE = SimpleNamespace(_stage=STAGE, _stages=None)
OPTIMIZER = torch.optim.SGD(LAYER.parameters(), lr=0.1)

# Arguments of a call without our tensors, by the function that stands for the original.
CALLS = {
    "fake_tensors.dispatch": (None, torch.ops.aten.add.Tensor, (), (PLAIN, PLAIN), {}),
    "fake_tensors.dispatch_in_graph": (None, torch.ops.aten.add.Tensor, (), (PLAIN, PLAIN), {}),
    "compiled_programs.mark": (PLAIN, 0),
    "compiled_programs.traced_again": (torch.fx.GraphModule({}, torch.fx.Graph()), [PLAIN]),
    "compiled_programs.view_of_base": (PLAIN, PLAIN, False),
    "compiled_programs.runtime_wrapper": (print,),
    "compiled_programs.check_operator": (None, torch.ops.aten.add.Tensor, (), (PLAIN, PLAIN), {}),
    "compiled_programs.post_grad_passes": (torch.fx.GraphModule({}, torch.fx.Graph()), True),
    "torch_functions._must_be_exchanged": (PLAIN,),
    "torch_functions.register_forward_pre_hook": (LAYER, print),
    "torch_functions.total_norm": ([PLAIN], 2.0, False, None),
    "torch_functions.clip_grads": ([PLAIN], 1.0, PLAIN, None),
    "optimizers.load_state_dict": (OPTIMIZER, OPTIMIZER.state_dict()),
    "optimizers.elementwise": ([PLAIN], [PLAIN], [PLAIN]),
    "optimizers.adafactor": ([PLAIN], [PLAIN], [None], [None], [PLAIN], [PLAIN]),
    "optimizers.muon": ([PLAIN], [PLAIN], [PLAIN]),
    "optimizers.gather_flat_grad": (SimpleNamespace(_params=[PLAIN]),),
    "optimizers.add_grad": (SimpleNamespace(_params=[PLAIN]), 0.1, PLAIN),
    "torch_functions.as_replicas": (None, PLAIN),
    "torch_functions.with_samples": (PLAIN,),
    "torch_functions.unchunked": (PLAIN, PLAIN, PLAIN),
    "data_parallel.verify_managed_param": ("weight", PLAIN),
    "data_parallel.module_state": (LAYER,),
    "data_parallel.init_with_local_parameters": (None, LAYER),
    "data_parallel.record_init_args": (None, LAYER, ()),
    "data_parallel.get_modules_and_states": (LAYER, torch.device("cpu")),
    "data_parallel.init_param_group": (None, None, (), SimpleNamespace()),
    "data_parallel.add_param_group": (None, {"params": [PLAIN]}),
    "torch_functions.mapped": (None, None, None, None, None, None, PLAIN),
    "state_dicts.gather_state_dict": ({"a": PLAIN},),
    "state_dicts.distribute_state_dict": ({"a": PLAIN}, {"a": PLAIN}),
    "state_dicts.broadcast_state_dict": ({"a": PLAIN}, {"a": PLAIN}),
    "state_dicts.broadcast_tensors": ({"a": PLAIN}, {"a": PLAIN}, ["a"]),
    "state_dicts.create_cpu_state_dict": ({"a": PLAIN},),
    "state_dicts.offload_tensor": (None, PLAIN, {}),
    "state_dicts.execute_save": (None, {"a": PLAIN}),
    "state_dicts.save_wrapper": ({"a": PLAIN},),
    "state_dicts.create_plan": ({"a": PLAIN}, None, True),
    "hugging_face.prepare_local_plan": (None, SimpleNamespace(items=[])),
    "pipelines.to_tensor": (STAGE, SimpleNamespace()),
    "pipelines.compute_input_grads": (STAGE, [PLAIN], [PLAIN]),
    "pipelines.prepare_forward_infra": (STAGE, 2, (PLAIN,)),
    "pipelines.init": (STAGE, 0),
    "pipelines.initialize": (SCHEDULE, (PLAIN,)),
    "pipelines.split": (PLAIN, SimpleNamespace(split_dim=0), 2),
    "pipelines.merge": ([PLAIN, PLAIN], None),
    "hugging_face.gather_state_dict": (None, LAYER, {"a": PLAIN}),
    "hugging_face.is_distributed": (LAYER,),
    "hugging_face.init_trainer": (None, LAYER, None),
    "hugging_face.create_accelerator": (TRAINER,),
    "hugging_face.tp_size": (TRAINER,),
    "hugging_face.save_optimizer": (TRAINER,),
    "hugging_face.synchronise": (TRAINER, LAYER),
    "hugging_face.step": (TRAINER, LAYER),
    "hugging_face.generate": (LAYER, PLAIN),
    "hugging_face.prepare": (TRAINER.accelerator, LAYER),
    "hugging_face.prepare_model": (TRAINER.accelerator, LAYER),
    "hugging_face.prepare_loader_of": (TRAINER.accelerator, [PLAIN]),
    "hugging_face.prepare_loader": ([PLAIN],),
    "hugging_face.get_state_dict": (TRAINER.accelerator, LAYER),
    "hugging_face.gather": (TRAINER.accelerator, PLAIN),
    "hugging_face.gather_for_metrics": (TRAINER.accelerator, PLAIN),
    "hugging_face.save_state": ("folder", [{}], [OPTIMIZER]),
    "hugging_face.load_model": (LAYER, "file"),
}
FUNCTIONS = sorted({row.ours for row in TABLE if not row.is_value})


def function_of(ours):
    module, _, name = ours.rpartition(".")
    return getattr(importlib.import_module(f"shardwise.interop.{module}"), name)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_installed_libraries_have_the_name(row):
    module = (
        pytest.importorskip(row.module) if not row.module.startswith("torch.") else importlib.import_module(row.module)
    )
    if not row.name:
        return
    path, _, name = row.name.rpartition(".")
    owner = getattr(module, path) if path else module
    assert getattr_static(owner, name, None) is not None
    assert callable(function_of(row.ours))


@pytest.mark.parametrize("ours", FUNCTIONS)
def test_without_our_tensors_the_original_runs_with_the_same_arguments(ours):
    """No process group is there, so that anything that were sent would be an error."""
    arguments, result, calls = CALLS[ours], (PLAIN,), []

    def original(*args, **options):
        calls.append((args, options))
        return result

    assert function_of(ours)(original, *arguments) in (result, None)
    ((args, options),) = calls
    given = [*args, *options.values()]
    assert all(any(same(each, one) for one in given) for each in arguments if each is not None), given


def same(given, expected):
    both = (given, expected)
    if all(isinstance(each, list) for each in both):
        return len(given) == len(expected) and all(map(same, *both))
    return given is expected


def test_an_exchange_costs_less_than_a_microsecond():
    """The way to the replacement and back, the least of many: a machine that has something else to do does not count."""
    module = types.ModuleType("torch.of_the_test")
    module.original = original = lambda tensor: tensor
    replace(module, [Replacement(module.__name__, "original", "torch_functions._must_be_exchanged", "the test")])
    assert module.original is not original and module.original.__wrapped__ is original

    def least(function):
        return min(timeit.repeat(lambda: function(PLAIN), number=1000, repeat=50)) / 1000

    assert least(module.original) - least(original) < 1e-6


def test_a_missing_name_is_said_once_with_what_does_not_work(monkeypatch):
    rows = (
        Replacement("torch.of_the_test", "renamed", "torch_functions.total_norm", "clipping of the test"),
        Replacement("torch.of_the_test", "Class.renamed", "torch_functions.clip_grads", "clipping of the test"),
        Replacement("torch.of_the_test", "newer", "torch_functions.clip_grads", "newer things", since=(99, 0)),
    )
    monkeypatch.setitem(sys.modules, "torch.of_the_test", types.ModuleType("torch.of_the_test"))
    monkeypatch.setattr(replacements, "TABLE", rows)
    for flag in ("_is_begun", "_is_installed"):
        monkeypatch.setattr(replacements, flag, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replacements.install()
        replacements.install()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"[import] shardwise does not find some names in torch {torch.__version__},")
    assert "clipping of the test (no torch.of_the_test.renamed, torch.of_the_test.Class.renamed)" in text
    assert "newer" not in text


def test_a_thread_does_not_save_over_the_group_of_the_training():
    import shardwise as sw
    from shardwise.interop.state_dicts import execute_save, save_wrapper, staged

    def body(rank):
        tensor = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (1,)), placements=[sw.Shard(0)])
        state = {"model": [staged(tensor, [tensor.to_local()])]}
        done = Future()
        done.set_result(state)
        for save in (lambda **o: execute_save(record, None, state, **o), lambda **o: save_wrapper(record, done, **o)):
            with pytest.raises(ValueError, match=r"\[async_save\] .* Give it its own group: process_group="):
                save()
            save(process_group="given")
            save(no_dist=True)

    def record(*arguments, **options):
        calls.append(options)

    calls = []
    run_ranks(1, body)
    assert calls == [{"process_group": "given"}, {"no_dist": True}] * 2
