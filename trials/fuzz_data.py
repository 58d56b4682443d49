"""Data of extreme scale, shape and type for `Regression`, `solve` and `SAPMRegressor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trials.fuzz_problem import where
from trials.harness import ill_said, unnamed

scale = st.one_of(st.just(0), st.integers(-60, 60), st.integers(-320, 308))
column = st.fixed_dictionaries(
    {
        "scale": scale,
        "offset": st.one_of(
            st.just(0.0), st.just(0.0), st.sampled_from([1.0, -1.0, 1e6, 1e12, 1e16, -1e300])
        ),
        "shape": st.sampled_from(
            [
                "normal",
                "normal",
                "constant",
                "duplicates",
                "zero",
                "one large",
                "two values",
                "sorted",
                "integers",
            ]
        ),
    }
)
odd = st.sampled_from(["", "", "", "", "nan", "inf", "-inf", "none", "text", "complex", "huge int"])
kind = st.sampled_from(
    [
        "float64",
        "float64",
        "float64",
        "float32",
        "float16",
        "int8",
        "int64",
        "uint64",
        "bool",
        "object",
        "str",
        "complex",
        "datetime",
        "list",
        "tuple",
        "vector",
        "three axes",
        "scalar",
        "ragged",
        "strided",
    ]
)


def table(draw: np.random.Generator, n: int, columns: list[dict], spoil: str, way: str) -> Any:
    a = np.empty((n, len(columns)))
    with np.errstate(all="ignore"):
        for j, c in enumerate(columns):
            base = {
                "normal": lambda: draw.normal(size=n),
                "constant": lambda: np.ones(n),
                "duplicates": lambda: (
                    draw.normal(size=max(1, n // 4)).repeat(8)[:n] if n else np.zeros(0)
                ),
                "zero": lambda: np.zeros(n),
                "one large": lambda: np.where(np.arange(n) == 0, 1e9, draw.normal(size=n)),
                "two values": lambda: draw.integers(0, 2, n).astype(float),
                "sorted": lambda: np.linspace(-1, 1, n),
                "integers": lambda: draw.integers(-5, 5, n).astype(float),
            }[c["shape"]]()
            a[:, j] = np.resize(base, n) * 10.0 ** c["scale"] + c["offset"]
        value = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}.get(spoil)
        if a.size and value is not None:
            a.flat[int(draw.integers(a.size))] = value
        if a.size and spoil in ("none", "text", "complex", "huge int"):
            b = a.astype(object)
            b.flat[int(draw.integers(a.size))] = {
                "none": None,
                "text": "1.5",
                "complex": 1j,
                "huge int": 10**400,
            }[spoil]
            return b
        if way in ("float32", "float16", "int8", "int64", "uint64", "bool", "object", "str"):
            return a.astype(way)
        other = {
            "complex": lambda: a.astype(complex) * (1 + 1j),
            "datetime": lambda: np.zeros(a.shape, "datetime64[s]"),
            "list": a.tolist,
            "tuple": lambda: tuple(map(tuple, a.tolist())),
            "vector": lambda: a[:, 0] if a.shape[1] else a,
            "three axes": lambda: a[..., None],
            "scalar": lambda: 3.0,
            "ragged": lambda: [[1.0], [1.0, 2.0]],
            "strided": lambda: np.asfortranarray(np.repeat(a, 2, 0))[::2],
        }
        return other.get(way, lambda: a)()


class Data:
    """A shape that trains is one of a few, so that compiled programs are used again."""

    strategy = st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**32 - 1),
            "n": st.sampled_from([1, 20, 20, 20, 20, 0, 2, 5]),
            "x": st.lists(column, min_size=1, max_size=2) | st.lists(column, max_size=3),
            "y": st.lists(column, min_size=1, max_size=1) | st.lists(column, max_size=2),
            "spoil": st.tuples(odd, odd),
            "kind": st.tuples(kind, kind),
            "weights": st.sampled_from(
                [
                    None,
                    None,
                    None,
                    "ones",
                    "zero",
                    "negative",
                    "one",
                    "tiny",
                    "huge",
                    "short",
                    "text",
                ]
            ),
            "validation": st.sampled_from([None, None, None, "same", "wrong", "junk"]),
            "names": st.sampled_from(
                [
                    None,
                    None,
                    None,
                    ["x"],
                    ["a", "b"],
                    ["<b>", "$x$"],
                    ["a", "a"],
                    "ab",
                    [1, 2],
                    ["\x00", "b"],
                    ["", "b"],
                    [None, "b"],
                    3,
                ]
            ),
            "way": st.sampled_from(["state", "solve", "solve", "estimator", "estimator"]),
            "method": st.sampled_from(["auto", "auto", "alternating"]),
        }
    )

    def __init__(self, scratch: Path):
        scratch.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Nothing is to be there."""

    def __call__(self, drawn: dict) -> dict:
        import sapm

        draw = np.random.default_rng(drawn["seed"])
        n = drawn["n"]
        X, Y = (
            table(draw, n, drawn[name], drawn["spoil"][i], drawn["kind"][i])
            for i, name in enumerate("xy")
        )
        try:
            if drawn["way"] == "estimator":
                return self._fit(sapm, X, Y)
            problem = sapm.Regression(
                X,
                Y,
                names=drawn["names"],
                weights=self._weights(drawn["weights"], n),
                validation=self._validation(drawn["validation"], X, Y),
            )
            if (
                drawn["way"] == "state"
                or problem.X.shape not in ((1, 1), (20, 1), (20, 2))
                or problem.Y.shape[1] > 1
            ):
                return {"outcome": "accepted", "ok": True, "why": ""}
            method = drawn["method"] if problem.X.shape == (20, 1) else "auto"
            result = sapm.solve(problem, 2, 3, seeds=1, max_iter=2, method=method, progress=False)
            str(result.summary())
            values = result.best(np.asarray(problem.X))
            wrong = unnamed(result) or (
                "" if np.isfinite(values).all() else "its values are not finite"
            )
            return {"outcome": "result", "ok": not wrong, "why": wrong}
        except (ValueError, TypeError) as error:
            wrong = ill_said(
                str(error), internal=drawn["way"] != "estimator" or "sapm" in where(error)
            )
            return {
                "outcome": "refused",
                "ok": not wrong,
                "why": wrong
                and f"{wrong}: {type(error).__name__}: {error!s:.300} at {where(error)}",
            }
        except Exception as error:
            return {"ok": False, "why": f"{type(error).__name__}: {error!s:.300} at {where(error)}"}

    @staticmethod
    def _weights(way, n: int):
        numbers = {"ones": 1.0, "zero": 0.0, "negative": -1.0, "tiny": 1e-300, "huge": 1e300}
        if way in numbers:
            return np.full(n, numbers[way])
        return {None: None, "one": 1.0, "short": np.ones(max(0, n - 1)), "text": "abc"}[way]

    @staticmethod
    def _validation(way, X, Y):
        return {None: None, "same": (X, Y), "wrong": (Y, X, 1), "junk": 3}[way]

    def _fit(self, sapm, X, Y) -> dict:
        """scikit-learn's own checks come first; their sentences may have several lines."""
        model = sapm.SAPMRegressor(2, 3, max_iter=2)
        try:
            model.fit(X, Y)
            wrong = unnamed(model.result_)
            values = model.predict(X)
        except (ValueError, TypeError) as error:
            if "/sapm/" in where(error) or where(error):
                trace = error.__traceback__
                while trace.tb_next is not None:  # type: ignore[union-attr]
                    trace = trace.tb_next  # type: ignore[union-attr]
                if (
                    "sklearn" in trace.tb_frame.f_code.co_filename
                    or "numpy" in trace.tb_frame.f_code.co_filename
                ):  # type: ignore[union-attr]
                    return {"outcome": "refused", "ok": True, "why": ""}
            raise
        wrong = wrong or ("" if np.isfinite(values).all() else "its predictions are not finite")
        return {"outcome": "result", "ok": not wrong, "why": wrong}
