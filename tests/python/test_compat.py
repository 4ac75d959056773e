"""Programs for torch.distributed.tensor that run on Shardwise unchanged."""

import importlib
import os
import runpy
import subprocess
import sys
from multiprocessing import spawn
from types import ModuleType

import pytest
import torch
from torchrun import IMPORTED, forked_ranks, torchrun

import shardwise as sw
from shardwise import compat
from shardwise.compat.installation import counterparts
from shardwise.interop.when_imported import torchs_own
from shardwise.testing import run_ranks

OF_LLAMA = (*IMPORTED, "transformers.models.llama.modeling_llama")
MODULES = ["", ".placement_types", ".parallel", ".parallel.style", ".experimental", ".debug", ".device_mesh"]


@pytest.fixture
def theirs():
    """Not a global: install() would exchange it."""
    return torchs_own("torch.distributed.tensor")


@pytest.fixture
def program(theirs):
    """A module that bound torch's names before install()."""
    module = ModuleType("early_program")
    module.DTensor, module.tensor_package, module.number = theirs.DTensor, theirs, 3
    exec(
        "class Holder:\n    kind = DTensor\n    def method(self, kind=DTensor, *, mesh=tensor_package): return kind\n"
        "def function(kind=DTensor, n=2): return kind",
        vars(module),
    )
    sys.modules["early_program"] = module
    yield module
    compat.uninstall()
    del sys.modules["early_program"]


@pytest.fixture
def installed():
    compat.install()
    yield
    compat.uninstall()


@pytest.mark.usefixtures("installed")
def test_torchs_modules_have_our_names(theirs):
    from torch.distributed import init_device_mesh as of_package
    from torch.distributed._tensor import DTensor as of_old_name
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    from torch.distributed.tensor.parallel.style import ColwiseParallel

    assert DTensor is of_old_name is sw.DTensor and Shard is sw.Shard and distribute_tensor is sw.distribute_tensor
    assert DeviceMesh is sw.DeviceMesh and init_device_mesh is of_package is sw.init_device_mesh
    assert ColwiseParallel is sw.parallel.ColwiseParallel
    assert context_parallel_unshard.__module__.startswith("shardwise")
    assert torch.distributed.tensor.DTensor is sw.DTensor is not theirs.DTensor


@pytest.mark.usefixtures("installed")
def test_functions_that_torch_defines_in_c_and_internal_ones_take_our_placements():
    from torch.distributed.tensor import Shard, init_device_mesh
    from torch.distributed.tensor._dtensor_spec import ShardOrderEntry
    from torch.distributed.tensor._redistribute import redistribute_local_tensor
    from torch.distributed.tensor._utils import compute_global_tensor_info, compute_local_tensor_info

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        assert compute_global_tensor_info(torch.empty(4, 3), mesh, [Shard(0)]) == ([8, 3], [3, 1])
        assert compute_local_tensor_info(torch.empty(8, 3), mesh, [Shard(0)]) == ([4, 3], [3, 1])

    run_ranks(2, body)
    assert redistribute_local_tensor.__module__ == ShardOrderEntry.__module__.replace("_dtensor_spec", "_utils")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", MODULES)
def test_no_public_name_is_missing(name):
    module = importlib.import_module(f"torch.distributed.tensor{name}")
    public = module.__all__
    assert public and all(getattr(module, each).__module__.split(".")[0] == "shardwise" for each in public)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["fsdp", "fsdp._fully_shard", "_composable.fsdp", "_composable.fsdp.fully_shard"])
def test_fully_shard_is_ours_and_what_only_torch_has_stays_torchs(name):
    module = importlib.import_module(f"torch.distributed.{name}")
    assert module.fully_shard is sw.fully_shard and module.FSDPModule is sw.fsdp.FSDPModule
    assert module.register_fsdp_forward_method is sw.fsdp.register_fsdp_forward_method
    if name == "fsdp":
        assert module.FullyShardedDataParallel.__module__.startswith("torch.") and module.share_comm_ctx
        assert module.MixedPrecisionPolicy is sw.fsdp.MixedPrecisionPolicy


@pytest.mark.usefixtures("installed")
def test_private_names_and_torchs_own_modules_stay_torchs(theirs):
    assert theirs.DTensor.__module__ == "torch.distributed.tensor"
    module = importlib.import_module("torch.distributed.tensor")
    assert module._StridedShard is theirs._StridedShard and {"DTensor", "_ops"} <= {*dir(module)}
    later = "torch.distributed.tensor.parallel._data_parallel_utils"
    sys.modules.pop(later, None)
    assert importlib.import_module(later).DTensor is theirs.DTensor
    assert importlib.import_module("torch.distributed.tensor").DTensor is sw.DTensor


def test_uninstall_leaves_nothing(program):
    before = {name: importlib.import_module(f"torch.distributed.tensor{name}") for name in MODULES}
    compat.uninstall()
    compat.install()
    compat.install()
    compat.uninstall()
    assert before == {name: sys.modules[f"torch.distributed.tensor{name}"] for name in MODULES}
    assert program.DTensor.__module__ == "torch.distributed.tensor" and program.function() is program.DTensor
    for module, names in counterparts():
        assert all(vars(module)[name] is not ours for name, ours in names.items())


