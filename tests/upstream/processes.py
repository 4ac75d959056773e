"""torch's classes of distributed tests, changed so that each rank is a forked process and CPUs suffice."""

import os

import torch
from torch import distributed as dist
from torch import multiprocessing
from torch.testing._internal import common_distributed, common_fsdp
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.distributed._tensor import common_dtensor

N_RANKS = 4


class RanksAsProcesses(MultiProcessTestCase):
    """Stands for torch's classes whose ranks are threads: a DTensor of ours belongs to one rank, and a process is one rank."""

    @property
    def world_size(self):
        return N_RANKS

    @property
    def device_type(self):
        return "cpu"

    @property
    def destroy_pg_upon_exit(self):
        return False

    def build_device_mesh(self):
        return common_dtensor.init_device_mesh("cpu", (self.world_size,))

    def assertEqualOnRank(self, x, y, msg=None, *, rank=0):
        if self.rank == rank:
            self.assertEqual(x, y, msg)

    def run_subtests(self, *args, **kwargs):
        return common_distributed.run_subtests(self, *args, **kwargs)

    def perThreadSetUp(self):
        pass

    def perThreadTearDown(self):
        pass

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        dist.init_process_group("gloo", init_method=f"file://{file_name}", rank=rank, world_size=int(self.world_size))
        self.perThreadSetUp()
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()


def _for_any_device(*_, **__):
    return lambda test: test


def _start(self):
    self._start_processes(multiprocessing.get_context("fork").Process)


def fork_ranks(seconds: int) -> None:
    """Changes torch's classes. A test's ranks have `seconds`. Call this before a file of tests is imported."""
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(seconds)
    common_distributed.TIMEOUT_DEFAULT = seconds
    common_distributed.TIMEOUT_OVERRIDE.clear()
    multiprocessing.set_start_method("fork", force=True)
    MultiProcessTestCase._spawn_processes = _start
    if "_run" in vars(common_fsdp.FSDPTest):
        del (
            common_fsdp.FSDPTest._run
        )  # it asks for as many accelerators as ranks; its base class's method asks on accelerators alone
    # Most tests for GPUs run on CPUs, too. Plain torch says which do.
    common_distributed.skip_if_lt_x_gpu = common_fsdp.skip_if_lt_x_gpu = _for_any_device
    common_dtensor.skip_unless_torch_gpu = lambda test: test
    common_fsdp.DEVICE_COUNT = N_RANKS
    common_fsdp.FSDPTestMultiThread = RanksAsProcesses
    common_dtensor.DTensorOpTestBase = RanksAsProcesses
    torch._C._set_print_stack_traces_on_fatal_signal(False)
