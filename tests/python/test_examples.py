"""The examples do what their head comments say: each `$ command` there runs, and prints what stands below it."""

import functools
import platform
import re
import shlex
from pathlib import Path

import pytest
import torch
from pages import assert_same_text
from torchrun import IMPORTED, run_command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WITH_BERT = (*IMPORTED, "transformers.models.bert.modeling_bert")


def head_comment(source: Path) -> list[str]:
    text = source.read_text()
    if source.suffix == ".py":
        return text.split('"""')[1].splitlines()
    lines = text.splitlines()
    n_lines = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return [line.removeprefix("//").removeprefix(" ") for line in lines[:n_lines]]


def sessions(source: Path) -> list[tuple[str, str]]:
    """The commands of a head comment and their outputs: `$ command`, indented, and what is indented below it."""
    found: list[tuple[str, list[str]]] = []
    is_inside = False
    for line in head_comment(source):
        if line.startswith("    $ "):
            found.append((line[6:], []))
            is_inside = True
        elif is_inside and (line.startswith("    ") or not line.strip()):
            found[-1][1].append(line[4:])
        else:
            is_inside = False
    return [(command, "\n".join(lines).strip()) for command, lines in found]


@functools.cache
def run(command: str) -> str:
    """What the command prints. Once per process: other tests compare with what a head comment's command has printed."""
    imported = WITH_BERT if "finetune_hf" in command or "unmodified_models" in command else IMPORTED
    finished = run_command(command, imported=imported, timeout=600)  # inductor compiles for some
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=source.name)
        for source in sorted(EXAMPLES.iterdir())
        if source.is_file() and sessions(source)
    ],
)
def test_example_prints_what_its_head_comment_says(source: Path) -> None:
    for command, expected in sessions(source):  # in their order: one may read what the one before wrote
        expect_session(command, expected)


def expect_session(command: str, expected: str) -> None:
    program = next(word for word in shlex.split(command) if "examples/" in word)
    if not (ROOT / program).exists():
        pytest.skip(f"{program} is not built (it needs Gloo's headers)")
    text = re.match(r"Text of Python ([\d.]+\d)", expected)
    if text and text[1] != platform.python_version():
        pytest.skip(f"the output is that of Python {text[1]}'s text")
    assert_same_text(run(command), expected)


@pytest.mark.parametrize("example", ["row-wise-even", "column-wise", "grid-wise", "table-wise"])
def test_torchrec_sharding_prints_the_same_in_python_and_cpp(example: str) -> None:
    printed = run(f"torchrun --nproc-per-node 4 examples/torchrec_sharding.py -e {example}")
    program = "build/examples/torchrec_sharding"
    if not (ROOT / program).exists():
        pytest.skip(f"{program} is not built (it needs Gloo's headers)")
    assert run(f"torchrun --no-python --nproc-per-node 4 {program} -e {example}") == printed


def test_word_vectors_are_learnt_alike_on_one_rank_and_on_four() -> None:
    one, four = (
        [float(loss) for loss in re.findall(r"\d\.\d{4}", run(f"torchrun --nproc-per-node {words}"))]
        for words in ("1 examples/train_word_vectors.py --epochs 3", "4 examples/train_word_vectors.py")
    )
    assert len(one) == 3 and one[0] > one[1] > one[2]
    assert four[:3] == pytest.approx(one, abs=2e-4)


def test_two_towers_learn_alike_on_one_rank_and_on_four() -> None:
    one = run("torchrun --nproc-per-node 1 examples/two_tower.py --epochs 5").splitlines()
    four = run("torchrun --nproc-per-node 4 examples/two_tower.py").splitlines()
    assert_same_text("\n".join(one), "\n".join(four[: len(one)]))


def losses_in(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d\.\d{3})", printed)]


@functools.cache
def losses_on_one_process() -> list[float]:
    """The means of steps 1 to 10, 11 to 20, and so on, as examples/train_transformer.py prints them."""
    import train_transformer as example

    torch.manual_seed(0)
    reader = example.Reader()
    model = example.Transformer(len(reader.alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=example.RATE)
    dense = torch.zeros(4, example.SHOWN)
    for step in range(dense.numel()):
        loss = example.loss_sum(model, reader.next_batch()) / (example.BATCH * example.LENGTH)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), example.LONGEST)
        optimizer.step()
        dense.view(-1)[step] = loss.detach()
    return dense.mean(1).tolist()


def test_a_transformer_learns_as_on_one_process_and_goes_on_on_other_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of the three commands compiles the blocks."""
    monkeypatch.syspath_prepend(EXAMPLES)
    expected = losses_on_one_process()
    assert expected[1] < expected[0] - 0.3
    whole, *resumed = (run(command) for command, _ in sessions(EXAMPLES / "train_transformer.py"))
    assert losses_in(whole) == pytest.approx(expected, abs=1.5e-3)
    assert len(resumed) == 2
    for printed in resumed:
        assert "resumed after step 20" in printed
        assert losses_in(printed) == pytest.approx(expected[2:], abs=1.5e-3)


def test_a_compiled_transformer_learns_as_on_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    printed = run("torchrun --nproc-per-node 4 examples/train_transformer.py --mesh 2 2 --steps 10 --compile")
    assert losses_in(printed) == pytest.approx(losses_on_one_process()[:1], abs=1.5e-3)


def test_every_example_has_a_session() -> None:
    assert {source.name for source in EXAMPLES.iterdir() if source.is_file() and sessions(source)} == {
        "dlrm.py",
        "finetune_hf.py",
        "first_program.cpp",
        "growing_vocabulary.py",
        "moe.py",
        "parallel_mlp.py",
        "parallel_transformer.cpp",
        "pipeline.py",
        "sentence_embeddings.py",
        "sharded_embedding.cpp",
        "sharded_embedding.py",
        "torchrec_sharding.cpp",
        "torchrec_sharding.py",
        "train_transformer.py",
        "train_word_vectors.py",
        "two_tower.py",
        "unmodified_models.py",
    }


def test_minilm_has_the_published_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosines shown beside the model where it is published, to three digits."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import minilm

    first, *others = minilm.load_model()(
        minilm.tokenize(
            ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
        )
    )
    assert [float(first @ other) for other in others] == pytest.approx([0.695, 0.943, 0.257], abs=5e-4)
