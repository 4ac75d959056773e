"""Everything that Shardwise replaces in other libraries, in one table.

`import shardwise` replaces nothing. install() runs when the first mesh is made, and so before the first tensor of ours. It makes the
replacements at once in modules that are imported by then, and in other modules right after their import; a finder stands in sys.meta_path until
all of them are imported. A name that a program bound before, by `from module import name`, stays the original.

Each replacement is called with the original and the arguments of the call. If none of our tensors is in the call, it calls the original with these
arguments and does nothing else. tests/python/test_replacements.py checks all rows of the table: names, calls and costs.

A replacement is needed where torch asks `isinstance(x, torch.distributed.tensor.DTensor)`, or takes our tensor for a plain one, and has no
protocol for tensors. `__torch_function__` and `__torch_dispatch__` see operators, which are right already; these functions choose what to call.
Protocols are not in the table: checkpoints call `__create_write_items__`, `__create_chunk_list__` and `__get_tensor_shard__` of a tensor, tracers
`__tensor_flatten__`, torch.load uses add_safe_globals(), and load_state_dict() calls hooks of our modules. A comment over a group of rows says what
else was tried. Two things that programs ask for by name are not here: shardwise.compat, and the generators of ranks that are threads.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import getattr_static
from itertools import product
from types import ModuleType
from typing import Any

from shardwise._torch_versions import TORCH
from shardwise.interop.when_imported import Facade, when_imported

Function = Callable[..., Any]


@dataclass(frozen=True)
class Replacement:
    """`name` ("function" or "Class.method") of `module` is replaced by `ours` ("module.function" of shardwise.interop)."""

    module: str
    name: str
    ours: str
    without: str  # what does not work if the name is missing
    since: tuple[int, int] = (2, 11)  # the first version of torch that has the name
    # True if the name is of a class or a list, which ours(original) replaces. Without a name, ours(module) is called.
    is_value: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


# A line at the margin says what does not work if the names below it are missing. The lines below have these words: modules; names, each replaced in
# each of the modules ("-": ours is called with the module itself); ours; "value" if the names are no functions; and the first version of torch
# that has the names, if that is not the first supported one. Commas separate modules, and names.
_TEXT = """
torch.compile of functions with DTensors
  # torch.compile cannot look into our functions in C++. torch.compiler.allow_in_graph and disable would do at import, and import all of
  # torch._dynamo (2 s): so they are called when the program has imported it.
  torch._dynamo - compiled_programs.register value
  # A graph knows pieces alone, and torch has no protocol for what surrounds it: returned views of inputs, and writes to inputs.
  torch._functorch._aot_autograd.runtime_wrappers gen_alias_from_base compiled_programs.view_of_base
  torch._functorch._aot_autograd.runtime_wrappers _create_runtime_wrapper compiled_programs.runtime_wrapper
  torch._dynamo.backends.common aot_module_simplified compiled_programs.traced_again
  torch._functorch._aot_autograd.runtime_wrappers _AnalyzeCustomOpInputOutputMode.__torch_dispatch__ compiled_programs.check_operator 2.13
moves that a compiled program waits for late
  # Inductor's own passes move torch's collectives alone. Tried: its options for passes of others, which belong to the program.
  torch._inductor.compile_fx post_grad_passes compiled_programs.post_grad_passes
marks of dynamic dims of DTensors
  # A mark demands a symbol for the size, and a layout has numbers for the dims that it divides: a program that runs without the mark would fail.
  torch._dynamo mark_dynamic compiled_programs.mark
  torch._dynamo.decorators mark_dynamic,mark_unbacked compiled_programs.mark
the error for DTensors under FakeTensorMode
  # Errors alone: these modes run before any key of ours, so that a kernel cannot say it.
  torch._subclasses.fake_tensor FakeTensorMode.__torch_dispatch__ fake_tensors.dispatch
the error for whole DTensors in make_fx
  torch.fx.experimental.proxy_tensor ProxyTorchDispatchMode.__torch_dispatch__ fake_tensors.dispatch_in_graph
module.to() and remove_parametrizations() that keep a DTensor in its place
  # Tracers must flatten a DTensor, and Module._apply takes what can be flattened for what must be exchanged (torch.utils.swap_tensors). Tried:
  # torch.__future__.set_swap_module_params_on_conversion(), which is a switch for all tensors.
  torch.nn.modules.module,torch.nn.utils.parametrize is_traceable_wrapper_subclass torch_functions._must_be_exchanged
