"""Damaged model files, run folders and tables: refused in one sentence, or loaded correctly.

    PYTHONPATH=. python trials/files.py --count 1000 --jobs 8 --out files.json

Model files and run folders are made, damaged at random (from a seed) and given to `sapm.load`,
`sapm.resume`, `sapm predict`, `sapm report` and `sapm export`. (Files with wrong contents under a
right checksum are the subject of `trials/records.py`.) A case passes if

* it is refused by a ValueError or an OSError in one sentence that names the file (command line: one
  line, exit code 2); or
* it loads and every number is that of the undamaged file,

and meanwhile no code is run, no program started, nothing written outside its folder, and memory
stays bounded.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# cells of a table: words that are not numbers, and numbers that are not finite
NOT_NUMBERS = ["abc", "1.2.3", "--", "1_0", "0x10", "TRUE", "1e", "١", "½"]
NOT_FINITE = ["inf", "-inf", "nan", "NaN", "1e999", "Infinity"]
ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "trials")]

import numpy as np  # noqa: E402

from trials import harness, mutations  # noqa: E402
from trials.harness import ill_said  # noqa: E402

X = np.linspace(-1, 1, 7)[:, None]
MEGABYTES = {"csv": 500}  # a case may grow by so much, others by 100; and by four times the file
SHARES = {  # of all cases
    **dict.fromkeys(("flip", "cut"), 0.14),
    **dict.fromkeys(("append", "blank", "shuffle", "length"), 0.05),
    "header": 0.12,
    "rewritten": 0.02,
    "other": 0.06,
    "special": 0.03,
    "folder": 0.05,
    "csv": 0.08,
}


def problem(name: str) -> Any:
    """The problems of the files, small."""
    import jax.numpy as jnp

    import sapm

    x = np.linspace(-1, 1, 24)
    if name == "regression":
        return sapm.Regression(x, np.sin(3 * x), test=(x[:5] + 0.01, np.sin(3 * x[:5])))

    def wave(p):
        return jnp.exp(p.t) * jnp.sin(p.x)

    if name == "transport":

        def residual(p, u):
            return u.t - u.x - wave(p) + jnp.exp(p.t) * jnp.cos(p.x)

        return sapm.PDE(
            sapm.Box(t=(0, 1), x=(-1, 1)), residual, [sapm.Initial(wave), sapm.Inflow(wave)], wave
        )
    if name == "heat":
        start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
        return sapm.PDE(
            sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t - u.xx, [start, sapm.Periodic("x")]
        )
    domain = sapm.Box(x=(-1, 1)) - sapm.Ball(1, 0.3, names=("x",))
    conditions = [sapm.Dirichlet(lambda p: 0.0, of="u"), sapm.Dirichlet(lambda p: 1.0, of="v")]
    return sapm.PDE(
        domain,
        lambda p, u, v: (u.x - p.k * v.value, v.x + u.value),
        conditions,
        parameters={"k": 1.0},
    )


def make_originals(folder: Path) -> None:
    """One file of each kind, and a run folder."""
    import warnings

    import sapm

    small = {
        "points": 20,
        "boundary_points": 8,
        "test_points": 10,
        "seeds": 2,
        "max_iter": 2,
        "progress": False,
    }
    warnings.simplefilter("ignore")
    for name in ("regression", "heat", "system"):
        sapm.solve(problem(name), 2, 4, **small).save(folder / f"{name}.sapm")
    sapm.solve(problem("transport"), 3, 4, **small, method="alternating", out=folder / "run")
    shutil.copy(folder / "run" / "model.sapm", folder / "transport.sapm")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 2))
    fitted = sapm.SAPMRegressor(2, 4, max_iter=3).fit(data, data[:, 0] * data[:, 1])
    fitted.result_.save(folder / "estimator.sapm")


class Trial:
    """In a worker: the originals as they load, and a case at a time."""

    def __init__(self, scratch: Path, originals: str, seed: int = 0):
        import warnings

        warnings.simplefilter("ignore")
        from typer.testing import CliRunner

        import sapm
        from sapm.cli.main import app

        self.scratch = scratch
        self.originals = Path(originals)
        self.seed = seed
        self.marker = scratch / "marker"
        self.app = app
        self.runner = CliRunner()
        self.held: dict[str, dict] = {}
        for file in sorted(self.originals.glob("*.sapm")):
            given = problem("system") if file.stem == "system" else None
            result = sapm.load(file, given)
            points = np.repeat(X, len(result.samples.names), 1)
            str(result.summary())
            self.held[file.stem] = {
                "body": file.read_bytes(), "problem": given,
                "values": result.best(points),
                "points": points, "table": json.dumps(result.table), "names": result.samples.names,
                "iterations": result.run.iterations,
            }  # fmt: skip
        self._warm_up()
        self.watch = harness.Watch(scratch)

    def _warm_up(self) -> None:
        """What is imported and compiled once is no part of a case."""
        (self.scratch / "points.csv").write_text("t,x\n0,0\n")
        file = self.originals / "transport.sapm"
        for command in (
            ("predict", file, "points.csv"),
            ("report", file, "-o", "r.html"),
            ("export", file, "u.npz"),
        ):
            assert self.command(*command)[0] == 0, self.command(*command)
        shutil.copytree(self.originals / "run", self.scratch / "warm")
        assert self.command("resume", "warm", "-q")[0] == 0

    def command(self, *arguments) -> tuple[int, str, str, Any]:
        done = self.runner.invoke(self.app, [str(a) for a in arguments])
        error = None if isinstance(done.exception, SystemExit) else done.exception
        return done.exit_code, done.stdout, done.stderr, error

    # ------------------------------------------------------------ one case

    def __call__(self, case: int) -> dict:
        draw = np.random.default_rng([self.seed, case])
        family = str(
            draw.choice(list(SHARES), p=np.array(list(SHARES.values())) / sum(SHARES.values()))
        )
        name = str(draw.choice(list(self.held)))
        about = {"family": family, "original": name}
        here = self.scratch / "case"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        if family == "csv":
            call = self._table(draw, here, about)
        elif family == "folder":
            call = self._folder(draw, here, about)
        else:
            call = self._file(draw, here, about, family, name)
        harness.reset_peak()
        before = harness.memory()[1]
        self.watch.on = True
        try:
            found = call()
        finally:
            self.watch.on = False
        grown = (harness.memory()[2] - before) / 2**20
        size = sum(p.stat().st_blocks * 512 for p in here.rglob("*") if p.is_file()) / 2**20
        found = about | found | {"grown_mb": round(grown, 1)}
        broke = self.watch.take() or (self.marker.exists() and "ran code: the marker was written")
        if broke:
            found |= {"ok": False, "why": f"did what it may not: {broke}"}
        most = MEGABYTES.get(family, 100) + 4 * size
        if found["ok"] and grown > most:
            found |= {"ok": False, "why": f"memory grew by {grown:.0f} MB, more than {most:.0f}"}
        return found

    def _file(self, draw, here: Path, about: dict, family: str, name: str):
        held = self.held[name]
        path = here / str(
            draw.choice(["a.sapm", "b [x] é.sapm", "c\n\x1b[31m.sapm"], p=[0.8, 0.1, 0.1])
        )
        if family == "special":
            path = self._special(draw, here, about, held["body"])
        elif family == "other":
            formats = mutations.others(str(self.marker))
            about["format"] = str(draw.choice(list(formats)))
            path.write_bytes(formats[about["format"]])
        else:
            make = mutations.BYTES.get(family) or getattr(mutations, family)
            path.write_bytes(make(draw, held["body"]))
        way = about["way"] = str(
            draw.choice(
                ["load", "resume", "predict", "report", "export"], p=[0.5, 0.1, 0.2, 0.1, 0.1]
            )
        )
        if way in ("load", "resume"):
            return lambda: self._load(way, path, held, family)
        return lambda: self._command(way, path, here, held, family)

    def _special(self, draw, here: Path, about: dict, body: bytes) -> Path:
        """What is no plain file, or not of the size it says."""
        path = here / "a.sapm"
        kind = str(
            draw.choice(["folder", "pipe", "loop", "nowhere", "device", "sparse", "long", "padded"])
        )
        about["kind"] = kind
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind in ("loop", "nowhere", "device"):
            path.symlink_to({"loop": path, "nowhere": here / "b", "device": "/dev/zero"}[kind])
        elif kind == "sparse":  # a terabyte that takes no room
            path.write_bytes(body)
            os.truncate(path, 2**40)
        elif kind == "long":
            header, payload = mutations.taken_apart(body)
            path.write_bytes(
                mutations.together(json.dumps(header).encode() + b" " * (101 * 10**6), payload)
            )
        else:
            header, payload = mutations.taken_apart(body)
            header["__metadata__"]["note"] = "x" * 10**7
            path.write_bytes(mutations.together(header, payload))
        return path

    def _load(self, way: str, path: Path, held: dict, family: str) -> dict:
        import sapm

        try:
            if way == "load":
                result = sapm.load(path, held["problem"])
            else:
                result = sapm.resume(
                    path, held["iterations"], problem=held["problem"], progress=False
                )
        except (ValueError, OSError) as error:
            wrong = ill_said(str(error).replace(str(path), "FILE"))
            wrong = wrong or (
                ""
                if str(path) in str(error) or "problem given" in str(error)
                else "does not name the file"
            )
            wrong = wrong or ("refused what was not damaged" if family == "rewritten" else "")
            return {
                "outcome": "refused",
                "ok": not wrong,
                "why": wrong and f"{wrong}: {error!s:.400}",
                "said": str(error)[-200:],
            }
        except MemoryError as error:
            return {"ok": False, "why": f"MemoryError: {error!s:.200}"}
        except Exception as error:
            return {"ok": False, "why": f"{type(error).__name__}: {error!s:.400}"}
        return self._same(result, held)

    def _same(self, result, held: dict) -> dict:
        values = result.best(held["points"])
        same = np.array_equal(values, held["values"]) and json.dumps(result.table) == held["table"]
        return {
            "outcome": "loaded right",
            "ok": bool(same),
            "why": "" if same else "its numbers are not those of the original",
        }

    def _command(self, way: str, path: Path, here: Path, held: dict, family: str) -> dict:
        (here / "points.csv").write_text(
            ",".join(held["names"]) + "\n" + ",".join("0.25" for _ in held["names"]) + "\n"
        )
        more = {
            "predict": ["points.csv"],
            "report": ["--out", "r.html", "--json"],
            "export": ["u.npz"],
        }[way]
        code, out, said, error = self.command(
            way, path, *(here / m if "." in m else m for m in more)
        )
        if error is not None or code not in (0, 2):
            return {
                "ok": False,
                "why": f"exit code {code}: {type(error).__name__} {error!s:.200}: {said[-300:]}",
            }
        if code == 2:
            wrong = ill_said(said.replace(str(path), "FILE")) or (
                "" if said.startswith("sapm: ") and not out else "is not one line"
            )
            return {
                "outcome": "refused",
                "ok": not wrong,
                "why": wrong and f"{wrong}: {said[:400]}",
                "said": said[-200:],
            }
        if way == "export":
            return {"outcome": "loaded right", "ok": True, "why": ""}
        if way == "predict":
            numbers = [float(v) for v in out.splitlines()[1].split(",")][len(held["names"]) :]
            wanted = np.atleast_1d(self._value(held)).tolist()
            return {
                "outcome": "loaded right",
                "ok": numbers == wanted,
                "why": "" if numbers == wanted else f"{numbers} != {wanted}",
            }
        same = json.loads(out)["seeds"] == json.loads(held["table"])
        return {
            "outcome": "loaded right",
            "ok": same,
            "why": "" if same else "its table is not that of the original",
        }

    def _value(self, held: dict):
        import sapm

        if "value" not in held:
            name = next(k for k, v in self.held.items() if v is held)
            u = sapm.load(self.originals / f"{name}.sapm", held["problem"]).best
            held["value"] = u(np.full((1, len(held["names"])), 0.25))[0]
        return held["value"]

    def _folder(self, draw, here: Path, about: dict):
        """A run folder with something wrong in it, continued."""
        run = here / "run"
        outside = here / "outside"
        shutil.copytree(self.originals / "run", run)
        outside.write_text("mine")
        checkpoint = run / "checkpoint" / "latest.sapm"
        right = True
        kind = str(
            draw.choice(
                ["checkpoint", "no checkpoint", "side", "stray", "link", "link to folder", "json"]
            )
        )
        about["kind"] = kind
        if kind == "checkpoint":
            make = list(mutations.BYTES.values())[int(draw.integers(len(mutations.BYTES)))]
            checkpoint.write_bytes(make(draw, checkpoint.read_bytes()))
        elif kind == "no checkpoint":
            checkpoint.unlink()
        elif kind in ("side", "json"):  # none of these is read
            for file in ("config.json", "env.json", "history.jsonl", "summary.json", "model.sapm"):
                (run / file).write_bytes(
                    draw.bytes(20) if kind == "side" else b'{"depth": -1, "options": null}'
                )
        elif kind == "stray":
            (run / "checkpoint" / ".latest.sapm.x1").write_bytes(draw.bytes(50))
        elif kind == "link":
            name = str(
                draw.choice(
                    [
                        ".lock",
                        "history.jsonl",
                        "config.json",
                        "model.sapm",
                        "checkpoint/latest.sapm",
                    ]
                )
            )
            if name == "checkpoint/latest.sapm":
                outside.write_bytes(checkpoint.read_bytes())
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(outside)
            right = False
        else:
            shutil.move(run / "checkpoint", here / "elsewhere")
            (run / "checkpoint").symlink_to(here / "elsewhere")
            right = False
        kept = outside.read_bytes()
        known = right and kind not in ("checkpoint", "no checkpoint")

        def call() -> dict:
            code, out, said, error = self.command("resume", run, "--json", "-q")
            if error is not None or code not in (0, 2):
                return {
                    "ok": False,
                    "why": f"exit code {code}: {type(error).__name__} {error!s:.200}: "
                    f"{said[-300:]}",
                }
            if outside.read_bytes() != kept:
                return {"ok": False, "why": "wrote to a file outside the run folder"}
            if code == 2:
                wrong = ill_said(said) or ("refused what was not damaged" if known else "")
                return {
                    "outcome": "refused",
                    "ok": not wrong,
                    "why": wrong and f"{wrong}: {said[:400]}",
                    "said": said[-200:],
                }
            rows = [row for found in json.loads(out).values() for row in found["seeds"]]
            same = rows == json.loads(self.held["transport"]["table"]) and kind != "link to folder"
            return {
                "outcome": "loaded right",
                "ok": same,
                "why": "" if same else "its table is not that of the original",
            }

        return call

    def _table(self, draw, here: Path, about: dict):
        """A CSV file for `sapm predict`; `wanted`: the points it names, or None if it is to be
        refused.
        """
        path = here / "points.csv"
        point = [round(float(v), 6) for v in draw.normal(size=2)]
        t, x = (repr(v) for v in point)
        many = 10**6
        cases: dict[str, tuple[bytes, Any]] = {
            "plain": (f"t,x\n{t},{x}\n".encode(), [point]),
            "bom": (f"\ufefft,x\r\n{t},{x}\r\n".encode(), [point]),
            "other order": (f"note,x,t\na,{x},{t}\n".encode(), [point]),
            "quoted": (f'"t","x"\n"{t}"," {x} "\n\n'.encode(), [point]),
            "many columns": (f"{'c,' * many}t,x\n{'1,' * many}{t},{x}\n".encode(), [point]),
            "many text columns": (f"t,x{',c' * many}\n{t},{x}{',abc' * many}\n".encode(), [point]),
            "many columns, none ours": (f"c{',c' * many}\n{'1,' * many}1\n".encode(), None),
            "many cells": (f"t,x\n{t},{x}{',1' * many}\n".encode(), None),
            "many rows": (f"t,x\n{f'{t},{x}{chr(10)}' * 20000}".encode(), [point] * 20000),
            "trailing commas": (f"t,x\n{t},{x},,\n".encode(), [point]),
            "missing": (f"t,x\n{t},\n".encode(), None),
            "short": (f"t,x\n{t}\n".encode(), None),
            "ragged": (f"t,x\n{t},{x}\n{t},{x},7\n".encode(), None),
            "decimal commas": (b"t;x\n0,5;1,5\n", None),
            "text": (f"t,x\n{t},{draw.choice(NOT_NUMBERS)}\n".encode(), None),
            "not finite": (f"t,x\n{t},{draw.choice(NOT_FINITE)}\n".encode(), None),
            "huge": (f"t,x\n{t},{draw.choice(['1e300', '-1e308', '1e-320'])}\n".encode(), "finite"),
            "long cell": (f"t,x\n{t},{'9' * 10**6}\n".encode(), None),
            "long line": (b"t,x\n" + b"0," * (36 * 10**6), None),
            "wrong names": (f"T,y\n{t},{x}\n".encode(), None),
            "no names": (f"{t},{x}\n".encode(), None),
            "twice": (f"t,x,x\n{t},{x},{x}\n".encode(), None),
            "only names": (b"t,x\n", None),
            "empty": (b"", None),
            "blank": (b"\n\n \n", None),
            "binary": (draw.bytes(3000), None),
            "nul": (f"t,x\n{t},\x00{x}\n".encode(), None),
            "utf-16": (f"t,x\n{t},{x}\n".encode("utf-16"), None),
            "latin-1": (f"t,x,é\n{t},{x},1\n".encode("latin-1"), None),
            "open quote": (f't,x\n"{t},{x}\n'.encode(), None),
            "escapes": (f"t,x\n{t},\x1b[31mred\n".encode(), None),
        }
        about["kind"] = kind = str(draw.choice([*cases, "folder", "nowhere", "pipe"]))
        body, wanted = cases.get(kind, (b"", None))
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind != "nowhere":
            path.write_bytes(body)

        def call() -> dict:
            code, out, said, error = self.command(
                "predict", self.originals / "transport.sapm", path
            )
            if error is not None or code not in (0, 2):
                return {
                    "ok": False,
                    "why": f"exit code {code}: {type(error).__name__} {error!s:.200}: "
                    f"{said[-300:]}",
                }
            if code == 2:
                wrong = ill_said(said) or (
                    "refused what was right" if isinstance(wanted, list) else ""
                )
                return {
                    "outcome": "refused",
                    "ok": not wrong,
                    "why": wrong and f"{wrong}: {said[:400]}",
                    "said": said[-200:],
                }
            rows = [
                [float(row[name]) for name in ("t", "x", "u")]
                for row in csv.DictReader(out.splitlines())
            ]
            right = wanted == "finite" or (
                wanted is not None and [row[:2] for row in rows] == wanted
            )
            right = bool(right and np.isfinite(rows).all())
            return {
                "outcome": "loaded right",
                "ok": right,
                "why": "" if right else f"gave {out[:200]!r}",
            }

        return call


def main() -> int:
    given = harness.arguments(__doc__.splitlines()[0], 1000).parse_args()  # type: ignore[union-attr]
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="sapm-originals-"))
    try:
        with harness.shared_programs():
            make_originals(folder)
            found = harness.run(Trial, (str(folder), given.seed), range(given.count), given.jobs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return harness.verdict("files", found, began, given.out, seed=given.seed)


if __name__ == "__main__":
    sys.exit(main())
