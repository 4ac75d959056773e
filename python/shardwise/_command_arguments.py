"""What the commands of `python -m shardwise` read from their arguments."""

import argparse
import re
from math import prod

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
MAX_RANKS = 65_536
MAX_ELEMENTS = 2**56  # whose bytes, all ranks together, still count in 64 bits


def extents(text: str) -> tuple[int, ...]:
    """4097x1023."""
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no list of extents. Write them as in 4097x1023.')
    sizes = tuple(map(int, text.split("x")))
    if prod(sizes) > MAX_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MAX_ELEMENTS:,} elements. Give smaller extents.")
    return sizes


def mesh_extents(text: str) -> tuple[int, ...]:
    """2x2."""
    shape = extents(text)
    if not 0 < prod(shape) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text} is a mesh of {prod(shape):,} ranks. Give 1 to {MAX_RANKS:,}.")
    return shape


def link(text: str) -> tuple[float, float]:
    """20:10 is 20 us and 10 GB/s."""
    try:
        latency_us, gb_per_s = map(float, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is no link. Write microseconds:GB/s, as in 20:10.') from None
    return latency_us, gb_per_s


def n_bytes(text: str) -> int:
    """1MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of bytes. Write it as in 1048576, 64KiB or 1MiB.')
    number = int(float(match[1]) * UNITS[match[2]])
    if not 0 < number < 2**62:
        raise argparse.ArgumentTypeError(f"{text} is {number} bytes. Give 1 to {2**62 - 1}.")
    return number
