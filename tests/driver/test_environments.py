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


def decay():
    return sapm.PDE(
        sapm.Box(x=(0, 1)), lambda p, u: u.x + u.value**2, [sapm.Dirichlet(1, faces=["x-"])]
    )


def solved(problem, **settings):
    small = {"depth": 2, "width": 3, "seeds": 1, "max_iter": 1, "points": 10} | settings
    return sapm.solve(problem, boundary_points=2, test_points=5, progress=False, **small)


def numbers():
    """Numbers from training, from evaluation by NumPy and within JAX, and from the estimator."""
    result = solved(decay())
    u = result.best
    inside = jax.jit(jax.vmap(jax.grad(lambda x: u(x=x) * u(x=0.5))))
    x = jnp.asarray(X, jnp.float32)
    model = sapm.SAPMRegressor(depth=2, width=3, max_iter=3, alpha=0.1).fit(X[:, None], X)
    parts = (result.run.final("loss"), u.d("x")(x=X), inside(x), u(x=x), model.predict(X[:, None]))
    return [np.asarray(part).tolist() for part in parts]


def test_settings_of_jax_change_nothing():
    """The numbers are the same, and the settings are there afterwards."""
    usual = numbers()
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.disable_jit(True),
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.enable_checks(True),
    ):
        assert numbers() == usual
        kept = ("strict", "raise", True, True)
        names = ("numpy_dtype_promotion", "numpy_rank_promotion", "disable_jit", "debug_nans")
        assert tuple(getattr(jax.config, f"jax_{name}") for name in names) == kept


def traced(transformation, call):
    """The call within jit, vmap or grad. Its error is raised outside, where JAX adds no notes."""

    def outside():
        errors = []

        def function(a):
            try:
                call(a)
            except RuntimeError as error:
                errors.append(error)
            return a * 1.0

        transformation(function)(1.0)
        for error in errors:
            raise error

    return outside


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
import json, os
import sapm

def said(call):
    try:
        answer = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return answer if isinstance(answer, (str, list)) else "worked"

def state():
    return sapm.Function(sapm.Box(x=(0, 1)), lambda p: p.x).samples(points=5, test_points=0)

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

def platforms():
    \"\"\"What is said for platforms that are not there; nothing of JAX is known yet.\"\"\"
    os.environ["JAX_PLATFORMS"] = "nonsense"  # read when JAX is imported
    unknown = [said(state), command("run", "transport_1d")]
    import jax
    os.environ["JAX_PLATFORMS"] = "cuda"
    jax.config.update("jax_platforms", "cuda")
    return unknown + [said(state), command("info")]

answers = {"platforms": forked(platforms)}
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
import jax, warnings
warnings.simplefilter("ignore")  # JAX's own about forks
answers["after import"] = forked(state)
sapm.Regression([[0.0], [1.0]], [0.0, 1.0])
answers["after data"] = forked(state)
jax.numpy.ones(2)
answers["after JAX"] = forked(state)
answers["parent"] = said(state)
answers["after sapm"] = forked(state)
print(json.dumps(answers))
"""


def test_platforms_that_are_not_there_and_forks():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    unknown, run, without_device, info = said["platforms"]
    wrong = "JAX_PLATFORMS: got 'nonsense', expected platforms of this machine"
    assert unknown.startswith(f"ValueError: {wrong}")
    assert unknown.endswith("; set JAX_PLATFORMS=cpu, or unset it.")
    assert run[0] == 2 and run[1].startswith(f"sapm: {wrong}") and run[1].count("\n") == 1
    if "cuda" not in {device.platform for device in jax.devices()}:
        assert "JAX_PLATFORMS: got 'cuda', expected" in without_device
        assert info[0] == 2 and info[1].startswith("sapm: JAX_PLATFORMS: got 'cuda'")
    assert said["parent"] == said["after import"] == said["after data"] == "worked"
    for case in ("after JAX", "after sapm"):
        assert said[case].startswith("RuntimeError: process ")
        assert "got a fork of a process that had used JAX" in said[case]
        assert said[case].endswith('start it by multiprocessing.get_context("spawn").')
