"""How many seeds succeed, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sapm.names import brief, number
from sapm.run import Run

CONFIDENCE = 0.95
FALLEN = 0.1  # the paper's rule: the actual loss ends below this fraction of what it was at the start
MANY = 10  # seeds from which on a rate is shown unasked


@dataclass(frozen=True)
class Success:
    """`count` of `of` seeds, the rate and its 95 % Wilson interval; `str` of it is a sentence."""

    rate: float
    low: float
    high: float
    count: int
    of: int
    rule: str
    dropped: int

    def __str__(self) -> str:
        least = f"; {self.dropped} were dropped and count as failed, so this is a lower bound" if self.dropped else ""
        return (
            f"{self.count} of {self.of} seeds succeed ({self.rule}): {self.rate:.1%}, "
            f"with {CONFIDENCE:.0%} confidence {self.low:.1%} to {self.high:.1%}{least}."
        )


def success(run: Run, below: float | None = None) -> Success:
    """Seeds whose final actual loss is below a tenth of their initial one (the paper's rule), or whose true loss is below a
    number. Dropped and non-finite seeds have not succeeded."""
    from scipy.stats import binomtest

    if below is None:
        reached, rule = (
            run.final("loss") < FALLEN * run.history["loss"][:, 0],
            f"the loss that is minimised falls below {FALLEN:.0%} of the initial one, the paper's rule",
        )
    else:
        if not number(below) > 0:
            raise ValueError(f"below={brief(below)} must be a positive number: how small the true loss of a seed must be.")
        reached, rule = run.final("mean_squared_loss") < below, f"true loss below {below:.3g}"
    out = np.array([status in ("dropped", "non-finite") for status in run.status])
    count, of = int(np.sum(reached & ~out)), len(run.seeds)
    ends = binomtest(count, of).proportion_ci(CONFIDENCE, method="wilson")
    return Success(count / of, float(ends.low), float(ends.high), count, of, rule, run.status.count("dropped"))
