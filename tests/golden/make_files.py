"""Files as version 0.1 wrote them, for `test_files.py`. Not run again: later versions write other files."""

import json
import shutil
from pathlib import Path

import sapm
from golden.runs import SMALL, _burgers, _growth, _transport, _wave

FILES = Path(__file__).parent / "files"
CASES = {
    "transport": (_transport, {"method": "gauss-newton", "options": {"lifted": 3}}),
    "burgers": (_burgers, {"method": "gauss-newton", "options": {"lifted": 0, "resample": 3}}),
    "growth": (
        _growth,
        {"method": "gauss-newton", "options": {"stages": 1, "resample": 2, "lifted": 0}},
    ),
    "sweeps": (_transport, {"method": "alternating", "model": "sapm"}),
    "function": (_wave, {"method": "lbfgs", "model": "ls"}),
}
STEPS = {"growth": 12}


def settings_of(name: str) -> dict:
    network = {"depth": 3, "width": 6, "max_iter": STEPS.get(name, 5)}
    return (
        SMALL | {"points": 30, "boundary_points": 10, "test_points": 20} | network | CASES[name][1]
    )


def main() -> None:
    shutil.rmtree(FILES, ignore_errors=True)
    expected = {}
    for name, (problem, _) in CASES.items():
        result = sapm.solve(problem(), **settings_of(name), out=FILES / name)
        x = problem().domain.points(5)
        saved = {"loss": result.history["loss"][:, -1].tolist(), "u": result.best(x).tolist()}
        shutil.copytree(FILES / name, FILES / "copy")
        longer = STEPS.get(name, 5) + 3
        resumed = sapm.resume(FILES / "copy", longer, problem=problem(), progress=False)
        shutil.rmtree(FILES / "copy")
        saved["resumed"] = resumed.history["loss"][:, -1].tolist()
        expected[name] = saved
        (FILES / name / "env.json").unlink()
        (FILES / name / ".lock").unlink(missing_ok=True)
    (FILES / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
