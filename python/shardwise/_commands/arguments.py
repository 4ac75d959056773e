"""The arguments of the commands of `python -m shardwise`, and how their help is written."""

import argparse
import ast
import re
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NoReturn

import torch

try:
    from rich_argparse import RawDescriptionRichHelpFormatter as BaseFormatter
except ModuleNotFoundError:  # the help then has no colours
    from argparse import RawDescriptionHelpFormatter as BaseFormatter  # type: ignore[assignment]

from shardwise._C import EnumerableShard, Layout, Partial, Placement, Replicate, Shard
from shardwise.placement_types import KINDS

PLACEMENTS = """Placements, one per mesh dim: S0 (sharded along tensor dim 0), S0[1,3,1,3] (sharded with these sizes),
R (replicated), P, Pavg, Pmax, Pmin, Pproduct (partial); or as in Python:
RaggedShard((0,1),(2,3,0,5)) (ranges of the flattened dims 0 and 1 in these proportions)."""

UNITS = {"": 1, "B": 1}
for power, prefix in enumerate("KMGT", 1):
    UNITS |= {f"{prefix}B": 1000**power, f"{prefix}iB": 1024**power}
MAX_RANKS = 65_536
MAX_BYTES = 2**60  # for all ranks together, each with a whole tensor: sums over several steps still fit in 64 bits
MAX_INTEGER = 2**63 - 1  # the largest that C++ takes
MAX_SHOWN = 100  # characters of a value in a message

WHOLE = r"[0-9]{1,18}"  # fits 64 bits
PLACEMENT = re.compile(
    rf"S(?P<dim>-?{WHOLE})(\[(?P<sizes>\s*{WHOLE}\s*(,\s*{WHOLE}\s*)*)\])?|(?P<replicate>R)|P(?P<reduce>[a-z]*)"
)
SPELLED: dict[str, Callable[..., Placement]] = {kind.__name__: kind for kind in KINDS if kind is not EnumerableShard}


class HelpFormatter(BaseFormatter):
    """Colours the help on terminals, if rich-argparse is installed. Descriptions and examples stay as they are written, brackets included."""

    group_name_formatter = str
    text_markup = False
    help_markup = False


class Parser(argparse.ArgumentParser):
    """A parser, also of commands, whose errors are one line that names the help instead of printing the usage."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter, **options})
        # Makes -1:1 and -1,0 values, so that the type of the option raises its error. argparse takes only -1 for a value.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        message = one_line(message)
        if option := re.fullmatch(r"argument ((?:.*/)?(.*)): expected one argument", message):
            message = (
                f"argument {option[1]}: it has no value. Give one; one that begins with a dash as in {option[2]}=-1."
            )
        self.exit(2, f"{self.prog}: error: {message.removesuffix('.')}. See {self.prog} --help.\n")


def one_line(text: str) -> str:
    """`text` with escapes for line ends and other characters that are not printable."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def quoted(text: str) -> str:
    """A value in quotes, shortened, for a message."""
    return f'"{text}"' if len(text) <= MAX_SHOWN else f'"{text[:MAX_SHOWN]}..."'


def refused(text: str, why: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{quoted(text)} {why}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """The parser of a whole number in [least, most]."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:  # no number, or one of more than 4,300 digits
            found = None
        if found is None or not least <= found <= most:
            raise refused(text, f"is no whole number from {least} to {most}. Give one.")
        return found

    return number


def extents(text: str) -> tuple[int, ...]:
    """4097x1023."""
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise refused(text, "is no list of extents. Write them as in 4097x1023.")
    if any(len(each.lstrip("0")) > 19 for each in text.split("x")):
        raise refused(text, "has an extent of more than 19 digits. Give smaller extents.")
    return tuple(map(int, text.split("x")))


def shape(text: str) -> tuple[int, ...]:
    """4097x1023, or scalar."""
    return () if text == "scalar" else extents(text)


def mesh_extents(text: str) -> tuple[int, ...]:
    """2x2."""
    mesh = extents(text)
    n_ranks = prod(mesh)
    if not 0 < n_ranks <= MAX_RANKS:
        count = f"{n_ranks:,}" if n_ranks <= MAX_INTEGER else f"more than {MAX_INTEGER:,}"
        raise refused(text, f"is a mesh of {count} ranks. Give 1 to {MAX_RANKS:,}.")
    return mesh


def link(text: str) -> tuple[float, float]:
    """20:10 is 20 us and 10 GB/s."""
    try:
        latency_us, gb_per_s = map(float, text.split(":"))
        return latency_us, gb_per_s
    except ValueError:
        raise refused(text, "is no link. Write microseconds:GB/s, as in 20:10.") from None


def value(text: str) -> tuple[str, float]:
    """train.py:12=0 is the line and the number; 0 alone, without a line, is for all others."""
    line, _, number = text.rpartition("=")
    try:
        if line and not re.fullmatch(r".+:[1-9]\d*", line):
            raise ValueError
        return line, float(number)
    except ValueError:
        raise refused(text, "is no value. Write a number, or a line and a number, as in train.py:12=0.") from None


def n_bytes(text: str) -> int:
    """1MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B?)", text)
    if match is None:
        raise refused(text, "is no number of bytes. Write it as in 1048576, 64KiB or 1MiB.")
    number = int(min(float(match[1]) * UNITS[match[2]], 2.0**62))
    if not 0 < number < 2**62:
        raise refused(text, f"is no number of bytes that can be counted. Give 1 to {2**62 - 1}.")
    return number


