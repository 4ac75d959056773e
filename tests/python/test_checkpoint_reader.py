"""Boxes of saved tensors, read without the rest."""

import io
import tempfile
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp

from shardwise.checkpoint import FileSystemReader, FileSystemWriter
from shardwise.checkpoint import tensor_records as records


def by_torch(stream, tensor):
    torch.save(tensor, stream)


def saved(tensor, save=by_torch, before=37):
    """A file that holds the tensor after other bytes, and what is found there."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed with the last reference)
    file.write(b"x" * before)
    save(file, tensor)
    part = records.FilePart(file, before, file.tell() - before)
    like = tensor if isinstance(tensor, torch.Tensor) else torch.ones(2)
    return file, records.find_record(part, before, like.shape, like.dtype)


def facts(name):
    """The numbers in a file of /proc/self by their names."""
    with open(f"/proc/self/{name}") as file:
        lines = [line.split() for line in file]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


#  shape, offsets, sizes, elements read
BOXES = [
    ((50, 8), (3, 0), (7, 8), 56),
    ((50, 8), (3, 2), (7, 3), 6 * 8 + 3),  # near: rows between the first and the last wanted element
    ((6, 5000), (1, 100), (4, 10), 40),  # far apart
    ((3, 4, 2500), (0, 1, 7), (3, 2, 70), 6 * 70),
    ((6, 5000), (0, 0), (6, 5000), 30000),
    ((4, 3, 5), (1, 1, 2), (2, 2, 2), 15 + 5 + 2),
    ((9,), (2,), (4,), 4),
    ((), (), (), 1),
    ((5, 4), (2, 0), (0, 4), 0),
]


@pytest.mark.parametrize("save", [by_torch, records.write_tensor])
@pytest.mark.parametrize("buffer_bytes", [64, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("shape", "offsets", "sizes", "n_read"), BOXES)
def test_a_box_is_read_and_little_else(shape, offsets, sizes, n_read, dtype, buffer_bytes, save, monkeypatch):
    monkeypatch.setattr(records, "BUFFER_BYTES", buffer_bytes)
    tensor = (torch.randn(shape) * 50).to(dtype)
    file, record = saved(tensor, save)
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
        (torch.ones(2), torch.ones(3)),
        torch.nn.Parameter(torch.ones(2)),
        {"a": torch.ones(2)},
        torch.eye(3).to_sparse(),
        [torch.ones(2), torch.ones(3)],
        torch.tensor([1 + 2j]).conj(),
        torch._neg_view(torch.arange(3.0)),
        torch.arange(12.0).view(3, 4)[1:],  # with the memory before it
    ):
        assert saved(value)[1] is None


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
            assert reader.n_bytes_read == sum(v.nbytes for v in state.values() if isinstance(v, torch.Tensor))
        assert loaded.pop("text") == "words"
        for name, tensor in loaded.items():
            assert torch.equal(tensor, state[name])


def test_what_is_read_as_a_conjugate_is_its_values():
    values = torch.tensor([1 + 2j, 3 - 4j, 5j])
    file, record = saved(values)
    target = torch.zeros(2, dtype=torch.complex64).conj()
    records.read_box(file, record, (1,), target)
    assert torch.equal(target, values[1:])


KINDS = [
    torch.randn(5, 7).t(),
    torch.randn(4, 6)[1:3, ::2],
    torch.randn(()),
    torch.empty(0, 3),
    torch.tensor([1 + 2j, 3]).conj(),
    torch._neg_view(torch.arange(3.0)),
    torch.arange(20).to(torch.bfloat16),
    torch.arange(3).to(torch.float8_e4m3fn),
    torch.arange(4).to(torch.uint16),
    torch.tensor([True, False]),
    torch.randint(256, (2, 1 << 19), dtype=torch.uint8),  # several blocks
    torch.eye(3).to_sparse(),
]


def test_plain_tensors_of_torchs_archives_are_found():
    for tensor in KINDS:
        if not tensor.is_sparse:
            plain = tensor.resolve_conj().resolve_neg().contiguous().clone()
            assert saved(plain)[1] is not None, tensor.dtype


@pytest.mark.parametrize("library", ["zlib", "zlib_ng.zlib_ng"])
@pytest.mark.parametrize("tensor", KINDS, ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}")
def test_torch_loads_what_is_written_and_its_checksums_are_right(tensor, library, monkeypatch):
    monkeypatch.setattr(records, "crc32", pytest.importorskip(library).crc32)
    stream = io.BytesIO(b"before")
    stream.seek(6)
    records.write_tensor(stream, tensor)
    archive = io.BytesIO(stream.getvalue()[6:])
    loaded = torch.load(archive, weights_only=True)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    assert loaded.dtype == tensor.dtype and torch.equal(loaded.to_dense().to(wide), tensor.to_dense().to(wide))
    assert tensor.is_sparse or loaded.is_contiguous()
    assert zipfile.ZipFile(archive).testzip() is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_saving_and_loading_take_little_memory_beyond_the_tensors(tmp_path):
    """Parts of one piece of memory, and tensors that are not row-major."""
    n = 2048
    memory = torch.ones(3, n, n)
    state = {"rows": memory[0], "columns": memory[1].t(), "double": memory[2]}
    other = {"rows": memory[0], "columns": memory[1], "double": torch.zeros(n, n, dtype=torch.float64)}
    for work in (
        lambda: dcp.save(state, storage_writer=FileSystemWriter(tmp_path), no_dist=True),
        lambda: dcp.load(other, storage_reader=FileSystemReader(tmp_path), no_dist=True),
    ):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew
        before = facts("status")["VmRSS:"]
        work()
        assert facts("status")["VmHWM:"] - before < 24 << 10  # KiB; a tensor has 16 MiB or 32


def test_a_line_of_progress_needs_tqdm(tmp_path, monkeypatch):
    from shardwise import _progress

    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: None)
    FileSystemReader(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"pip install shardwise\[progress\]"):
        FileSystemReader(tmp_path, progress=True)
