"""Pictures: who holds what, in every format, of every kind of object."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from layouts import by_name
from torch import nn
from torchrun import forked_python

import shardwise as sw
from shardwise import Layout, Partial, Replicate, Shard
from shardwise.__main__ import main
from shardwise.debug import Picture, diff, picture, visualize_mesh, visualize_sharding
from shardwise.debug.picture import formats
from shardwise.testing import run_ranks


@pytest.mark.parametrize("case", **by_name)
def test_pictures_are_the_same_on_every_rank_and_name_their_ranks(case):
    pictures = run_ranks(case.n_ranks, lambda rank: picture(case.distributed()))
    for format in formats():
        drawn = {each.draw(format) for each in pictures}
        assert len(drawn) == 1
        text = drawn.pop()
        assert all(f"{rank}" in text for rank in torch.tensor(case.ranks).flatten().tolist())
    assert len(set(pictures)) == 1 and pictures[0] == pictures[-1]


def test_a_picture_of_a_tensor_is_that_of_its_layout():
    def body(rank):
        x = sw.zeros(5, 4, 6, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)], dtype=torch.float64)
        return str(picture(x))

    layout = Layout((5, 4, 6), (2,), [Shard(0)])
    assert run_ranks(3, body)[2] == str(picture(layout, dtype=torch.float64))
    assert "960 bytes" in str(picture(layout, dtype=torch.float64)) and "480 bytes" in str(picture(layout))


def test_visualize_sharding_prints_the_header_and_the_picture(capsys):
    layout = Layout((4, 2), (2,), [Shard(0)])
    plain, color = str(picture(layout)), str(picture(layout, color=True))
    shown = visualize_sharding(layout, header="table")
    assert capsys.readouterr().out == f"table\n{plain}\n"
    assert isinstance(shown, Picture) and str(shown) == plain
    visualize_sharding(layout, use_rich=True)
    printed = capsys.readouterr().out
    assert "\x1b[" in printed and "\x1b[" in color and "\x1b[" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", printed).split("\n") == [*plain.split("\n"), ""]
    visualize_sharding(layout, format="svg")
    assert capsys.readouterr().out.startswith("<svg ")


def test_a_file_gets_the_format_of_its_suffix(tmp_path, capsys):
    layout = Layout((4, 2), (2,), [Shard(0)])
    # name, what it begins with
    for name, begin in (
        ("a.txt", "[4, 2] as"),
        ("a.svg", "<svg "),
        ("a.html", "<!doctype html>"),
        ("a.HTM", "<!doctype html>"),
        ("a.json", "{"),
    ):
        drawn = visualize_sharding(layout, file=tmp_path / name)
        text = (tmp_path / name).read_text()
        assert text.startswith(begin) and text == str(drawn)
    assert capsys.readouterr().out == ""
    assert picture(layout).save(tmp_path / "noted", "text").read_text() == str(picture(layout))


def test_pages_need_nothing_else():
    page = picture(Layout((4, 2), (2,), [Shard(0)])).draw("html")
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(""", page)
    assert json.loads(re.search(r'id="data" type="application/json">(.*?)</script>', page, re.S)[1])["figures"]


