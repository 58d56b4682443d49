"""Bytes that a compiled program moves between devices."""

import re
from math import prod


def traffic(program: str) -> dict[str, int]:
    """Bytes that a compiled program (its text) moves between devices, by kind of operation; what is
    in a loop counts once.
    """
    moved: dict[str, int] = {}
    for result, kind in re.findall(
        r"= (.*?) (all-[\w-]+?|reduce-scatter|collective-[\w-]+?)(?:-start)?\(", program
    ):
        shapes = re.findall(r"[a-z](\d+)\[([\d,]*)\]", result)
        count = sum(
            int(bits) // 8 * prod(map(int, filter(None, shape.split(","))))
            for bits, shape in shapes
        )
        moved[kind] = moved.get(kind, 0) + count
    return moved
