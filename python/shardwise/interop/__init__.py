"""Support for Shardwise's DTensors in other libraries, and conversions to and from torch's and TorchRec's tensors.

Functions of other libraries ask `isinstance(tensor, torch.distributed.tensor.DTensor)`, and take Shardwise's DTensors for plain tensors.
Each module here replaces the functions of one library that would give wrong results or errors. It does so when the library is imported.
"""

from functools import partial
from importlib import import_module
from types import ModuleType

from shardwise.interop.torch_tensors import from_torch, to_torch
from shardwise.interop.torchrec_states import copy_to_torchrec, from_torchrec, to_torchrec
from shardwise.interop.when_imported import when_imported

__all__ = ["copy_to_torchrec", "from_torch", "from_torchrec", "to_torch", "to_torchrec"]

# The module of another library, and ours whose teach() is called with it.
_LESSONS = {
    "torch._dynamo": "dynamo",
    "torch._subclasses.fake_tensor": "fake_tensors",
    "torch.fx.experimental.proxy_tensor": "proxies",
    "torch.nn.modules.module": "module_hooks",
    "torch.nn.utils.parametrize": "module_hooks",
    "torch.nn.utils": "clipping",
    "torch.nn.utils.clip_grad": "clipping",
    "torch.distributed._state_dict_utils": "state_dicts",
    "torch.distributed.checkpoint.state_dict": "state_dicts",
    "torch.distributed.checkpoint.staging": "staging",
    "torch.distributed.checkpoint._async_thread_executor": "staging",
    "torch.distributed.checkpoint._state_dict_stager": "staging",
    "torch.distributed.checkpoint.default_planner": "load_plans",
    "torch.distributed.checkpoint.hf_storage": "safetensors_shards",
    "torch.distributed.pipelining._utils": "pipelines",
    "torch.distributed.pipelining.microbatch": "pipelines",
    "torch.distributed.pipelining.stage": "pipelines",
    "torch.distributed.pipelining.schedules": "pipelines",
    "torch.distributed.fsdp._fully_shard._fsdp_init": "data_parallel",
    "torch.distributed.optim.zero_redundancy_optimizer": "data_parallel",
    "torch.nn.parallel.distributed": "data_parallel",
    "torch.distributed.tensor.experimental._func_map": "local_maps",
    "torch.utils._foreach_utils": "optimizers",
    "torch.optim.optimizer": "optimizers",
    "torch.optim._adafactor": "optimizers",
    "torch.optim._muon": "optimizers",
    "torch.optim.lbfgs": "optimizers",
    "torch.nn.utils.parametrizations": "parametrizations",
    "transformers.distributed.mixin": "hugging_face",
    "transformers.generation.utils": "hugging_face",
    "transformers.trainer": "hugging_face",
    "accelerate.accelerator": "accelerator",
    "accelerate.checkpointing": "safetensors_files",
    "safetensors.torch": "safetensors_files",
}


def _teach(lesson: str, module: ModuleType) -> None:
    import_module(f"shardwise.interop.{lesson}").teach(module)


for _name, _lesson in _LESSONS.items():
    when_imported(_name, partial(_teach, _lesson))