forward pre-hooks that are registered after distribute_module()
  # A hook registered later runs later. Tried: a global forward pre-hook, which runs first.
  torch.nn.modules.module Module.register_forward_pre_hook torch_functions.register_forward_pre_hook
clipping gradients of several meshes, or of plain tensors beside DTensors
  # Its operators are right on one mesh, with a message per tensor: one message for all is made here.
  torch.nn.utils.clip_grad _get_total_norm torch_functions.total_norm
  torch.nn.utils.clip_grad _clip_grads_with_norm_ torch_functions.clip_grads
  torch.nn.utils get_total_norm torch_functions.total_norm
  torch.nn.utils clip_grads_with_norm_ torch_functions.clip_grads
the foreach forms of optimizers, by default
  # torch's list of classes that have foreach operators has no function to add to it.
  torch.utils._foreach_utils,torch.optim.optimizer _foreach_supported_types optimizers.supporting value
loading plain values into an optimizer of DTensors
  # Optimizer.register_load_state_dict_pre_hook() is of one optimizer, and no hook says that one is made.
  torch.optim.optimizer Optimizer.load_state_dict optimizers.load_state_dict
the short way of elementwise optimizers
  # Their operators are right. An operator asks every element of its lists whether it is a tensor, which costs more for a class than its kernel.
  torch.optim.adadelta adadelta optimizers.elementwise
  torch.optim.adagrad adagrad optimizers.elementwise
  torch.optim.adam adam optimizers.elementwise
  torch.optim.adamax adamax optimizers.elementwise
  torch.optim.asgd asgd optimizers.elementwise
  torch.optim.nadam nadam optimizers.elementwise
  torch.optim.radam radam optimizers.elementwise
  torch.optim.rmsprop rmsprop optimizers.elementwise
  torch.optim.rprop rprop optimizers.elementwise
  torch.optim.sgd sgd optimizers.elementwise
Adafactor on ranks outside of a parameter's mesh
  # These steps are right as operators, and would send a message per operation.
  torch.optim._adafactor _single_tensor_adafactor,_multi_tensor_adafactor optimizers.adafactor
Muon in two exchanges per step
  torch.optim._muon _single_tensor_muon optimizers.muon
LBFGS over several meshes
  torch.optim.lbfgs LBFGS._gather_flat_grad optimizers.gather_flat_grad
  torch.optim.lbfgs LBFGS._add_grad optimizers.add_grad
functions of torch that put tensors of their own beside a DTensor
  # They make plain tensors, which an operator refuses beside a DTensor. Tried: a default device, which knows no mesh.
  torch.nn.utils.parametrizations _Orthogonal.forward,_Orthogonal.right_inverse torch_functions.as_replicas
  torch._lowrank get_approximate_basis torch_functions.as_replicas
  torch.functional _unravel_index torch_functions.as_replicas
  torch.masked._ops _std_var torch_functions.as_replicas
  torch.nn.functional fractional_max_pool2d,fractional_max_pool2d_with_indices torch_functions.with_samples
  torch.nn.functional fractional_max_pool3d,fractional_max_pool3d_with_indices torch_functions.with_samples
  torch.nn.functional linear_cross_entropy torch_functions.unchunked 2.13
the error for DTensors in torch's fully_shard
  # Parallelism that takes each rank's parameters for whole ones, and has no question for their kind: refused before anything is sent.
  torch.distributed.fsdp._fully_shard._fsdp_init _verify_managed_param data_parallel.verify_managed_param
modules of Shardwise's fully_shard within those of torch's fully_shard and replicate
  # torch finds states of its own class alone.
  torch.distributed.fsdp._fully_shard._fsdp_init _get_module_fsdp_state data_parallel.module_state
DistributedDataParallel around tensor-parallel modules, and around layers that reduce their gradients themselves
  # It takes local tensors while it is made, and its modules compute with DTensors. Tried: collectives that take DTensors, whose buckets it copies.
  torch.nn.parallel.distributed DistributedDataParallel.__init__ data_parallel.init_with_local_parameters
replicate() of tensor-parallel modules
  torch.distributed._composable.replicate _ReplicateState.record_init_args data_parallel.record_init_args
  torch.distributed._composable.replicate_with_fsdp _get_modules_and_states data_parallel.get_modules_and_states 2.13
  torch.distributed._composable.replicate_with_fsdp _init_param_group data_parallel.init_param_group 2.13