def test_a_width_is_any_whole_number_and_a_file_any_path(tmp_path):
    layout = Layout((4, 2), (2,), [Shard(0)])
    assert str(picture(layout, max_width=torch.tensor(60))) == str(picture(layout, max_width=60))
    assert str(picture(layout, max_width=2**63 - 1)) == str(picture(layout))
    assert picture(layout).save(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg")).read_text().startswith("<svg ")


def test_notebooks_show_the_page_and_the_drawing():
    drawn = picture(Layout((4, 2), (2,), [Shard(0)]))
    assert drawn._repr_html_().startswith("<iframe srcdoc=") and drawn._repr_svg_() == drawn.draw("svg")
    assert repr(drawn) == "<Picture of '[4, 2] as [Shard(0)] on 2 ranks (0,1), 32 bytes', drawn as text>"


LAYOUT = Layout((4, 2), (2,), [Shard(0)])
# what is called, the error, its words
MISTAKES = [
    (lambda path: picture(LAYOUT, format="png"), ValueError, r"'png' is unknown.*Use one of text, svg, json, html"),
    (lambda path: picture(LAYOUT).draw("pdf"), ValueError, "'pdf' is unknown"),
    (
        lambda path: picture(LAYOUT, file=path / "a.svg", format="html"),
        ValueError,
        "named as svg, and format is 'html'",
    ),
    (lambda path: picture(LAYOUT, file=path / "a.png"), ValueError, "a suffix that names no format.*format="),
    (lambda path: picture(LAYOUT, file=path / "a.png", format="png"), ValueError, "'png' is unknown"),
    (lambda path: picture(torch.zeros(2)), TypeError, r"torch.Tensor has no layout.*distribute_tensor"),
    (lambda path: picture(3), TypeError, r"\[picture\] int has no layout.* Give one of these\."),
    (
        lambda path: picture(torch.optim.SGD([torch.zeros(1)])),
        TypeError,
        r"SGD has no layout.* visualize_sharding\(module, optimizer=optimizer\)",
    ),
    (lambda path: picture(nn.Linear(2, 2), optimizer=3), TypeError, r"optimizer= is int.* Give the optimizer"),
    (lambda path: diff(nn.Linear(2, 2), LAYOUT), TypeError, r"Linear is a module.* Give one of its parameters"),
    (
        lambda path: picture(LAYOUT, file=path / "none" / "a.svg"),
        FileNotFoundError,
        r"\[picture\] file '.*a\.svg' cannot be written: No such file or directory\. Give a path",
    ),
    (lambda path: picture(LAYOUT, file=3), TypeError, r"\[picture\] file is int: .* Give a name such as"),
    (lambda path: picture(LAYOUT, file=path / "a\0.svg"), ValueError, r"a\\x00\.svg' holds a null character"),
    (lambda path: picture(LAYOUT, format=["svg"]), TypeError, r"format is list: .* Use one of text, svg, json, html"),
    (lambda path: picture(LAYOUT, format=""), ValueError, r"format '' is unknown"),
    (lambda path: picture(LAYOUT).draw(3), TypeError, "format is int"),
    (lambda path: picture(LAYOUT).save(path / "a", ["svg"]), TypeError, "format is list"),
    (lambda path: picture(LAYOUT, dtype="float32"), TypeError, r"dtype is str: .* Give one such as torch\.float32\."),
    (lambda path: diff(LAYOUT, [Shard(1)], dtype="float32"), TypeError, r"\[picture\] dtype is str"),
    (lambda path: visualize_sharding(LAYOUT, dtype=4), TypeError, r"\[picture\] dtype is int"),
    (lambda path: picture(LAYOUT, max_width="a"), TypeError, r"max_width is str: .* Give a whole number such as 100\."),
    (lambda path: picture(LAYOUT, max_width=1.5), TypeError, r"max_width is float"),
    *(
        (lambda path, width=width: diff(LAYOUT, LAYOUT, max_width=width), ValueError, f"max_width is {width}: a text")
        for width in (10**30, 2**63, 0, -1)
    ),
    (
        lambda path: visualize_sharding(LAYOUT, [Shard(1)], optimizer=3),
        TypeError,
        r"optimizer= is given with two layouts, the first of a Layout: .* Leave it out",
    ),
    (lambda path: picture(LAYOUT, optimizer=torch.optim.SGD([torch.zeros(1)])), TypeError, "state is shown beside"),
    (
        lambda path: diff(sw.LocalShardsWrapper([torch.zeros(2, 2)], [(0, 0)]), LAYOUT),
        TypeError,
        r"DTensor\.from_local\(value, mesh, placements\)",
    ),
    (lambda path: diff(LAYOUT, Layout((4, 3), (2,), [Shard(0)])), ValueError, "sizes"),
    (lambda path: diff(LAYOUT, Shard(1)), TypeError, r"\[picture\] Shard\(1\) is one placement.* \[Shard\(1\)\]"),
]


@pytest.mark.parametrize(("call", "error", "text"), MISTAKES)
def test_a_mistake_is_an_error_that_names_the_way_out(call, error, text, tmp_path):
    with pytest.raises(error, match=text):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_is_shown_with_its_names(capsys):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        tensor = sw.zeros(4, 2, device_mesh=mesh, placements=[Shard(0), Replicate()])
        return visualize_mesh(mesh) if rank == 0 else None, picture(tensor).draw("svg")

    shown, svg = run_ranks(4, body)[0]
    assert "mesh of 2x2 ranks (dp=2, tp=2)" in capsys.readouterr().out and "dp 1     2     3" in str(shown)
    assert "(dp=2, tp=2)" in svg


def test_a_module_is_listed_with_its_optimizer():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, affine=False))
        weight = sw.distribute_tensor(torch.ones(6, 4), mesh, [Shard(0, [1, 5])])
        model[0].weight = nn.Parameter(weight)
        optimizer = torch.optim.Adam(model.parameters())
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        optimizer.step()
        optimizer.state["n_calls"] = 1  # of no parameter
        return str(picture(model)), str(picture(model, optimizer=optimizer))

    alone, with_state = run_ranks(2, body)[0]
    lines = {line.split()[0]: line.split() for line in alone.splitlines() if line.startswith("  ")}
    assert lines["0.weight"] == [
        "0.weight",
        "[6,",
        "4]",
        "float32",
        "[Shard(0,",
        "sizes=[1,",
        "5])]",
        "96",
        "80",
        "1.67",
    ]
    assert lines["1.running_mean"][1:] == ["[6]", "float32", "ordinary", "tensor", "24", "24"]
    buffers = 24 + 24 + 8  # two of float32, and the count of batches
    assert lines["0"][1] == str(16 + buffers) and lines["1"][1] == str(80 + buffers)
    assert (
        "0.weight: exp_avg " in with_state and "0.weight: exp_avg_sq " in with_state and "0.weight: step" in with_state
    )
    held = next(line.split() for line in with_state.splitlines() if line.split()[:1] == ["1"])
    assert held[1] == str(3 * 80 + buffers + 4)


