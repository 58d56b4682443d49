"""Files and run folders written by version 0.1 load, predict, resume and export."""

import json
import shutil

import numpy as np
import pytest

import sapm
from golden.make_files import CASES, FILES, STEPS

EXPECTED = json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_files_of_version_0_1(name, tmp_path):
    problem = CASES[name][0]()
    expected = EXPECTED[name]
    x = problem.domain.points(5)
    loaded = sapm.load(FILES / name / "model.sapm", problem)
    np.testing.assert_allclose(loaded.best(x), expected["u"], rtol=1e-10)
    np.testing.assert_allclose(loaded.history["loss"][:, -1], expected["loss"])
    loaded.best.to_onnx(tmp_path / "u.onnx")
    assert (tmp_path / "u.onnx").stat().st_size > 500
    shutil.copytree(FILES / name, tmp_path / "run")
    resumed = sapm.resume(tmp_path / "run", STEPS.get(name, 5) + 3, problem=problem, progress=False)
    # below 1e-12 of the first loss a loss is made of rounding
    np.testing.assert_allclose(
        resumed.history["loss"][:, -1],
        expected["resumed"],
        rtol=1e-6,
        atol=1e-12 * resumed.history["loss"][:, 0].max(),
    )