the error for DTensors in ZeroRedundancyOptimizer
  torch.distributed.optim.zero_redundancy_optimizer ZeroRedundancyOptimizer.add_param_group data_parallel.add_param_group
torch's local_map on DTensors
  torch.distributed.tensor.experimental._func_map _local_map_wrapped torch_functions.mapped
full state dicts of DTensors
  # State dicts that are gathered, spread or copied: walks by the kind of each value. Tried: the planner of a checkpoint, which sees them later.
  torch.distributed._state_dict_utils,torch.distributed.checkpoint.state_dict _gather_state_dict state_dicts.gather_state_dict
  torch.distributed._state_dict_utils,torch.distributed.checkpoint.state_dict _distribute_state_dict state_dicts.distribute_state_dict
  torch.distributed._state_dict_utils,torch.distributed.checkpoint.state_dict _broadcast_state_dict state_dicts.broadcast_state_dict
  torch.distributed._state_dict_utils _broadcast_tensors state_dicts.broadcast_tensors
  torch.distributed._state_dict_utils _create_cpu_state_dict state_dicts.create_cpu_state_dict
staging of DTensors by BlockingAsyncStager
  torch.distributed.checkpoint.staging _create_cpu_state_dict state_dicts.create_cpu_state_dict
async_save() of DTensors
  # It copies by storages, and our pieces have several. Tried: __deepcopy__, which it does not ask tensors for.
  torch.distributed.checkpoint._state_dict_stager StateDictStager._offload_tensor state_dicts.offload_tensor
the error for async_save() of DTensors over the group of the training
  # A thread that saves sends over the group that training on a CPU sends over: an error says it, where torch has no check.
  torch.distributed.checkpoint._async_thread_executor _ThreadBasedAsyncCheckpointExecutor.execute_save state_dicts.execute_save
  torch.distributed.checkpoint._async_thread_executor save_wrapper state_dicts.save_wrapper
the error that names every entry of another model
  # Names are compared one by one: all that differ are said here.
  torch.distributed.checkpoint.default_planner create_default_local_load_plan state_dicts.create_plan
the error for several pieces in a safetensors file
  # A tensor's __create_write_items__ does not know the format.
  torch.distributed.checkpoint.hf_storage HuggingFaceStorageWriter.prepare_local_plan hugging_face.prepare_local_plan
DTensors between the stages of a pipeline
  # Stages send local tensors and know DTensors by torch's class.
  torch.distributed.pipelining._utils,torch.distributed.pipelining.stage DTensor pipelines.either value 2.12
  torch.distributed.pipelining.microbatch DTensor pipelines.either value 2.12
  torch.distributed.pipelining.stage PipelineStage._to_tensor pipelines.to_tensor 2.12
  torch.distributed.pipelining.stage PipelineStage._compute_input_grads pipelines.compute_input_grads 2.12
  torch.distributed.pipelining.stage PipelineStage._prepare_forward_infra pipelines.prepare_forward_infra 2.12
the errors for stages that do not fit the mesh
  torch.distributed.pipelining.stage _PipelineStageBase.__init__ pipelines.init
  torch.distributed.pipelining.schedules PipelineScheduleSingle._initialize_stage pipelines.initialize
  torch.distributed.pipelining.schedules PipelineScheduleMulti._initialize_stages pipelines.initialize
DTensors between the stages of a pipeline
  torch.distributed.pipelining.microbatch,torch.distributed.pipelining.schedules _split_tensor pipelines.split
  torch.distributed.pipelining.microbatch,torch.distributed.pipelining.schedules merge_chunks pipelines.merge
save_pretrained() of models of DTensors
  # Other libraries look for torch's DTensors alone, and save, wrap and gather what is none as if each rank had it whole.
  transformers.distributed.mixin DistributedMixin.gather_sharded_state_dict_for_save hugging_face.gather_state_dict
  transformers.distributed.mixin DistributedMixin.is_distributed_loading_by_transformers hugging_face.is_distributed
generate() of models of DTensors
  transformers.generation.utils GenerationMixin.generate hugging_face.generate
transformers.Trainer with models of DTensors
  transformers.trainer Trainer.__init__ hugging_face.init_trainer
  transformers.trainer Trainer.create_accelerator_and_postprocess hugging_face.create_accelerator
  transformers.trainer Trainer.get_tp_size hugging_face.tp_size
  transformers.trainer Trainer._save_optimizer_and_scheduler hugging_face.save_optimizer
  transformers.trainer Trainer._sync_replicated_trainable_parameters hugging_face.synchronise
  transformers.trainer Trainer.training_step,Trainer.prediction_step hugging_face.step
