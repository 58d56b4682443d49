"""What surrounds a call: settings of JAX, its transformations, forks of the process, and the
platforms that it is told to use. A call works, or it is refused in one sentence.
"""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from tables import all_refused

import sapm

X = np.linspace(0, 1, 12)
SETTINGS = {
    "promotion of types": lambda: jax.numpy_dtype_promotion("strict"),
    "promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "no compilation": lambda: jax.disable_jit(True),
    "search for NaN": lambda: jax.debug_nans(True),
    "search for infinities": lambda: jax.debug_infs(True),
}


def decay():
    return sapm.PDE(
        sapm.Box(x=(0, 1)), lambda p, u: u.x + u.value**2, [sapm.Dirichlet(1, faces=["x-"])]
    )


def solved(problem):
    return sapm.solve(
        problem,
        depth=2,
        width=3,
        seeds=1,
        max_iter=2,
        points=10,
        boundary_points=2,
        test_points=5,
        progress=False,
    )


def numbers():
    """Numbers from all parts: training, an error estimate, evaluation, and the estimator."""
    result = solved(decay())
    u = result.best
    inside = jax.jit(jax.vmap(jax.grad(lambda x: u(x=x) * u(x=0.5))))
    model = sapm.SAPMRegressor(depth=2, width=3, max_iter=3, alpha=0.1).fit(X[:, None], X)
    return [
        result.rows[0].train_error,
        result.error_estimate().error,
        u(x=0.5),
        u.d("x")(x=0.5),
        *np.asarray(inside(jnp.asarray(X, jnp.float32))).tolist(),
        *np.asarray(u(x=jnp.asarray(X, jnp.float32))).tolist(),
        *model.predict(X[:, None]).tolist(),
    ]


def test_settings_of_jax_change_nothing():
    """Each gives the same numbers, from the same compiled programs, and is there afterwards."""
    usual = numbers()
    for name, setting in SETTINGS.items():
        with setting():
            assert numbers() == usual, name
            if "types" in name:
                assert jax.config.jax_numpy_dtype_promotion == "strict"
    with jax.enable_checks(True):
        assert solved(sapm.Regression(X, X)).run.iterations == 2


def traced(transformation, call):
    """The call within jit, vmap or grad."""

    def function(a):
        call(a)
        return a * 1.0

    return lambda: transformation(function)(1.0)


def test_what_trains_is_refused_within_transformations():
    u = solved(sapm.Regression(X, X)).best
    model = sapm.SAPMRegressor(depth=2, width=3, max_iter=1, alpha=0.1).fit(X[:, None], X)
    calls = {
        "solve": lambda a: sapm.solve(curve),
        "refine": lambda a: sapm.refine(u, curve),
        "SAPMRegressor.fit": lambda a: sapm.SAPMRegressor().fit(X[:, None], a * X),
        "SAPMRegressor.predict": lambda a: model.predict(X[:, None] * a),
        "Regression": lambda a: sapm.Regression(X, a * X),
        "Function": lambda a: sapm.Function(sapm.Box(x=(0, 1)), lambda p: a * p.x),
        "PDE": lambda a: sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.x - a, [sapm.Dirichlet(0)]),
    }
    curve = sapm.Regression(X, X)
    transformations = {
        "jit": jax.jit,
        "grad": jax.grad,
        "vmap": lambda f: lambda a: jax.vmap(f)(jnp.full(2, a)),
    }
    all_refused(
        {
            f"{name} in {around}": (
                traced(transformation, call),
                RuntimeError,
                f"^sapm.{name}: got a call within jax.jit, vmap or grad, .* call it first",
            )
            for name, call in calls.items()
            for around, transformation in transformations.items()
        }
    )


# ---------------------------------------------------------------- processes

CHILD = """
import contextlib, io, json, os, sys
import sapm

def said(call):
    try:
        answer = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return answer if isinstance(answer, (str, list)) else "worked"

def solve():
    X = [0.0, 0.5, 1.0]
    return sapm.solve(sapm.Regression(X, X), 2, 2, seeds=1, max_iter=1, progress=False)

def command(*arguments):
    from typer.testing import CliRunner
    from sapm.cli.main import app
    result = CliRunner().invoke(app, list(arguments))
    return [result.exit_code, result.stderr]

def forked(call):
    \"\"\"What the call says in a forked child.\"\"\"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, json.dumps(said(call)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)

def on_platform(name, call):
    def configured():
        os.environ["JAX_PLATFORMS"] = name  # read when JAX is imported
        return call()
    return configured

answers = {
    "unknown": forked(on_platform("nonsense", solve)),
    "no device": forked(on_platform("cuda", solve)),
    "command": forked(on_platform("nonsense", lambda: command("run", "transport_1d"))),
    "info": forked(on_platform("cuda", lambda: command("info"))),
}
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
import jax, warnings
warnings.simplefilter("ignore")  # JAX's own about forks
answers["after import"] = forked(solve)
jax.numpy.ones(2)
answers["after JAX"] = forked(solve)
answers["parent"] = said(solve)
answers["after solve"] = forked(solve)
print(json.dumps(answers))
"""


def test_platforms_that_are_not_there_and_forks():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    wrong = "ValueError: JAX_PLATFORMS: got 'nonsense', expected platforms of this machine"
    assert said["unknown"].startswith(wrong)
    assert said["unknown"].endswith("; set JAX_PLATFORMS=cpu, or unset it.")
    if "cuda" not in {device.platform for device in jax.devices()}:
        assert "JAX_PLATFORMS: got 'cuda', expected" in said["no device"]
        code, error = said["info"]
        assert code == 2 and error.startswith("sapm: JAX_PLATFORMS: got 'cuda'")
    code, error = said["command"]
    assert code == 2 and error.startswith("sapm: JAX_PLATFORMS: got 'nonsense'")
    assert len(error.strip().splitlines()) == 1
    assert said["parent"] == said["after import"] == "worked"
    for case in ("after JAX", "after solve"):
        assert said[case].startswith("RuntimeError: process ")
        assert "got a fork of a process that had used JAX" in said[case]
        assert said[case].endswith('start it by multiprocessing.get_context("spawn").')
