"""Several devices: one device = many, whatever the samples' number; only sums over samples cross
between them.
"""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from traffic import traffic

import sapm
from sapm.methods.alternating import alternating
from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.numerics.activations import sin, tanh
from sapm.objective.penalty import objective
from sapm.objective.terms import pde_term, second_order_term, value_term
from sapm.training.devices import Layout, mesh_of
from sapm.training.loop import train
from sapm.training.seeds import chunk

needs_eight = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="fewer than eight devices: on a GPU machine JAX sees no others"
)
pytestmark = [needs_eight, pytest.mark.usefixtures("double_precision")]


def regression(n=53):
    x = np.linspace(-1, 1, n)
    return value_term(x, np.sin(3 * x))


def transport(n=53):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, 2))
    boundary = rng.uniform(-1, 1, (n // 2, 2))
    return pde_term(x, np.c_[np.ones(n), x[:, 0]], np.cos(x[:, 0])), value_term(
        boundary, np.sin(boundary[:, 0])
    )


def rod(n=21):
    """u'' + u = cos x: a term of second order that contains u itself."""
    x = np.linspace(-1, 1, n)[:, None]
    return second_order_term(x, np.ones((n, 1, 1)), np.zeros((n, 1)), np.ones(n), np.cos(x[:, 0]))


METHODS = {
    "sweeps": lambda: alternating(objective([regression()], 4), (1, 5, 5, 5, 1), tanh),
    "sweeps, pde": lambda: alternating(objective(transport(), 2), (2, 4, 1), sin, start="forward"),
    "sweeps, pm": lambda: alternating(objective([regression()], 3, "pm"), (1, 4, 4, 1), tanh),
    "sweeps, mixed": lambda: alternating(
        objective([regression()], 3), (1, 4, 4, 1), tanh, precision="mixed"
    ),
    "sweeps, second order": lambda: alternating(
        objective([rod()], 2), (1, 3, 1), sin, start="forward"
    ),
    "second order": lambda: gauss_newton(objective([rod()], 2), (1, 3, 1), tanh, lifted=3),
    "primal": lambda: gauss_newton(
        objective(transport(), 2), (2, 4, 1), tanh, lifted=3, algebra="primal"
    ),
    "dual": lambda: gauss_newton(
        objective([regression()], 3, "ls"), (1, 5, 5, 1), tanh, algebra="dual"
    ),
    "dense": lambda: gauss_newton(
        objective([regression()], 3, "ls"), (1, 5, 5, 1), tanh, algebra="dense"
    ),
    "free": lambda: gauss_newton(
        objective([regression()], 2, "ls"), (1, 5, 1), tanh, algebra="free"
    ),
    "adam": lambda: descent(objective([regression()], 3), (1, 4, 4, 1), tanh, "adam", 1e-2, 1.0),
    "lbfgs": lambda: descent(objective([regression()], 2), (1, 4, 1), tanh, "lbfgs", 1.0, 1.0),
    "gd": lambda: descent(objective([regression()], 3, "ls"), (1, 4, 4, 1), tanh, "gd", 0.1, 1.0),
}
STEPS = {"sweeps": 20, "sweeps, pde": 5, "sweeps, second order": 4}
# another order of summation may change a number of float32 by its last digit
RELATIVE_DIFFERENCES = {"sweeps, mixed": 1e-5}


def mesh(seeds: int, samples: int) -> Mesh:
    return Mesh(
        np.array(jax.devices()[: seeds * samples]).reshape(seeds, samples), ("seeds", "samples")
    )


@pytest.mark.slow_cases("sweeps, second order", "gd", "lbfgs")
@pytest.mark.parametrize("kind", METHODS)
def test_one_device_equals_several(kind, monkeypatch):
    """53 samples on 2 × 4 devices: the history and the states of one device, up to the order of
    summation.
    """
    monkeypatch.setattr(
        "sapm.methods.gauss_newton.CG_TOLERANCE", 1e-14
    )  # conjugate gradients stop where rounding does not show
    method = METHODS[kind]()
    steps = STEPS.get(kind, 6)
    alone, shared = (train(method, steps, seeds=2, mesh=m) for m in (None, mesh(2, 4)))
    for name in ("loss", "mean_squared_loss"):
        np.testing.assert_allclose(
            shared.history[name], alone.history[name], rtol=RELATIVE_DIFFERENCES.get(kind, 1e-9)
        )
    assert np.all(alone.history["loss"][:, -1] < alone.history["loss"][:, 0])
    for x, y in zip(jax.tree.leaves(shared.states), jax.tree.leaves(alone.states), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        if np.issubdtype(x.dtype, np.floating) and x.size:
            most = RELATIVE_DIFFERENCES.get(kind, 1e-6)
            assert np.max(np.abs(x - y)) <= most * (1 + np.max(np.abs(y)))


def crossing(method, devices: int) -> dict[str, int]:
    """The bytes that a step moves between devices, by kind of operation, from the compiled program."""
    layout = Layout.of(method, 1, mesh(1, devices))
    states = layout.divided(train(method, 0, seeds=1).states)
    return traffic(chunk.lower(layout.engine(method), states, None, 1, layout).compile().as_text())


@pytest.mark.parametrize("terms", [lambda n: [regression(n)], transport])
def test_only_sums_cross_and_they_do_not_grow_with_the_samples(terms):
    depth = 2

    def method(n):
        made = terms(n)
        return alternating(
            objective(made, depth),
            (made[0].x.value.shape[1], *[6] * (depth - 1), 1),
            tanh,
            start="forward",
        )

    few, many = (crossing(method(n), 4) for n in (40, 400))
    assert few == many
    assert set(few) == {"all-reduce"}
    assert few["all-reduce"] < 8 * 20 * (6 + 1) ** 2 * depth


def test_a_run_goes_on_with_other_devices(tmp_path):
    problem = sapm.Regression(np.linspace(-1, 1, 21), np.sin(3 * np.linspace(-1, 1, 21)))
    given = {"depth": 3, "width": 4, "method": "alternating", "seeds": 2, "progress": False}
    uncut = sapm.solve(problem, **given, max_iter=6)
    cut = sapm.solve(problem, **given, max_iter=3, devices=8, out=tmp_path / "run")
    more = sapm.resume(tmp_path / "run", max_iter=6, devices=3, progress=False)
    np.testing.assert_allclose(more.history["loss"], uncut.history["loss"], rtol=1e-9)
    np.testing.assert_allclose(cut.history["loss"], uncut.history["loss"][:, :4], rtol=1e-9)


def test_meshes():
    """Seeds are taken apart first: they need not talk."""

    def shape(devices, seeds):
        return dict(mesh_of(devices, seeds).shape)

    assert shape(8, 10) == {"seeds": 2, "samples": 4}
    assert shape("auto", 16) == {"seeds": 8, "samples": 1}
    assert shape(6, 1) == {"seeds": 1, "samples": 6}
    assert mesh_of(None, 10) is None and mesh_of(1, 10) is None
    own = Mesh(np.array(jax.devices()[:2]), ("samples",))
    assert dict(mesh_of(own, 3).shape) == {"samples": 2}
    explicit = jax.make_mesh((2, 2), ("seeds", "samples"), devices=jax.devices()[:4])
    run = train(METHODS["sweeps"](), 1, seeds=2, mesh=mesh_of(explicit, 2))
    assert np.isfinite(run.history["loss"]).all()


def test_traffic_is_read_off_a_program():
    text = """
  %a = (f64[2,3]{1,0}, f64[]) all-reduce(%x, %y), channel_id=1
  %b = f32[4]{0} all-to-all(%z)
  ROOT %c = f64[5]{0} all-gather-start(%w)
  %d = f64[100]{0} add(%p, %q)
"""
    assert traffic(text) == {"all-reduce": 56, "all-to-all": 16, "all-gather": 40}


def test_a_seed_that_breaks_is_named_on_several_devices():
    x = np.linspace(-1, 1, 9)
    method = descent(
        objective([value_term(x, 1e200 * x)], 3, "ls"), (1, 3, 3, 1), tanh, "gd", 1e200, 1.0
    )
    run = train(method, 5, seeds=2, mesh=mesh(2, 2))
    assert set(run.status) == {"non-finite"}
    assert all(
        np.isfinite(leaf).all()
        for leaf in jax.tree.leaves(run.states)
        if np.issubdtype(leaf.dtype, np.floating)
    )


REFUSED = {
    "too many": (999, "JAX sees"),
    "none": (0, "give 1 to"),
    "a word": ("all", "give 'auto'"),
    "truth": (True, "give 'auto'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    given, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=words):
        sapm.solve(sapm.Regression([0.0, 1.0], [0.0, 1.0]), devices=given, progress=False)


def test_too_few_threads(monkeypatch):
    monkeypatch.setenv("NPROC", "2")
    with pytest.raises(ValueError, match="set the environment variable NPROC to 16"):
        mesh_of(4, 1)


@pytest.mark.parametrize("devices", [2, Mesh(np.array(jax.devices()[:2]), ("samples",))])
def test_data_on_disk_have_one_device(devices):
    problem = sapm.Regression([0.0, 0.5, 1.0], [0.0, 1.0, 0.0])
    with pytest.raises(
        ValueError, match="several devices or processes for data on disk, expected one"
    ):
        sapm.solve(
            problem, method="alternating", options={"chunk": 2}, devices=devices, progress=False
        )


def test_meshes_that_do_not_fit():
    two = np.array(jax.devices()[:2])
    with pytest.raises(ValueError, match="axes rows, expected"):
        mesh_of(Mesh(two, ("rows",)), 2)
    with pytest.raises(ValueError, match="expected a multiple of 2,"):
        mesh_of(Mesh(two, ("seeds",)), 3)
