"""Files with wrong contents under a right checksum: a short version of `trials/records.py`, which
changes every leaf of the files of every kind of run.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sapm

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of numbers that overflow
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory"),
]


def trial(name: str):
    """A module of `trials/`, by its path, under the name by which the others import it."""
    full = f"trials.{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, ROOT / "trials" / f"{name}.py")
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


harness, records, leaves, honest = map(trial, ("harness", "records", "leaves", "honest"))

SMALL = {"depth": 2, "width": 3, "points": 6, "boundary_points": 4, "test_points": 4, "seeds": 2}
UNTRAINED = SMALL | {"method": "adam", "model": "ls", "max_iter": 0}
STORED = honest.stored_kinds()
KINDS = {
    name: replace(honest.KINDS[name], settings=UNTRAINED)
    for name in ("weighted", "advection", "system")
} | {name: STORED[name] for name in ("transport 0.1, latest", "burgers 0.1, latest")}
SEED = 0
LONGEST_SECONDS = 60.0  # of a case that hangs


@pytest.fixture(scope="module")
def honest_file(tmp_path_factory):
    """A function of the name of a kind: its honest file as it loads."""
    folder = tmp_path_factory.mktemp("honest")
    known = {}

    def loaded(name: str):
        if name not in known:
            honest.make(folder, {name: KINDS[name]})
            known[name] = records.read_honest(folder / f"{name}.sapm", KINDS[name])
        return known[name]

    return loaded


@pytest.mark.slow_cases("weighted", "system", "transport 0.1, latest", "burgers 0.1, latest")
@pytest.mark.parametrize("name", KINDS)
def test_every_leaf(name, honest_file, tmp_path):
    """Every node of the description and every array is changed: the file is refused in a sentence
    that names it, or its numbers are finite, and those of the honest file where they must be.
    """
    file = honest_file(name)
    seed = [SEED, list(KINDS).index(name)]
    wrong = []
    outcomes = []
    for number in range(len(leaves.places(file.content))):
        chosen = leaves.case(file.content, number, seed)
        if any(change.large for _, change in chosen):
            continue
        draw = np.random.default_rng([*seed, number])
        try:
            outcome = records.check_case(file, chosen, tmp_path / "a.sapm", draw, further=False)
            outcomes.append(outcome)
        except records.Failed as failed:
            wrong.append(f"{leaves.said(chosen)}: {failed.kind}: {failed.details[:200]}")
    assert not wrong, f"{len(wrong)} of {len(wrong) + len(outcomes)}:\n" + "\n".join(wrong)
    assert outcomes.count("refused") > 30 and outcomes.count("loaded") > 30


ATTACKS = {  # found before there was this trial
    "a long embedding": ("advection", "about['embedding']['b']", "many entries"),
    "an embedding that keeps much": ("advection", "about['embedding']['kept']", "many entries"),
    "NaN in an embedding": ("advection", "about['embedding']['W'][0][0]", "is NaN"),
    "a phase that is infinite": ("advection", "about['embedding']['b'][0]", "is inf"),
    "nested domains": ("advection", "about['domain']", "in itself at ['parts', 0]"),
    "a domain of no kind": ("advection", "about['domain']['kind']", "is text"),
    "many points": ("burgers 0.1, latest", "about['config']['points']", "is twenty million"),
    "many points on the boundary": (
        "burgers 0.1, latest",
        "about['config']['boundary_points']",
        "is twenty million",
    ),
    "a unit beyond 64 bits": ("advection", "about['units']['size']", "is 10**30"),
    "a loss below 0": ("weighted", "history/mean_squared_loss", "all negated"),
    "another problem": ("burgers 0.1, latest", "samples/term0/weight", "one entry -1.0"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(name, honest_file, tmp_path):
    """Small files that took gigabytes or minutes, or gave NaN without a word."""
    kind, where, what = ATTACKS[name]
    file = honest_file(kind)
    (place,) = (place for place in leaves.places(file.content) if str(place) == where)
    (change,) = (change for change in leaves.changes(file.content, place) if change.name == what)
    path = tmp_path / "a.sapm"

    def one(_: int) -> dict:
        records.check_case(file, [(place, change)], path, np.random.default_rng(0), further=False)
        records.check_resume(file, path)
        return {"ok": True}

    found = harness.attempt(0, one, LONGEST_SECONDS)
    assert found["ok"], found["why"]


def test_the_trial_notices(honest_file, tmp_path, monkeypatch):
    """What is not allowed fails: here a reader that crashes, calls damage a bug, or returns other
    numbers.
    """
    file = honest_file("weighted")
    path = tmp_path / "a.sapm"

    def failure(load) -> str:
        monkeypatch.setattr(sapm, "load", load)
        with pytest.raises(records.Failed) as failed:
            records.check_case(file, [], path, np.random.default_rng(0), further=False)
        return failed.value.kind

    def raising(error):
        def load(path, **known):
            raise error

        return load

    assert failure(raising(KeyError("x"))) == "load: KeyError"
    assert "does not name the file" in failure(raising(ValueError("it is damaged.")))
    assert "a bug" in failure(raising(ValueError(f"{path}: please report the error.")))
    assert "speaks of" in failure(raising(ValueError(f"{path}: list index out of range.")))
    monkeypatch.undo()
    numbers = replace(file.numbers, values=file.numbers.values + 1)
    with pytest.raises(records.Failed, match="other values"):
        records.check_case(
            replace(file, numbers=numbers), [], path, np.random.default_rng(0), further=False
        )
    assert records.check_case(file, [], path, np.random.default_rng(0), further=False) == "loaded"
