"""What ranks that are threads, and ranks out of step, get."""

from error_cases import case

TITLE = "Ranks"
SETUP = """
from shardwise.testing import run_ranks

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
"""
CASES = [
    case("no ranks", "run_ranks(0, lambda rank: None)", ValueError),
    case("torch.distributed's groups, which threads do not have", "mesh.get_group()", RuntimeError),
    case("a result that depends on values, outside of the mesh", "sw.zeros(3, device_mesh=sw.DeviceMesh('cpu', [0])).nonzero() if rank else (_ for _ in ()).throw(ValueError('[only the rank outside raises] Use members.'))", ValueError, is_of_rank=True),
]
