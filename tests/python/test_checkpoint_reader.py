"""Boxes of saved tensors, read without the rest."""

import io

import pytest
import torch
import torch.distributed.checkpoint as dcp

from shardwise.checkpoint import FileSystemReader, FileSystemWriter
from shardwise.checkpoint import tensor_records as records


def saved(tensor, before=37):
    """A file that holds the tensor after other bytes, and what is found there."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    file = io.BytesIO(b"x" * before + buffer.getvalue())
    return file, records.find_record(records.FilePart(file, before, len(buffer.getvalue())), before)


#  shape, offsets, sizes, elements read
BOXES = [
    ((50, 8), (3, 0), (7, 8), 56),
    ((50, 8), (3, 2), (7, 3), 6 * 8 + 3),  # near: rows between the first and the last wanted element
    ((6, 5000), (1, 100), (4, 10), 40),  # far apart
    ((6, 5000), (0, 0), (6, 5000), 30000),
    ((4, 3, 5), (1, 1, 2), (2, 2, 2), 15 + 5 + 2),
    ((9,), (2,), (4,), 4),
    ((), (), (), 1),
    ((5, 4), (2, 0), (0, 4), 0),
]


@pytest.mark.parametrize("buffer_bytes", [64, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("shape", "offsets", "sizes", "n_read"), BOXES)
def test_a_box_is_read_and_little_else(shape, offsets, sizes, n_read, dtype, buffer_bytes, monkeypatch):
    monkeypatch.setattr(records, "BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(records, "NEAR_BYTES", 100)
    tensor = (torch.randn(shape) * 50).to(dtype)
    file, record = saved(tensor)
    expected = tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]
    for target in (
        torch.empty(sizes, dtype=dtype),
        torch.empty(sizes[::-1], dtype=dtype).permute(tuple(range(len(sizes)))[::-1]),
    ):
        told = []
        records.read_box(file, record, offsets, target, told.append)
        assert torch.equal(target, expected)
        if buffer_bytes > 64:
            assert sum(told) == n_read * tensor.element_size()
    wider = torch.empty(sizes, dtype=torch.float64)
    records.read_box(file, record, offsets, wider)
    assert torch.equal(wider, expected.double())


def test_what_is_no_row_major_tensor_is_left_to_torch():
    for value in (
        torch.randn(3, 4).t(),
        {"a": torch.ones(2)},
        torch.eye(3).to_sparse(),
        [torch.ones(2), torch.ones(3)],
        torch.tensor([1 + 2j]).conj(),
        torch._neg_view(torch.arange(3.0)),
    ):
        assert saved(value)[1] is None
    views = torch.arange(12.0).view(3, 4)[1:]
    file, record = saved(views)
    target = torch.empty(2, 4)
    records.read_box(file, record, (0, 0), target)
    assert torch.equal(target, views)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_state_dicts_are_loaded_as_by_torchs_reader(tmp_path):
    state = {
        "rows": torch.randn(100, 8),
        "turned": torch.randn(5, 7).t(),
        "number": torch.tensor(4),
        "text": "words",
        "nothing": torch.empty(0, 3),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negative": torch._neg_view(torch.arange(3.0)),
    }
    dcp.save(state, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    for options in ({}, {"verify": True}, {"strict": True}):
        loaded = {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else "" for name, v in state.items()}
        reader = FileSystemReader(tmp_path, **options)
        for _ in range(2):  # a reader may be used again
            dcp.load(loaded, storage_reader=reader, no_dist=True)
            assert reader.n_bytes_read == 100 * 8 * 4 + 8
        assert loaded.pop("text") == "words"
        for name, tensor in loaded.items():
            assert torch.equal(tensor, state[name])


def test_what_is_read_as_a_conjugate_is_its_values():
    values = torch.tensor([1 + 2j, 3 - 4j, 5j])
    file, record = saved(values)
    target = torch.zeros(2, dtype=torch.complex64).conj()
    records.read_box(file, record, (1,), target)
    assert torch.equal(target, values[1:])


def test_a_line_of_progress_needs_tqdm(tmp_path, monkeypatch):
    from shardwise import _progress

    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: None)
    FileSystemReader(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"pip install shardwise\[progress\]"):
        FileSystemReader(tmp_path, progress=True)
