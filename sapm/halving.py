"""Many seeds: which of them are dropped when, and how they are ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LAST = {"dropped": 1, "non-finite": 2}  # behind all others in a ranking


def rungs(seeds: int, survivors: int | None, iterations: int) -> dict[int, int]:
    """Successive halving: {iteration: how many seeds go on from there}, for S seeds, k survivors and n iterations.

    R = ⌈log₂(S/k)⌉ rungs, at iterations ⌈n·2^(j-R)⌉, j = 0 … R-1, from which max(k, ⌈S·2^(-j-1)⌉ ) go on: every rung costs
    about as many steps, half as many seeds for twice as long. Rungs that fall together are one.
    """
    if survivors is None or survivors >= seeds:
        return {}
    count = math.ceil(math.log2(seeds / survivors))
    found = {math.ceil(iterations * 2.0 ** (j - count)): max(survivors, math.ceil(seeds * 2.0 ** (-j - 1))) for j in range(count)}
    return {at: places for at, places in found.items() if 0 < at < iterations}


def ranking(status: Sequence[str], value: np.ndarray) -> np.ndarray:
    """The seeds, the best first: by value (a loss), dropped ones behind all others, failed ones last."""
    last = np.array([LAST.get(s, 0) for s in status])
    last = np.where(np.isfinite(value), last, 2)
    return np.lexsort((np.where(last < 2, value, np.inf), last))