def test_what_was_bound_before_is_exchanged(program, theirs):
    compat.install()
    assert program.DTensor is program.Holder.kind is program.Holder().method() is program.function() is sw.DTensor
    assert program.tensor_package.Shard is sw.Shard and program.Holder.method.__kwdefaults__["mesh"].Shard is sw.Shard
    program.later = torchs_own("torch.distributed.device_mesh").DeviceMesh
    compat.install()
    assert program.later is sw.DeviceMesh and program.number == 3
    compat.uninstall()
    assert program.DTensor is program.Holder.kind is program.function() is theirs.DTensor is not sw.DTensor


def test_what_cannot_be_exchanged_is_named(program, theirs):
    program.Style = type("Style", (theirs.parallel.ParallelStyle,), {"__module__": "early_program"})
    program.KINDS = (int, theirs.DTensor)
    with pytest.warns(UserWarning, match=r"early_program\.Style, a subclass.*early_program\.KINDS, a tuple"):
        compat.install()


class Lazy(dict):
    """As transformers' tables of models: asked for its values, it loads modules that may not be there."""

    def values(self):
        raise ValueError("Could not find")

    __iter__ = keys = items = values


def test_collections_of_libraries_are_not_asked_for_what_they_load(program):
    program.MODELS = Lazy(llama="LlamaModel")
    compat.install()
    assert program.DTensor is sw.DTensor
    compat.uninstall()


SCRIPT = """
import sys
from dataclasses import dataclass
import torch.multiprocessing as mp
from helper import kind
from torch.distributed.tensor import DTensor

def child(rank, text):
    print("child", rank, text, DTensor.__module__, kind().__module__, flush=True)

if __name__ == "__main__":
    print(sys.argv[1:], DTensor.__module__, __name__, kind().__module__, flush=True)
    if "spawn" in sys.argv:
        mp.spawn(child, args=("hello",), nprocs=1)
    sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("import torch.distributed.tensor as dt\ndef kind(): return dt.DTensor\n")
    return tmp_path


def test_a_script_runs_with_its_arguments_and_its_children(folder):
    command = [sys.executable, "-m", "shardwise.compat", str(folder / "script.py"), "--lr", "0.1", "spawn", "7"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 7, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "['--lr', '0.1', 'spawn', '7'] shardwise.dtensor __main__ shardwise.dtensor"
    assert second == "child 0 hello shardwise.dtensor shardwise.dtensor"


def test_children_of_a_package_do_not_run_it_again(tmp_path):
    """As multiprocessing has it: `python -m package` names its main module package.__main__, which has no `if __name__`."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "children.py").write_text(
        "import torch.multiprocessing as mp\n"
        "from torch.distributed.tensor import DTensor\n"
        "def grandchild(rank): print('grandchild', DTensor.__module__, flush=True)\n"
        "def child(rank):\n"
        "    print('child', DTensor.__module__, flush=True)\n"
        "    mp.spawn(grandchild, nprocs=1)\n"
    )
    (tmp_path / "package" / "__main__.py").write_text(
        "import torch.multiprocessing as mp\n"
        "from package.children import child\n"
        "print('main', flush=True)\n"
        "mp.spawn(child, nprocs=1, daemon=False)\n"
    )
    command = [sys.executable, "-m", "shardwise.compat", "-m", "package"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["main", "child shardwise.dtensor", "grandchild shardwise.dtensor"]


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["compat", *arguments])
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("shardwise.compat", run_name="__main__")
    return end.value.code


@pytest.mark.usefixtures("installed")
def test_a_module_runs_with_its_arguments(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    assert main(monkeypatch, "-m", "script", "3") == 3
    assert capsys.readouterr().out == "['3'] shardwise.dtensor __main__ shardwise.dtensor\n"
    assert main(monkeypatch, "--nothing") == 2 and main(monkeypatch) == 2 and main(monkeypatch, "no_such.py", "3") == 2
    complaints = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "program" in complaints[0] and "program" in complaints[1] and "Name a script" in complaints[2]
    assert main(monkeypatch, "--help") == 0 and "unchanged" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["parallel", "tensors", "fully_sharded"])
def test_an_unchanged_program(part, tmp_path):
    start = torchrun if part == "parallel" else forked_ranks
    result = start("compat_program.py", 4, part, tmp_path, on_shardwise=True)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"{part}-{rank} shardwise.dtensor" for rank in range(4)]


def test_transformers_tensor_parallel_plans(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    result = forked_ranks("compat_program.py", 2, "tp_plan", tmp_path, imported=OF_LLAMA, on_shardwise=True)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"tp_plan-{rank} shardwise.dtensor" for rank in range(2)]