def test_shared_parameters_have_all_their_names_and_those_on_meta_say_so():
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 2), "head": nn.Linear(2, 4), "none": nn.Linear(2, 2)})
    model["head"].weight = model["embedding"].weight
    model["none"].bias = None
    model["none"].to("meta")
    lines = str(picture(model, optimizer=torch.optim.SGD(model["head"].parameters()))).splitlines()
    assert lines[0] == "3 tensors, 64 bytes; 64 bytes on 1 rank"
    assert [line.split("  ")[1] for line in lines[2:5]] == [
        "embedding.weight = head.weight",
        "head.bias",
        "none.weight",
    ]
    assert "float32 on meta" in lines[4] and "meta" not in lines[3]
    for k in range(3):
        model[f"more{k}"] = nn.Linear(2, 4, bias=False)
        model[f"more{k}"].weight = model["embedding"].weight
    assert "embedding.weight = head.weight = 3 more" in str(picture(model))


def test_a_plan_shows_its_steps():
    square = Layout((8, 16), (2, 2), [Shard(0), Partial()])
    plan = sw.plan_redistribution(square, [Replicate(), Replicate()])
    text = str(picture(plan))
    assert "step 1 of 2: all-reduce along mesh dim 1, 1,024 bytes" in text and "from \\ to" in text
    assert str(plan).split(" | planned")[0] in text


