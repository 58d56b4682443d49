"""Random domains, conditions and residuals, most of them wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from trials.harness import ill_said, unnamed


class Mine(Exception):
    """Raised by a user's function."""


def raises(*_):
    raise Mine("the user's own")


NUMBERS: list[Any] = [
    0, 1, -1, 2, 0.5, 1e-300, 1e-60, 1e-9, 1e9, 1e60, 1e300, 5e-324, 10**400, float("nan"),
    float("inf"), -float("inf"),
    None, True, "1", "x",
    1j, [1], (1, 2), {}, b"1", np.float32(0.5), np.int8(3), np.bool_(True), np.array(0.3),
    np.array([1.0, 2.0]), np.nan, object,
]  # fmt: skip
number = st.one_of(st.sampled_from(NUMBERS), st.floats(-10, 10), st.integers(-3, 3))
ends = st.one_of(
    st.sampled_from(
        [
            (0, 1),
            (-1, 1),
            (0, 1),
            (-1, 1),
            (1, 0),
            (1, 1),
            (0, 1e-9),
            (1e9, 1e9 + 1),
            (1e15, 1e15 + 1),
            (-1e308, 1e308),
            "01",
            "ab",
            {0, 1},
            {0: 1, 1: 2},
        ]
    ),
    st.tuples(number, number),
    st.lists(number, max_size=3),
    number,
)
plain = st.sampled_from(["t", "x", "y", "x1"])
name = st.one_of(
    plain,
    plain,
    plain,
    st.sampled_from(
        [
            "value",
            "vector",
            "d",
            "_x",
            "class",
            "",
            " ",
            "x y",
            "é",
            "Ω",
            "𝔵",
            "x-",
            "<b>",
            "\x00",
            "u",
            "p",
            "xx",
            "tx",
        ]
    ),
)
box = st.tuples(st.just("box"), st.dictionaries(name, ends, max_size=3))
usual = st.tuples(
    st.just("box"),
    st.sampled_from([{"x": (0, 1)}, {"t": (0, 1), "x": (-1, 1)}, {"x": (0, 1), "y": (0, 1)}]),
)
ball = st.tuples(
    st.just("ball"),
    st.one_of(st.integers(1, 3), number, st.just(10**9)),
    st.one_of(st.just(1.0), number),
    st.one_of(st.none(), number, st.lists(number, max_size=3)),
    st.one_of(st.just(()), st.lists(name, max_size=3).map(tuple), number),
)
domains = st.one_of(
    usual,
    usual,
    box,
    ball,
    st.tuples(st.sampled_from("|&-*"), st.one_of(usual, box, ball), st.one_of(usual, box, ball)),
    st.tuples(st.just("junk"), number),
)
FUNCTIONS = {
    "zero": lambda p: 0.0,
    "integer": lambda p: 1,
    "sine": lambda p: jnp.sin(p.vector[0]),
    "numpy": lambda p: np.float32(2.0),
    "branch": lambda p: 1.0 if p.vector[0] > 0.3 else -1.0,
    "nan": lambda p: jnp.nan,
    "infinite": lambda p: p.vector[0] / 0.0 if not isinstance(p.vector[0], float) else float("inf"),
    "huge": lambda p: 1e300,
    "tiny": lambda p: 1e-300,
    "complex": lambda p: 1j * p.vector[0],
    "none": lambda p: None,
    "text": lambda p: "one",
    "object": lambda p: object(),
    "point": lambda p: p,
    "vector": lambda p: p.vector,
    "two": lambda p: (1.0, 2.0),
    "matrix": lambda p: jnp.ones((2, 2)),
    "empty": lambda p: jnp.zeros(0),
    "ragged": lambda p: [[1], [2, 3]],
    "dictionary": lambda p: {"a": 1},
    "boolean": lambda p: p.vector[0] > 0,
    "bignum": lambda p: 10**400,
    "unknown": lambda p: p.nope,
    "raises": raises,
    "no arguments": lambda: 0.0,
    "two arguments": lambda p, q: 0.0,
    "not one": 3.0,
    "nothing": None,
}
RESIDUALS = {
    "transport": lambda p, u: u.t + u.x,
    "first": lambda p, u: u.x - 1,
    "second": lambda p, u: u.xx + u.yy,
    "heat": lambda p, u: u.t - u.xx,
    "wave": lambda p, u: u.tt - u.xx,
    "nonlinear": lambda p, u: u.t + u.value * u.x,
    "square root": lambda p, u: u.x + jnp.sqrt(u.value),
    "branch": lambda p, u: u.x if p.x > 0 else 2 * u.x,
    "branch on u": lambda p, u: u.x if u.value > 0 else -u.x,
    "constant": lambda p, u: 0.0,
    "one": lambda p, u: 1,
    "point only": lambda p, u: p.x,
    "value only": lambda p, u: u.value,
    "zero times": lambda p, u: 0 * u.x,
    "nan": lambda p, u: jnp.nan * u.x,
    "nan constant": lambda p, u: u.x + jnp.nan,
    "infinite": lambda p, u: u.x / 0.0,
    "huge": lambda p, u: 1e300 * u.x,
    "large": lambda p, u: 1e40 * u.x - 1e40,
    "tiny": lambda p, u: 1e-300 * u.x,
    "complex": lambda p, u: 1j * u.x,
    "integer": lambda p, u: jnp.floor(u.x).astype(int),
    "boolean": lambda p, u: u.x > 0,
    "none": lambda p, u: None,
    "text": lambda p, u: "u.x",
    "function": lambda p, u: u,
    "derivative": lambda p, u: u.d,
    "sum of functions": lambda p, u: u + 1,
    "called": lambda p, u: u(p.x),
    "listed": lambda p, u: [u.x, u.value],
    "matrix": lambda p, u: jnp.ones((2, 2)) * u.x,
    "empty": lambda p, u: jnp.zeros(0),
    "nested": lambda p, u: [[u.x], [1, 2]],
    "third": lambda p, u: u.d("x", "x", "x"),
    "no coordinate": lambda p, u: u.d("q"),
    "not a name": lambda p, u: u.d(3),
    "nothing": lambda p, u: u.d(),
    "misspelt": lambda p, u: u.vlaue,
    "unknown point": lambda p, u: p.q * u.x,
    "system": lambda p, u, v: (u.x - v.value, v.x + u.value),
    "too few": lambda p, u, v: u.x + v.x,
    "too many": lambda p, u: (u.x, u.x - 1, u.value),
    "parameter": lambda p, u: u.x - p.k * u.value,
    "point alone": lambda p: 0.0,
    "default": lambda p, u=None: 0.0,
    "star": lambda *a: a[1].x,
    "raises": raises,
    "gradient": lambda p, u: jax.grad(lambda x: x**2)(p.x) * u.x,
    "not one": "u.x",
    "missing": None,
}
g = st.one_of(st.sampled_from(["zero", "sine", "integer"]), st.sampled_from(sorted(FUNCTIONS)))
faces = st.one_of(
    st.none(),
    st.lists(st.sampled_from(["x-", "x+", "t-", "t+", "y-", "surface", "x", ""]), max_size=3),
    number,
    st.just("x-"),
)
points = st.one_of(
    st.none(),
    st.none(),
    number,
    st.sampled_from([[[0.0]], [[0.0, 0.5]], [[9, 9]], "x", [[0.0, np.nan]]]),
)
more = st.fixed_dictionaries(
    {},
    optional={
        "weight": number,
        "points": points,
        "of": st.one_of(st.sampled_from(["u", "v", "w", ""]), number),
        "hard": st.one_of(st.just(True), number),
    },
)
few = st.one_of(st.just({}), st.just({}), more)
condition = st.one_of(
    st.tuples(
        st.sampled_from(["Initial", "InitialVelocity", "Inflow", "Dirichlet", "Neumann"]),
        st.tuples(g),
        few,
    ),
    st.tuples(
        st.sampled_from(["Dirichlet", "Neumann"]),
        st.tuples(g),
        st.fixed_dictionaries({"faces": faces}),
    ),
    st.tuples(
        st.just("Robin"), st.tuples(st.one_of(number, g), st.one_of(number, g), g), st.just({})
    ),
    st.tuples(
        st.just("Periodic"), st.lists(st.one_of(name, number), max_size=2).map(tuple), st.just({})
    ),
    st.tuples(
        st.just("Observed"),
        st.tuples(
            st.sampled_from([[[0.5]], [[0.5, 0.5]], [[5.0]], [], "x", None, [[np.nan]]]),
            st.sampled_from([[1.0], [1, 2], [np.inf], "x", None, [[1, 2]], [1e300]]),
        ),
        st.just({}),
    ),
    st.tuples(st.just("junk"), st.tuples(number), st.just({})),
)
sensible = st.sampled_from(
    [
        [("Dirichlet", ("zero",), {})],
        [("Initial", ("sine",), {}), ("Inflow", ("sine",), {})],
        [("Initial", ("sine",), {}), ("Dirichlet", ("zero",), {})],
        [
            ("Initial", ("zero",), {}),
            ("InitialVelocity", ("sine",), {}),
            ("Dirichlet", ("zero",), {}),
        ],
        [("Dirichlet", ("zero",), {"of": "u"}), ("Dirichlet", ("sine",), {"of": "v"})],
    ]
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "depth": number,
        "width": st.one_of(number, st.lists(number, max_size=2)),
        "activation": st.one_of(
            st.sampled_from(["relu", "sin", "x"]),
            number,
            st.sampled_from(
                [
                    jnp.sum,
                    jnp.tanh,
                    np.tanh,
                    raises,
                    lambda x: x > 0,
                    lambda x: 1j * x,
                    lambda x: None,
                    lambda x: x / 0,
                ]
            ),
        ),
        "points": st.one_of(number, points),
        "boundary_points": number,
        "test_points": st.one_of(number, points),
        "model": st.one_of(st.sampled_from(["ls", "pm"]), number),
        "method": st.one_of(st.sampled_from(["adam", "alternating", "gd"]), number),
        "max_iter": number,
        "max_seconds": number,
        "seeds": st.one_of(number, st.lists(number, max_size=3)),
        "key": number,
        "init": number,
        "start": number,
        "mu": number,
        "alpha": st.one_of(number, st.lists(number, max_size=3)),
        "beta": number,
        "options": st.one_of(
            number,
            st.dictionaries(
                st.sampled_from(
                    [
                        "l2",
                        "patience",
                        "stall",
                        "lifted",
                        "order",
                        "damping",
                        "chunk",
                        "survivors",
                        "x",
                    ]
                ),
                number,
                max_size=2,
            ),
        ),
        "on_record": number,
        "devices": number,
    },
)
SMALL = {
    "depth": 2,
    "width": 3,
    "points": 8,
    "boundary_points": 6,
    "test_points": 5,
    "seeds": 1,
    "max_iter": 1,
    "max_seconds": 5.0,
}