accelerate with models of DTensors
  accelerate.accelerator Accelerator.prepare hugging_face.prepare
  accelerate.accelerator Accelerator.prepare_model hugging_face.prepare_model
  accelerate.accelerator Accelerator.prepare_data_loader hugging_face.prepare_loader_of
  accelerate.accelerator Accelerator.get_state_dict hugging_face.get_state_dict
  accelerate.accelerator Accelerator.gather hugging_face.gather
  accelerate.accelerator Accelerator.gather_for_metrics hugging_face.gather_for_metrics
  accelerate.accelerator prepare_data_loader hugging_face.prepare_loader
  accelerate.accelerator save_accelerator_state hugging_face.save_state
safetensors' load_model() into DTensors
  accelerate.checkpointing,safetensors.torch load_model hugging_face.load_model
"""


def _parsed(text: str) -> Iterator[Replacement]:
    without = ""
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if not line.startswith(" "):
            without = line
            continue
        modules, names, ours, *notes = words
        since = next((note for note in notes if note != "value"), "2.11")
        major, minor = map(int, since.split("."))
        for module, name in product(modules.split(","), names.split(",")):
            yield Replacement(module, name.strip("-"), ours, without, (major, minor), "value" in notes)


TABLE = tuple(_parsed(_TEXT))

_lock = threading.RLock()
_is_begun = _is_installed = False


def install() -> None:
    """Makes all replacements, once. C++ calls it before it makes a mesh. Gives one warning of all missing names in modules that are imported."""
    global _is_begun, _is_installed
    if _is_installed:
        return
    with _lock:  # other threads wait: what they import meanwhile would be found half imported
        if _is_begun:
            return
        _is_begun = True
        by_module: dict[str, list[Replacement]] = {}
        for row in TABLE:
            by_module.setdefault(row.module, []).append(row)
        there = {name: rows for name, rows in by_module.items() if name in sys.modules}
        _warn(row for name, rows in there.items() for row in replace(sys.modules[name], rows))
        for name in by_module.keys() - there.keys():
            when_imported(name, lambda module, rows=by_module[name]: _warn(replace(module, rows)))  # type: ignore[misc]
        _is_installed = True


def replace(module: ModuleType, rows: Iterable[Replacement]) -> list[Replacement]:
    """Makes the replacements `rows` of `module`. Returns the rows whose names the module should have and lacks."""
    if isinstance(module, Facade):
        module = module.original
    return [row for row in rows if not _replace(module, row) and row.since <= TORCH]


def _replace(module: ModuleType, row: Replacement) -> bool:
    """Makes one replacement. False if the module does not have the name."""
    ours_module, _, function = row.ours.rpartition(".")
    ours = getattr(import_module(f"shardwise.interop.{ours_module}"), function)
    if not row.name:
        ours(module)
        return True
    path, _, name = row.name.rpartition(".")
    owner = getattr(module, path, None) if path else module
    original = getattr_static(owner, name, None)  # for a class also an inherited one
    if original is None:
        return False
    if row.is_value:
        setattr(owner, name, ours(original))
    elif isinstance(original, property):
        setattr(owner, name, property(_calling(ours, original.fget), doc=original.__doc__))
    elif not hasattr(original, "_shardwise_replaces"):  # already replaced in the module that it was imported from
        setattr(owner, name, _calling(ours, original))
    return True


def _calling(ours: Function, original: Any) -> Function:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        return ours(original, *arguments, **options)

    call._shardwise_replaces = original  # type: ignore[attr-defined]
    return call


def _warn(missing: Iterable[Replacement]) -> None:
    lost: dict[str, list[str]] = {}
    for row in missing:
        lost.setdefault(row.without, []).append(str(row))
    if lost:
        facts = "; ".join(f"{without} (no {', '.join(names)})" for without, names in lost.items())
        libraries = {name.partition(".")[0] for names in lost.values() for name in names}
        versions = ", ".join(
            f"{name} {getattr(sys.modules.get(name), '__version__', '')}" for name in sorted(libraries)
        )
        warnings.warn(
            f"[import] shardwise does not find some names in {versions}, so these features do not work: {facts}. Install a version that "
            "docs/installation.md names.",
            stacklevel=2,
        )
