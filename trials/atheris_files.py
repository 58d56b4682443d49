"""Fuzz the readers of model files, tables of points and JSON files, guided by coverage.

Needs `pip install atheris`.

    PYTHONPATH=. python trials/atheris_files.py -runs=100000          # and other options of
    libFuzzer, such as -max_total_time=60

Anything but the answer or a ValueError in one sentence is a crash, which atheris reports with the
bytes that made it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "trials")]

import atheris  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402

with atheris.instrument_imports(
    include=["sapm.results.files", "sapm.results.records", "sapm.results.export", "sapm.errors"]
):
    from sapm.results import export, files, records

from trials.harness import ill_said  # noqa: E402
from trials.mutations import taken_apart, together  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="sapm-atheris-"))


def seed_file() -> bytes:
    """A small file with a right checksum, whose description is not yet one."""
    path = FOLDER / "seed.sapm"
    files.write(
        path,
        {"network/W1": np.ones((1, 2, 1)), "chosen": np.zeros(1, int)},
        {"kind": "regression", "config": {"depth": 2}},
    )
    return path.read_bytes()


SEED = seed_file()


def model(data: bytes) -> None:
    """The bytes as they are; or as the description of a file whose checksum is right for it."""
    path = FOLDER / "a.sapm"
    if data[:1] == b"d":
        text = data[1:].decode("utf-8", "replace")
        header, payload = taken_apart(SEED)
        arrays, _ = files.read(FOLDER / "seed.sapm")
        header["__metadata__"] |= {"about": text, "sha256": files._digest(arrays, text)}
        data = together(header, payload)
    path.write_bytes(data)
    arrays, about = files.read(path)
    records.check(path, arrays, about)


def points(data: bytes) -> None:
    path = FOLDER / "a.csv"
    path.write_bytes(data)
    table = export.read_points(path, ("t", "x"))
    assert table.points.shape == (len(table.lines), 2) and np.isfinite(table.points).all()


def settings(data: bytes) -> None:
    path = FOLDER / "a.json"
    path.write_bytes(data)
    assert isinstance(files.read_json(path), dict)


def one(data: bytes) -> None:
    read = (model, points, settings)[data[0] % 3] if data else model
    try:
        read(data[1:])
    except ValueError as error:
        wrong = ill_said(str(error), internal=False)
        assert not wrong, f"{wrong}: {error}"


def main() -> None:
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for k, body in enumerate(
        (SEED, b'd{"kind": "pde", "names": ["t"], "config": {"depth": 2, "options": {}}}')
    ):
        (corpus / f"model{k}").write_bytes(b"\x00" + body)
    for k, body in enumerate((b"t,x\n1,2\n", b'\xef\xbb\xbf"x","t"\r\n"1e3",-2\r\n')):
        (corpus / f"points{k}").write_bytes(b"\x01" + body)
    (corpus / "settings").write_bytes(b'\x02{"models": ["ls"], "settings": {"depth": 2}}')
    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