def of_user(error: BaseException) -> bool:
    """Whether it was raised in, or below, a function of this file's that stands for a user's."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == __file__ and code.co_name in ("<lambda>", "raises"):
            return True
        trace = trace.tb_next
    return False


BASES = [  # each is right
    {"domain": ("box", {"x": (0, 1)}), "residual": "first", "conditions": [("Inflow", ("zero",),
    {})]},
    {"domain": ("box", {"t": (0, 1), "x": (-1, 1)}), "residual": "transport",
     "conditions": [("Initial", ("sine",), {}), ("Inflow", ("sine",), {})]},
    {"domain": ("box", {"t": (0, 1), "x": (-1, 1)}), "residual": "heat",
     "conditions": [("Initial", ("sine",), {}), ("Dirichlet", ("zero",), {})]},
    {"domain": ("box", {"x": (0, 1), "y": (0, 1)}), "residual": "second",
    "conditions": [("Dirichlet", ("sine",), {})]},
    {"domain": ("box", {"t": (0, 1), "x": (-1, 1)}), "residual": "nonlinear",
     "conditions": [("Initial", ("sine",), {}), ("Dirichlet", ("zero",), {})]},
    {"domain": ("box", {"x": (0, 1)}), "residual": "system",
     "conditions": [("Dirichlet", ("zero",), {"of": "u"}), ("Dirichlet", ("sine",), {"of": "v"})]},
    {"domain": ("ball", 2, 1.0, None, ("x", "y")), "residual": "second",
    "conditions": [("Dirichlet", ("sine",), {})]},
]  # fmt: skip
CHANGES = {
    "domain": domains,
    "residual": st.sampled_from(sorted(RESIDUALS)),
    "conditions": st.one_of(sensible, st.lists(condition, max_size=3), number),
    "f": st.sampled_from(sorted(FUNCTIONS)),
    "exact": st.sampled_from(sorted(FUNCTIONS)),
    "parameters": st.one_of(
        st.just({"k": 1.0}),
        st.dictionaries(st.one_of(name, st.integers(0, 3)), number, max_size=2),
        number,
    ),
    "features": st.one_of(st.tuples(number, number), st.just((2, 1.0)), number),
    "settings": settings,
    "more": condition,
}


@st.composite
def problems(draw):
    """A problem that is right, with up to three parts that are not."""
    found: dict[str, Any] = {
        "kind": draw(st.sampled_from(["pde", "pde", "pde", "function"])),
        "train": draw(st.integers(0, 24)),
    }
    found |= {
        "f": "sine",
        "exact": None,
        "parameters": None,
        "features": None,
        "settings": {},
    } | draw(st.sampled_from(BASES))
    about = CHANGES if found["kind"] == "pde" else ("domain", "f", "settings")
    for part in draw(st.lists(st.sampled_from(sorted(about)), max_size=3, unique=True)):
        found[part] = draw(CHANGES[part])
    if "more" in found and isinstance(found["conditions"], list):
        found["conditions"] = [*found["conditions"], found["more"]]
    return found


class Problem:
    strategy = problems()

    def __init__(self, scratch: Path):
        scratch.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Nothing is to be there."""

    def _domain(self, sapm, given):
        kind, *rest = given
        if kind == "box":
            return sapm.Box(**rest[0])
        if kind == "ball":
            dimension, radius, center, names = rest
            return sapm.Ball(dimension, radius, center, names=names)
        if kind == "junk":
            return rest[0]
        a, b = (self._domain(sapm, part) for part in rest)
        return {"|": lambda: a | b, "&": lambda: a & b, "-": lambda: a - b, "*": lambda: a * b}[
            kind
        ]()

    def _conditions(self, sapm, given):
        if not isinstance(given, list) or not all(
            isinstance(c, tuple) and len(c) == 3 for c in given
        ):
            return given
        made = []
        for kind, arguments, keywords in given:
            arguments = [
                FUNCTIONS.get(a, a)
                if isinstance(a, str) and kind not in ("Periodic", "Observed")
                else a
                for a in arguments
            ]
            made.append(
                arguments[0] if kind == "junk" else getattr(sapm, kind)(*arguments, **keywords)
            )
        return made

    def __call__(self, drawn: dict) -> dict:
        import sapm

        stage = "stated"
        try:
            domain = self._domain(sapm, drawn["domain"])
            if drawn["kind"] == "function":
                problem = sapm.Function(domain, FUNCTIONS[drawn["f"]])
            else:
                features = drawn["features"]
                features = sapm.Fourier(*features) if isinstance(features, tuple) else features
                exact = None if drawn["exact"] is None else FUNCTIONS[drawn["exact"]]
                conditions = self._conditions(sapm, drawn["conditions"])
                problem = sapm.PDE(
                    domain,
                    RESIDUALS[drawn["residual"]],
                    conditions,
                    exact,
                    drawn["parameters"],
                    features,
                )
            stage = "sampled"
            problem.samples(8, 6, 5)
            stage = "planned"
            from sapm.driver.settings import plan

            given = SMALL | drawn["settings"]
            for name in ("on_record", "devices"):
                given.pop(name, None)
            config = plan(problem, **given).to_dict()
            stage = "solved"
            bounded = (
                config["depth"] <= 3
                and config["max_iter"] <= 3
                and len(config["seeds"]) <= 2
                and np.max(config["width"]) <= 4
            )
            if drawn["train"] or not bounded:
                return {"outcome": "accepted", "ok": True, "why": ""}
            result = sapm.solve(problem, **(SMALL | drawn["settings"]), progress=False)
            str(result.summary())
            wrong = unnamed(result)
            return {"outcome": "result", "ok": not wrong, "why": wrong}
        except (ValueError, TypeError, OSError) as error:
            if of_user(error):
                return {"outcome": "the user's own error", "ok": True, "why": ""}
            wrong = ill_said(str(error))
            return {
                "outcome": "refused",
                "ok": not wrong,
                "why": wrong and f"{stage}: {wrong}: {type(error).__name__}: {error!s:.300}",
            }
        except Exception as error:
            own = of_user(error)
            said = f"{stage}: {type(error).__name__}: {error!s:.300} at {where(error)}"
            return {"outcome": "the user's own error", "ok": own, "why": "" if own else said}


def where(error: BaseException) -> str:
    """The last line of ours."""
    trace = error.__traceback__
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/sapm/" in file and "site-packages" not in file:
            found = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