def test_a_difference_counts_what_the_plan_counts():
    x, y = Layout((8, 16), (4,), [Shard(0, [1, 3, 1, 3])]), Layout((8, 16), (4,), [Shard(1)])
    plan = sw.plan_redistribution(x, y)
    text = str(diff(x, y))
    received = next(line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["received"])
    assert received == [str(plan.traffic(rank).received) for rank in range(4)] + [str(plan.bytes_received)]
    assert text == str(diff(x, [Shard(1)])) == str(visualize_sharding(x, y)) == str(visualize_sharding(x, [Shard(1)]))
    assert "nothing is sent" in str(diff(x, x))
    doubled = diff(x, y, dtype=torch.float64)
    assert f"{2 * plan.bytes_received}" in str(doubled)


def test_tensors_of_torch_are_shown_by_their_layouts():
    program = """
import sys, torch, torch.distributed as dist
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard, Replicate
import shardwise as sw
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
x = distribute_tensor(torch.zeros(4, 6), mesh, [Shard(0), Replicate()])
drawn = sw.visualize_sharding(x)
assert "(dp=1, tp=1)" in drawn.draw("svg")
model = torch.nn.Linear(6, 4)
model.weight = torch.nn.Parameter(x)
sw.visualize_sharding(model)
sw.visualize_mesh(mesh)
moved = sw.debug.diff(x, [Replicate(), Replicate()])
print(moved)
assert "(dp=1, tp=1)" in moved.draw("svg")
assert "(dp=1, tp=1)" in sw.debug.diff(x, sw.Layout((4, 6), (1,), [sw.Shard(0)])).draw("svg")
dist.destroy_process_group()
"""
    result = forked_python("-c", program)
    assert result.returncode == 0, result.stderr
    for words in (
        "[4, 6] as [Shard(0), Replicate()] on (dp=1, tp=1), 96 bytes",
        "weight",
        "dp 0",
        "nothing is sent",
    ):
        assert words in result.stdout


def test_tensors_of_torch_that_split_against_the_order_of_the_mesh_are_shown_where_they_are():
    program = """
import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, init_device_mesh, Shard, Replicate
from torch.distributed.tensor.placement_types import _StridedShard
import shardwise as sw
dist.init_process_group("fake", rank=0, world_size=6)
mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
plain, reordered = [Shard(0), Replicate()], [_StridedShard(0, split_factor=3), Shard(0)]

def tensor(n_rows, n_here, placements, mesh=mesh):
    return DTensor.from_local(torch.zeros(n_here, 4), mesh, placements, run_check=False, shape=(n_rows, 4), stride=(4, 1))

names, other_names = "(dp=2, tp=3)", "(1st: tp=3, 2nd: dp=2)"
x, y = tensor(12, 6, plain), tensor(12, 2, reordered)
assert names in sw.debug.picture(x).draw("svg") and other_names in sw.debug.picture(y).draw("svg")
for moved in (sw.debug.diff(x, reordered), sw.debug.diff(y, plain), sw.debug.diff(x, y), sw.debug.diff(y, x)):
    drawn = moved.draw("svg")
    assert names in drawn and other_names in drawn, drawn
assert str(sw.debug.diff(x, reordered)) == str(sw.debug.diff(x, y))
assert str(sw.debug.diff(y, plain)) == str(sw.debug.diff(y, x))
unnamed = tensor(12, 2, reordered, init_device_mesh("cpu", (2, 3)))
assert "(1st: dim 1=3, 2nd: dim 0=2)" in sw.debug.picture(unnamed).draw("svg")

mesh, uneven = init_device_mesh("cpu", (3, 2)), [_StridedShard(0, split_factor=2), Shard(0)]
here, moved = tensor(7, 2, uneven, mesh), tensor(7, 3, plain, mesh)
for show in (lambda: sw.debug.picture(here), lambda: sw.debug.diff(moved, uneven)):
    try:
        show()
    except ValueError as error:
        assert "[picture] " in str(error) and "evenly" in str(error), error
    else:
        raise AssertionError("torch deals these rows otherwise")
dist.destroy_process_group()
"""
    result = forked_python("-c", program)
    assert result.returncode == 0, result.stderr