def test_transformers_loads_what_a_sharded_model_saved(tmp_path):
    pytest.importorskip("transformers")
    result = forked_ranks("compat_program.py", 4, "saved", tmp_path, imported=OF_LLAMA, on_shardwise=True)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"saved-{rank} shardwise.dtensor" for rank in range(4)]


def test_names_that_torch_keeps_in_two_modules_are_ours_in_both(theirs):
    compat.install()
    try:
        old = importlib.import_module("torch.distributed._tensor.placement_types")
        new = importlib.import_module("torch.distributed.tensor._dtensor_spec")
        assert old.TensorMeta is new.TensorMeta is sw._dtensor_spec.TensorMeta
        assert old.DTensorSpec is new.DTensorSpec is sw._dtensor_spec.DTensorSpec
    finally:
        compat.uninstall()


@pytest.mark.usefixtures("installed")
def test_torchs_functions_that_import_when_called_get_torchs_names(theirs):
    from torch.distributed.tensor import placement_types

    namespace = {"__name__": "torch.distributed.tensor.of_a_test"}
    exec(
        "def function():\n"
        "    from torch.distributed.tensor.placement_types import Shard\n"
        "    import torch.distributed.tensor as package\n"
        "    return Shard, package.DTensor",
        namespace,
    )
    assert namespace["function"]() == (theirs.placement_types.Shard, theirs.DTensor)
    assert placement_types.Shard is sw.Shard and placement_types.Shard is sw.Shard


@pytest.mark.usefixtures("installed")
def test_plain_tensors_of_one_element_are_replicas_while_ranks_have_the_same():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        x = sw.distribute_tensor(torch.arange(7.0), mesh, [sw.Shard(0)]).requires_grad_()
        one = torch.tensor([2.0], requires_grad=True)
        result = x * one
        assert torch.equal(result.full_tensor(), 2 * torch.arange(7.0))
        result.sum().backward()
        assert torch.equal(one.grad, torch.tensor([21.0]))
        assert torch.equal((torch.tensor([[1]]) + x).full_tensor(), 1 + torch.arange(7.0).unsqueeze(0))
        for plain in (
            torch.tensor([float(rank)]),
            torch.ones(1 + (rank == 2)),
            torch.ones(7),
            torch.ones(1, rank + 1)[0],
        ):
            with pytest.raises(ValueError, match="next to a DTensor"):
                x + plain
        lr = torch.tensor([0.1])
        weight, dense = torch.nn.Parameter(x.detach()), torch.nn.Parameter(torch.arange(7.0))
        for p in (weight, dense):
            optimizer = torch.optim.Adam([p], lr=lr, fused=True)
            (p * p).sum().backward()
            optimizer.step()
        torch.testing.assert_close(weight.full_tensor(), dense)

    run_ranks(3, body)


def test_plain_tensors_of_one_element_are_errors_without_compat():
    def body(rank):
        x = sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[sw.Shard(0)])
        with pytest.raises(ValueError, match="next to a DTensor"):
            x + torch.tensor([1.0])

    run_ranks(2, body)


def outside_the_mesh(mesh, rank):
    """On each rank, whether x equals itself and another one, which differs on the second of two members, and its sum's local part."""
    x = sw.DTensor.from_local(torch.ones(4, 3), mesh, [sw.Shard(0)])
    other = sw.DTensor.from_local(torch.full((4, 3), 1.0 + rank // 2), mesh, [sw.Shard(0)])
    return (
        torch.equal(x, x.clone()),
        torch.equal(x, other),
        x.sum().redistribute(placements=[sw.Replicate()]).to_local(),
    )


@pytest.mark.usefixtures("installed")
def test_ranks_outside_the_mesh_know_what_members_found_equal():
    def body(rank):
        same, differing, number = outside_the_mesh(sw.DeviceMesh("cpu", [0, 2]), rank)
        assert same is True and differing is False
        assert torch.equal(number, torch.tensor(24.0 if rank in (0, 2) else 0.0))
        assert torch.equal(
            sw.ones(4, device_mesh=sw.DeviceMesh("cpu", [0, 2])).to_local(), torch.ones(4 * (rank in (0, 2)))
        )
        rows = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
        ours = sw.DTensor.from_local(torch.ones(2), rows, [sw.Shard(0)])
        theirs = sw.DTensor.from_local(torch.full((2,), 1.0 + (rank == 3)), rows, [sw.Shard(0)])
        assert torch.equal(ours, theirs) == (rank < 2)  # each slice has its own answer

    run_ranks(4, body)


def test_without_compat_what_depends_on_values_is_an_error_outside_the_mesh():
    def body(rank):
        mesh = sw.DeviceMesh("cpu", [0, 2])
        if rank in (0, 2):
            assert outside_the_mesh(mesh, rank)[0] is True
            return
        with pytest.raises(
            NotImplementedError,
            match=r"which rank [13] does not have because it is outside the mesh \(2: ranks \[0, 2\]\)",
        ):
            outside_the_mesh(mesh, rank)
        assert sw.ones((), device_mesh=mesh).to_local().shape == (0,)

    run_ranks(4, body)