def spelled(text: str) -> Placement | None:
    """A placement as Python and pictures spell it: RaggedShard((0,1),(2,3,0,5)). None for anything else."""

    def value(node: ast.expr) -> Any:
        return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)  # Partial(sum), as it is printed

    try:
        with warnings.catch_warnings(action="ignore"):  # of Python's parser, about text that is refused below
            call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in SPELLED:
            return None
        arguments = [value(node) for node in call.args]
        named = {each.arg: value(each.value) for each in call.keywords if each.arg is not None}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None  # no Python, no literal value, or more than Python's parser reads
    if len(named) < len(call.keywords):
        return None  # ** arguments, or a name given twice
    return made(SPELLED[call.func.id], *arguments, **named)


def made(kind: Callable[..., Placement], *arguments: Any, **named: Any) -> Placement | None:
    """A placement of this kind; None if the arguments are not its own."""
    try:
        return kind(*arguments, **named)
    except TypeError:
        return None
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).split("\n")[0]) from None


def short(text: str) -> Placement | None:
    """S0, S0[1,3,1,3], R, P, Pmax. None for anything else."""
    match = PLACEMENT.fullmatch(text)
    if match is None:
        return None
    if match["replicate"]:
        return Replicate()
    if match["dim"] is None:
        return made(Partial, match["reduce"] or "sum")
    sizes = match["sizes"]
    return made(Shard, int(match["dim"]), None if sizes is None else [int(size) for size in sizes.split(",")])


def placement(text: str) -> Placement:
    """S0, S0[1,3,1,3], R, P, Pmax, or as Python spells it."""
    found = short(text.strip()) or spelled(text.strip())
    if found is None:
        raise refused(text, "is no placement. Write S0, S0[1,3,1,3], R, P, Pmax or RaggedShard((0,1),(2,3,0,5)).")
    return found


def placements(text: str) -> list[Placement]:
    """One placement per mesh dim, separated by commas outside of brackets and parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [placement(part) for part in parts]


def ranks(text: str) -> list[int]:
    """0,2,1,3 or 4-7."""
    if not re.fullmatch(rf"{WHOLE}(-{WHOLE})?(,{WHOLE}(-{WHOLE})?)*", text):
        raise refused(text, "is no list of ranks. Write them as in 0,2,1,3 or 4-7.")
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"{part} has no ranks: it ends before it begins. Write {last}-{first}.")
        if int(last or first) >= MAX_RANKS:
            raise argparse.ArgumentTypeError(f"rank {last or first} is out of range. Give ranks below {MAX_RANKS:,}.")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def names(text: str) -> list[str]:
    """dp,tp."""
    found = text.split(",")
    if not all(name.strip() for name in found) or len(set(found)) < len(found):
        raise refused(text, "does not name mesh dims. Write different names, as in dp,tp.")
    if not text.isprintable():
        raise refused(text, "has characters that cannot be printed. Write other names, as in dp,tp.")
    return found


def check_names(option: str, given: list[str] | None, mesh: tuple[int, ...]) -> list[str]:
    """The names; [] if none are given. Raises ValueError unless there is one per mesh dim."""
    if given is not None and len(given) != len(mesh):
        raise ValueError(f"{option} has {len(given)} names for a mesh of {len(mesh)} dims. Give one per dim.")
    return given or []


def dtype(text: str) -> torch.dtype:
    """float32."""
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        raise argparse.ArgumentTypeError(f"torch has no dtype {quoted(text)}. Write it as in float32 or bfloat16.")
    return found


def add_layout(command: argparse.ArgumentParser, *, is_shape_required: bool) -> None:
    """Adds --shape, --mesh, --ranks and --dtype, whose values shells complete."""
    add = command.add_argument
    add(
        "--shape",
        type=shape,
        required=is_shape_required,
        help='the whole tensor\'s, such as 10x7; "scalar": without dims',
    )
    add("--mesh", type=mesh_extents, required=True, help="the shape of the mesh, such as 2x2")
    add("--ranks", type=ranks, help="the ranks of --mesh, row-major: 0,2,1,3 or 4-7 (default: 0, 1, 2, ...)")
    option = command.add_argument("--dtype", type=dtype, default=torch.float32, help="default: float32")
    names = sorted({str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)})
    option.completer = lambda **asked: names  # type: ignore[attr-defined]  # argcomplete's


def layout(
    sizes: Sequence[int], mesh: tuple[int, ...], order: list[int] | None, placed: list[Placement], dtype: torch.dtype
) -> Layout:
    """Raises ValueError if byte counts would not fit in 64 bits, or the number of ranks is not that of the mesh."""
    if prod(max(size, 1) for size in sizes) * dtype.itemsize * prod(mesh) > MAX_BYTES:
        raise ValueError(
            f"{'x'.join(map(str, sizes))} elements on {prod(mesh):,} ranks may be more than {MAX_BYTES:,} bytes. Give smaller extents."
        )
    if order is None:
        return Layout(sizes, mesh, placed)
    if len(order) != prod(mesh):
        raise ValueError(f"{len(order)} ranks do not fill a mesh of {prod(mesh)}. Give one rank per place.")
    return Layout(sizes, torch.tensor(order).view(mesh), placed)
