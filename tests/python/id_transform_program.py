"""Run by test_id_transform.py under torchrun: id_transform_program.py PARTS FOLDER, see run_parts()."""

import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from id_reference import Reference
from torch import nn
from torchrun import run_parts

import shardwise as sw
from shardwise import Shard
from shardwise.id_transform import ExactMapping

N_ROWS, WIDTH, N_BUCKETS = 60, 4, 7


class Model(nn.Module):
    """A vocabulary that grows, and its table."""

    def __init__(self):
        super().__init__()
        mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
        self.to_rows = ExactMapping(N_ROWS, mesh, n_buckets=N_BUCKETS)
        self.table = nn.Parameter(sw.zeros(N_ROWS, WIDTH, device_mesh=mesh, placements=self.to_rows.placements))
        self.optimizer = sw.optim.FusedSGD([self.table], lr=1.0)

    def forward(self, ids):
        rows = self.to_rows(ids)
        if self.training:
            self.to_rows.reset_rows(self.table, self.optimizer, scale=0.0)
        return F.embedding(rows, self.table)


def ids_of(step):
    """All ranks' ids of a step, whatever their number, and the DTensor of them."""
    numbers = [(step * 7 + k * k) % 90 * 0x123456789ABCDEF % (1 << 63) - (1 << 62) for k in range(18)]
    mesh = sw.init_device_mesh("cpu", (dist.get_world_size(),))
    return numbers, sw.distribute_tensor(torch.tensor(numbers), mesh, [Shard(0)])


def save(folder):
    """Trains the vectors to name their ids, and saves."""
    torch.manual_seed(0)
    model, reference = Model(), Reference(N_ROWS, N_BUCKETS)
    for step in range(30):
        numbers, own = ids_of(step)
        vectors = model(own)
        reference.transform(numbers)
        (0.5 * (vectors - vector_of(own)).square()).sum().backward()
    dcp.save(model.state_dict(), checkpoint_id=folder)
    if dist.get_rank() == 0:
        Path(folder, "rows.json").write_text(json.dumps(reference.row_of))


def vector_of(ids):
    return torch.stack([(ids >> (8 * k)) % 251 for k in range(WIDTH)], dim=-1).float()


def load(folder):
    """Each known id has its row and its vector on any number of ranks; a new one takes the same row everywhere."""
    row_of = {int(number): row for number, row in json.loads(Path(folder, "rows.json").read_text()).items()}
    model = Model()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    model.eval()
    known = torch.tensor(sorted(row_of))
    own = known.tensor_split(dist.get_world_size())[dist.get_rank()]
    assert model.to_rows(own).tolist() == [row_of[number] for number in own.tolist()]
    seen = model.table.detach().full_tensor()[[row_of[number] for number in known.tolist()]]
    trained = (seen - vector_of(known)).abs().amax(1) < 1e-3
    assert trained.float().mean() > 0.9, trained
    assert not model.to_rows(torch.tensor([17])).any()

    reference = Reference(N_ROWS, N_BUCKETS)
    for step in range(30):
        reference.transform(ids_of(step)[0])
    assert reference.row_of == row_of
    model.train()
    numbers, own = ids_of(100)
    rows = model.to_rows(own)
    reference.transform(numbers)
    assert rows.full_tensor().tolist() == reference.find(numbers)
    assert model.to_rows.n_reassigned == len(reference.reassigned)


if __name__ == "__main__":
    run_parts(globals())