def test_the_commands_and_drawings_of_the_page_on_pictures(tmp_path, monkeypatch):
    """Its programs run with those of all pages (test_docs.py)."""
    page = Path(__file__).resolve().parents[2] / "docs" / "pictures.md"
    for drawn in re.findall(r"\((pictures/\w+\.svg)\)", page.read_text()):
        assert (page.parent / drawn).read_text().startswith("<svg ")
    commands = re.findall(r"^\$ (python -m shardwise .*)", page.read_text(), re.MULTILINE)
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command)
        result = forked_python(*words[1:])
        assert result.returncode == 0, result.stderr


def test_ragged_and_empty_pieces_of_local_shards_are_shown():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        pieces = {
            0: ([torch.ones(2, 4), torch.ones(1, 4)], [(0, 0), (5, 0)]),
            1: ([], []),
            2: ([torch.ones(3, 4)], [(2, 0)]),
        }
        x = sw.DTensor.from_local(sw.LocalShardsWrapper(*pieces[rank]), mesh, [Shard(0)])
        return str(picture(x))

    text = run_ranks(3, body)[0]
    assert "2 pieces" in text and "no piece" in text and "imbalance 1.50: ranks 0,2 hold 48 bytes" in text


def test_local_shards_are_shown_as_this_rank_has_them(capsys):
    def body(rank):
        sw.init_device_mesh("cpu", (2,))
        shards = [torch.ones(2, 4), torch.ones(1, 4)] if rank == 1 else []
        wrapper = sw.LocalShardsWrapper(shards, [(0, 0), (6, 0)][: len(shards)])
        model = nn.Module()
        model.table, model.bias = nn.Parameter(wrapper), nn.Parameter(torch.ones(2))
        return picture(wrapper), picture(model)

    (nothing, _), (shards, model) = run_ranks(2, body)
    assert str(shards).startswith("LocalShardsWrapper of 2 shards on rank 1, 48 bytes\n")
    assert "[1, 4]    [6, 0]      16" in str(shards) and "imbalance" not in str(shards)
    assert "0 shards on rank 0, 0 bytes\n  no elements" in str(nothing)
    for drawn in (shards, nothing, model):
        assert drawn.draw("html") and drawn.draw("svg")
    lines = {line.split()[0]: line.split() for line in str(model).splitlines() if line.startswith("  ")}
    assert lines["table"][4:] == ["LocalShardsWrapper", "of", "2", "shards", "48", "48", "-"]
    assert lines["1"][1] == str(48 + 8) and "ordinary" in lines["bias"]


def test_torchs_local_shards_are_shown_alike():
    from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

    theirs = LocalShardsWrapper([torch.ones(2, 4)], [(3, 0)])
    assert str(picture(theirs)) == str(picture(sw.LocalShardsWrapper([torch.ones(2, 4)], [(3, 0)])))
    assert "no piece" in str(picture(LocalShardsWrapper([], [])))


@pytest.mark.parametrize("form", ["text", "svg", "html"])
def test_a_difference_of_meshes_without_dims(form):
    one, two = sw.Layout((4,), (), []), sw.Layout((4,), (2,), [Shard(0)])
    assert "nothing is sent" in sw.debug.diff(one, one).draw(form)
    assert "between the meshes" in sw.debug.diff(one, two).draw(form)


def test_differences_and_plans_name_the_dims_of_meshes():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        row = sw.init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
        x = sw.DTensor.from_local(torch.zeros(4, 4), mesh, [Partial(), Shard(0)])
        there = sw.zeros(8, 4, device_mesh=row, placements=[Shard(0)])
        moved = diff(x, [Replicate(), Shard(1)])
        return moved, diff(x, there), picture(sw.plan_redistribution(x, [Replicate(), Shard(1)]))

    moved, away, steps = run_ranks(4, body)[0]
    for drawn in (moved, away):
        assert "along dp, of 2" in str(drawn) and "along tp, of 2" in str(drawn)
        assert "(dp=2, tp=2)" in drawn.draw("svg") and "mesh dim" not in str(drawn)
    assert "(world=4)" in away.draw("svg") and "(world=4)" not in moved.draw("svg")
    assert "along dp, " in str(steps) and "(dp=2, tp=2)" in steps.draw("svg")
    assert "along mesh dim 0, of 4" in str(diff(Layout((8,), (4,), [Shard(0)]), [Replicate()]))


