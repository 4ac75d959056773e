"""What products of groups and modules of experts refuse."""

from error_cases import case

TITLE = "Experts"
SETUP = """
from torch import nn
from shardwise import parallel

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
rows = sw.ones(6, 4, device_mesh=mesh)
matrices = sw.ones(2, 4, 3, device_mesh=mesh, placements=[Shard(0)])
offs = torch.tensor([2, 6], dtype=torch.int32)
tokens = torch.ones(3, 4)
expert_ids = torch.zeros(3, 1, dtype=torch.int64)


class Experts(nn.Module):
    def __init__(self, n_experts):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_experts, 4, 4))

    def forward(self, x, num_tokens_per_expert):
        return F.grouped_mm(x, self.weight, offs=num_tokens_per_expert.cumsum(0, dtype=torch.int32))
"""
CASES = [
    case("vectors in groups", "F.grouped_mm(rows[0], matrices, offs=offs)", ValueError),
    case("groups of integers", "F.grouped_mm(rows.long(), matrices.long(), offs=offs)", ValueError),
    case("groups of other columns", "F.grouped_mm(rows[:, :3], matrices, offs=offs)", ValueError),
    case("rows without offsets", "F.grouped_mm(rows, matrices)", ValueError, in_torchs_words=True),
    case(
        "batches of other lengths",
        "F.grouped_mm(sw.ones(3, 6, 4, device_mesh=mesh), matrices)",
        ValueError,
        in_torchs_words=True,
    ),
    case(
        "a bias of groups",
        "F.grouped_mm(rows, matrices, offs=offs, bias=sw.ones(2, 3, device_mesh=mesh))",
        NotImplementedError,
    ),
    case(
        "another dtype of the result", "F.grouped_mm(rows, matrices, offs=offs, out_dtype=torch.bfloat16)", ValueError
    ),
    case("offsets of int64", "F.grouped_mm(rows, matrices, offs=offs.long())", ValueError),
    case("offsets for other groups", "F.grouped_mm(rows, matrices, offs=offs[:1])", ValueError),
    case("offsets of groups that fall", "F.grouped_mm(rows, matrices, offs=offs.flip(0))", ValueError),
    case(
        "groups of a mesh without this rank",
        """
        alone = sw.DeviceMesh("cpu", [1])
        matrices = sw.ones(2, 4, 3, device_mesh=alone, placements=[Shard(0)])
        F.grouped_mm(sw.ones(6, 4, device_mesh=alone), matrices, offs=sw.distribute_tensor(offs, alone, [Replicate()]))
        """,
        NotImplementedError,
        only_on=0,
    ),
    case(
        "experts that are not sharded by expert",
        "parallel.dispatch_tokens(tokens, expert_ids, experts=rows)",
        ValueError,
    ),
    case(
        "tokens of a DTensor and plain choices",
        "parallel.dispatch_tokens(sw.distribute_tensor(tokens, mesh, [Shard(0)]), expert_ids, experts=matrices)",
        ValueError,
    ),
    case(
        "experts of a mesh without this rank",
        """
        alone = sw.DeviceMesh("cpu", [1])
        matrices = sw.ones(2, 4, 3, device_mesh=alone, placements=[Shard(0)])
        parallel.dispatch_tokens(tokens, expert_ids, experts=matrices)
        """,
        NotImplementedError,
        only_on=0,
    ),
    case(
        "tokens of several widths",
        "parallel.dispatch_tokens(torch.ones(3, 4 + rank), expert_ids, experts=matrices)",
        ValueError,
    ),
    case(
        "an expert that does not exist",
        "parallel.dispatch_tokens(tokens, expert_ids + 2 * rank, experts=matrices)",
        IndexError,
    ),
    case(
        "other rows than were dispatched",
        "routed = parallel.dispatch_tokens(tokens, expert_ids, experts=matrices)\nparallel.combine_tokens(torch.ones(99, 4), routed)",
        ValueError,
    ),
    case(
        "a DTensor of other rows than were dispatched",
        """
        routed = parallel.dispatch_tokens(tokens, expert_ids, experts=matrices)
        parallel.combine_tokens(sw.ones(99, 4, device_mesh=mesh), routed)
        """,
        ValueError,
    ),
    case(
        "rows that are no parts of one tensor",
        """
        routed = parallel.dispatch_tokens(tokens, expert_ids, experts=matrices)
        parallel.combine_tokens(torch.ones(routed.rows.to_local().size(0), 4 + rank), routed)
        """,
        ValueError,
    ),
    case(
        "a module whose parameters are not stacked by expert",
        "parallel.parallelize_module(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), mesh, parallel.ExpertParallel())",
        ValueError,
    ),
    case(
        "fewer experts than ranks",
        "parallel.parallelize_module(Experts(1), mesh, parallel.ExpertParallel())",
        ValueError,
    ),
    case(
        "experts called in another way",
        "parallel.parallelize_module(Experts(2), mesh, parallel.ExpertParallel())(tokens, 3)",
        TypeError,
    ),
    case(
        "numbers of tokens that do not add up",
        "parallel.parallelize_module(Experts(2), mesh, parallel.ExpertParallel())(tokens, torch.tensor([1, 1]))",
        ValueError,
    ),
    case("groups of two dtypes", "F.grouped_mm(rows.bfloat16(), matrices, offs=offs)", ValueError),
    case(
        "weights for other choices",
        "parallel.dispatch_tokens(tokens, expert_ids, torch.ones(99), experts=matrices)",
        ValueError,
    ),
    case(
        "choices of experts that are no integers",
        "parallel.dispatch_tokens(tokens, expert_ids.float(), experts=matrices)",
        ValueError,
    ),
    case(
        "tokens that are no matrix",
        "parallel.dispatch_tokens(torch.ones(2, 3, 4), torch.zeros(2, 3).long(), experts=matrices)",
        ValueError,
    ),
]
