"""Where a name of torch's is bound, and what is bound there instead."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """`bind` binds `theirs` or `ours` here."""

    bind: Callable[[Any], None]
    theirs: Any
    ours: Any


def put_ours(places: Iterable[Place]) -> None:
    for place in places:
        place.bind(place.ours)


def put_theirs(places: Iterable[Place]) -> None:
    for place in places:
        place.bind(place.theirs)