def test_output_that_takes_no_lines_gets_plain_ones(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    visualize_sharding(Layout((4, 2), (2, 2), [Shard(0), Shard(1)]), header="größe")
    written.flush()
    text = written.buffer.getvalue().decode("ascii")
    assert text.startswith("gr??e\n[4, 2] as") and "  0 +----" in text and "|         rank 0" in text


@pytest.mark.parametrize("n_ranks", [2, 16, 200])  # words, a letter, a shade per rank
def test_commands_print_plain_lines_to_output_that_takes_no_others(n_ranks, monkeypatch, tmp_path):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    (tmp_path / "tables.json").write_text(
        json.dumps([{"name": f"t{i}", "n_rows": 10 ** (i % 7 + 1), "n_columns": 32} for i in range(26)])
    )
    main(["plan-embeddings", str(tmp_path / "tables.json"), "--ranks", f"{n_ranks}"])
    text = written.buffer.getvalue().decode("ascii")
    assert "#" in text and "?" not in text


def command(*words):
    """What the command prints. Raises SystemExit for errors of usage."""
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        main(words)
    return lines.getvalue()


def test_a_program_without_output_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdout", None)
    assert "rank 0" in str(sw.visualize_sharding(LAYOUT, "a header"))
    main(["show", "--mesh", "2", "--file", str(tmp_path / "mesh.svg")])
    main(["plan", "--shape", "4", "--mesh", "2", "--from", "S0", "--to", "R"])
    assert (tmp_path / "mesh.svg").exists()


def test_the_command_show_draws_a_layout_or_a_mesh(tmp_path):
    layout = Layout((10, 7), (2, 2), [Shard(0), Shard(1)])
    show = ["show", "--shape", "10x7", "--mesh", "2x2", "--placements", "S0,S1"]
    assert command(*show) == f"{picture(layout)}\n"
    assert (
        command(*show, "--format", "svg", "--dtype", "float64")
        == f"{picture(layout, dtype=torch.float64, format='svg')}\n"
    )
    file = tmp_path / "layout.html"
    assert command(*show, "--file", str(file)) == f"wrote {file}\n" and file.read_text() == picture(layout).draw("html")
    assert "(dp=2, tp=2)" in command(*show, "--names", "dp,tp", "--format", "svg")
    assert "mesh of 2x2 ranks (dp=2, tp=2)" in command(
        "show", "--mesh", "2x2", "--names", "dp,tp", "--ranks", "3,2,1,0"
    )
    assert "[] as [Partial(sum)]" in command("show", "--shape", "scalar", "--mesh", "4", "--placements", "P")
    with pytest.raises(SystemExit, match="0"):
        command("--version")


def test_a_reader_that_has_seen_enough_is_no_error():
    show = [sys.executable, "-m", "shardwise", "show", "--mesh", "100x100"]
    with subprocess.Popen(show, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        started.stdout.close()
        assert started.stderr.read() == b""


def test_an_output_that_cannot_be_written_is_an_error_in_a_line():
    for words in (["show", "--mesh", "4"], ["show", "--help"]):
        with open("/dev/full", "w") as full:
            command_line = [sys.executable, "-m", "shardwise", *words]
            ended = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line.endswith("error: standard output cannot be written: No space left on device. Send it elsewhere.")


def test_the_command_diff_draws_a_move(tmp_path):
    source = Layout((9, 4), (4,), [Shard(0)])
    diff_words = ["diff", "--shape", "9x4", "--mesh", "4", "--from", "S0", "--to", "S1"]
    assert command(*diff_words) == f"{diff(source, [Shard(1)])}\n"
    assert "step 1 of 1: all-to-all" in command(*diff_words, "--steps")
    away = [*diff_words, "--to-mesh", "2", "--to-ranks", "8,9"]
    assert "between the meshes" in command(*away)
    assert "along dp, of 4" in command(*diff_words, "--names", "dp")
    named = command(*away, "--names", "dp", "--to-names", "tp", "--format", "svg")
    assert "(dp=4)" in named and "(tp=2)" in named
    reduced = ["diff", "--shape", "8", "--mesh", "2", "--from", "P", "--to", "R"]
    assert "all-reduce along dp, " in command(*reduced, "--names", "dp", "--steps")


# the command, words of the error
USAGE = [
    (["show", "--mesh", "2x2", "--shape", "4"], "--shape and --placements belong together"),
    (["show", "--mesh", "2x2", "--shape", "4", "--placements", "S0"], "placements"),
    (["show", "--mesh", "2", "--shape", "4", "--placements", "S1"], "Shard(1)"),
    (["show", "--mesh", "2", "--shape", "4", "--placements", "S0", "--file", "a.png"], "a suffix that names no format"),
    (
        ["show", "--mesh", "2", "--shape", "4", "--placements", "S0", "--file", "a.svg", "--format", "html"],
        "named as svg",
    ),
    (["show", "--mesh", "2", "--shape", "4", "--placements", "S0", "--format", "png"], "invalid choice"),
    (["show", "--mesh", "2", "--shape", "4", "--placements", "S0", "--file", "/none/a.svg"], "No such file"),
    (["show", "--mesh", "2", "--names", "dp,tp"], "2 names for a mesh of 1 dims"),
    (["show", "--mesh", "2x2", "--names", "dp,"], "does not name mesh dims"),
    (["show", "--mesh", "2x2", "--names", "dp,dp"], "does not name mesh dims"),
    (["show", "--mesh", "2", "--ranks", "5-4"], "5-4 has no ranks: it ends before it begins. Write 4-5."),
    (["diff", "--mesh", "2", "--shape", "4", "--from", "S0", "--to", "R", "--names", "a,b"], "2 names for a mesh of 1"),
    (
        ["diff", "--mesh", "2", "--shape", "4", "--from", "S0", "--to", "R", "--to-names", "a"],
        "--to-names needs --to-mesh. Give bot",
    ),
    (["show", "--mesh", "2x1", "--names", "a\nb,c"], r'"a\nb,c" has characters that cannot be printed'),
    (["show", "--mesh", "2", "--names", "\udcff"], r'"\udcff" has characters that cannot be printed'),
    (["show", "--mesh", "2", "--names", "-a"], "as in --names=-1. See python -m shardwise show --help."),
    (["show", "--mesh", "2", "--form\nat"], r"unrecognized arguments: --form\nat. See python -m shardwise --help."),
    (["show"], "the following arguments are required: --mesh. See python -m shardwise show --help."),
    (["show", "--mesh", "2", "--ranks", "0,1,2"], "ranks"),
    (["diff", "--mesh", "2", "--shape", "4", "--from", "S0", "--to", "X"], '"X" is no placement'),
]


@pytest.mark.parametrize(("words", "text"), USAGE, ids=str)
def test_a_mistake_on_the_command_line_is_an_error_of_usage(words, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line and line.startswith("python -m shardwise") and ": error: " in line


@pytest.mark.parametrize("name", ["show", "diff", "plan", "simulate", "plan-embeddings"])
def test_examples_and_the_spelling_of_placements_stand_in_the_help(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    help = capsys.readouterr().out
    assert f"  python -m shardwise {name} " in help
    assert name == "plan-embeddings" or "Placements, one per mesh dim: S0 " in help
