"""Short runs of `sapm run` for all combinations of problem, model and method.

They write a checkpoint at every opportunity (see often.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STATED = Path(__file__).parent / "stated.py"


@dataclass(frozen=True)
class Combination:
    name: str
    problem: str
    models: str
    size: tuple[int, int]
    seeds: int
    iterations: int | None  # None: as many as it takes by default
    settings: tuple[str, ...] = ()
    code: bool = False  # whether `sapm resume` needs the problem again

    @property
    def spec(self) -> str:
        return f"{STATED}:{self.problem}"

    def run(self, out: Path, iterations: int | None = None) -> list[str]:
        arguments = [
            "run",
            self.spec,
            "--models",
            self.models,
            "--depth",
            str(self.size[0]),
            "--width",
            str(self.size[1]),
        ]
        arguments += ["--seeds", str(self.seeds), "--out", str(out), "--json"]
        if most := iterations or self.iterations:
            arguments += ["--max-iter", str(most)]
        return arguments + [word for setting in self.settings for word in ("--set", setting)]

    def resume(self, out: Path, iterations: int | None = None) -> list[str]:
        arguments = ["resume", str(out), "--json"] + (["--problem", self.spec] if self.code else [])
        return arguments + ([] if iterations is None else ["--max-iter", str(iterations)])


SWEEPS = "method=alternating"
POINTS = ("points=60", "boundary_points=30", "test_points=40")
COMBINATIONS = {
    c.name: c
    for c in (
        Combination(
            "curve, auto (lifted, then true loss)",
            "curve",
            "sapm",
            (3, 6),
            3,
            150,
            ("options.stall=0",),
        ),
        Combination(
            "curve, PM, sweeps, relu", "curve", "pm", (3, 6), 3, 400, (SWEEPS, "activation=relu")
        ),
        Combination("curve, LS, gd", "curve", "ls", (2, 5), 2, 300, ("method=gd",)),
        Combination(
            "curve, LS, gd that diverges",
            "curve",
            "ls",
            (3, 6),
            4,
            300,
            ("method=gd", "options.learning_rate=1.5"),
        ),
        Combination(
            "curve, LS, adam",
            "curve",
            "ls",
            (3, 6),
            3,
            300,
            ("method=adam", "options.learning_rate=0.01"),
        ),
        Combination("curve, SAPM, adam", "curve", "sapm", (3, 6), 2, 250, ("method=adam",)),
        Combination("curve, LS, lbfgs", "curve", "ls", (3, 6), 3, 200, ("method=lbfgs",)),
        Combination(
            "curve, SAPM, sweeps, then L-BFGS",
            "curve",
            "sapm",
            (3, 6),
            2,
            200,
            (SWEEPS, "start=noise", "options.polish_after=40"),
        ),
        Combination(
            "curve, SAPM, sweeps, survivors",
            "curve",
            "sapm",
            (3, 6),
            24,
            250,
            (SWEEPS, "options.survivors=3"),
        ),
        Combination(
            "curve, LS, gauss-newton, survivors",
            "curve",
            "ls",
            (3, 6),
            20,
            120,
            ("options.survivors=2", "activation=relu"),
        ),
        Combination(
            "surface, SAPM, sweeps, joint",
            "surface",
            "sapm",
            (4, 5),
            2,
            250,
            (SWEEPS, "options.joint=true"),
        ),
        Combination(
            "surface, SAPM, sweeps, mixed precision",
            "surface",
            "sapm",
            (3, 6),
            2,
            250,
            (SWEEPS, "options.precision=mixed", "options.shared=true"),
        ),
        Combination("validated, auto (sweeps, L-BFGS)", "validated", "sapm", (3, 6), 2, 200),
        Combination(
            "on disk, SAPM, sweeps by chunks",
            "on_disk",
            "sapm",
            (3, 5),
            2,
            24,
            (SWEEPS, "options.chunk=90"),
            True,
        ),
        Combination(
            "on disk, PM, sweeps by chunks, joint",
            "on_disk",
            "pm",
            (4, 4),
            1,
            20,
            (SWEEPS, "options.chunk=128", "options.joint=true"),
            True,
        ),
        Combination(
            "transport, auto", "transport", "sapm", (3, 6), 2, 120, (*POINTS, "options.stall=0")
        ),
        Combination("transport, PM, sweeps", "transport", "pm", (3, 5), 2, 200, (*POINTS, SWEEPS)),
        Combination(
            "transport, SAPM, sweeps, mixed",
            "transport",
            "sapm",
            (5, 5),
            2,
            150,
            (*POINTS, SWEEPS, "options.precision=mixed"),
        ),
        Combination(
            "transport, SAPM, lifted",
            "transport",
            "sapm",
            (3, 5),
            2,
            100,
            (*POINTS, "method=gauss-newton", "options.lifted=40"),
        ),
        Combination(
            "transport, PM, adam",
            "transport",
            "pm",
            (3, 5),
            2,
            60,
            (*POINTS, "method=adam"),
        ),
        Combination(
            "reaction, SAPM, sweeps", "reaction", "sapm", (3, 4), 2, 120, (*POINTS, SWEEPS)
        ),
        Combination(
            "heat, auto, resampled",
            "heat",
            "sapm",
            (3, 6),
            2,
            100,
            (*POINTS, "options.resample=7"),
            True,
        ),
        Combination(
            "burgers, auto, resampled",
            "burgers",
            "sapm",
            (3, 6),
            2,
            45,
            (*POINTS, "options.resample=10"),
            True,
        ),
        Combination(
            "burgers, auto, resampled, survivors",
            "burgers",
            "sapm",
            (3, 5),
            6,
            60,
            (*POINTS, "options.resample=8", "options.survivors=2"),
            True,
        ),
        Combination("heat with a number to find", "inverse", "sapm", (3, 6), 2, 80, POINTS, True),
        Combination(
            "growth, a second attempt in stages", "growth", "sapm", (3, 8), 2, None, POINTS, True
        ),
        Combination("oscillator, two functions", "oscillator", "sapm", (3, 6), 2, 80, POINTS, True),
    )
}
