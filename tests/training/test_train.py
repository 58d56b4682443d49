"""The loop: seeds side by side equal seeds apart, a failing seed harms no other, every end has a
reason, one compilation.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import relative

from sapm.methods.alternating import AlternatingEngine, alternating
from sapm.methods.descent import LBFGS_MEMORY, descent
from sapm.methods.window import Part, Work
from sapm.numerics.activations import relu, sin, tanh
from sapm.numerics.network import Network
from sapm.objective.penalty import Point, mean_square, objective, penalty
from sapm.objective.terms import pde_term, value_term
from sapm.objective.weights import ROUNDING
from sapm.training import seeds as seeding
from sapm.training.loop import train

pytestmark = pytest.mark.usefixtures("double_precision")


def regression(n=30):
    x = np.linspace(-1, 1, n)
    return value_term(x, np.sin(3 * x))


def transport(n=20):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, 2))
    boundary = rng.uniform(-1, 1, (n // 2, 2))
    return pde_term(x, np.c_[np.ones(n), x[:, 0]], np.cos(x[:, 0])), value_term(
        boundary, np.sin(boundary[:, 0])
    )


METHODS = {
    "alternating": lambda: alternating(objective([regression()], 3), (1, 4, 4, 1), relu),
    "pinn": lambda: alternating(objective(transport(), 3), (2, 3, 3, 1), sin, start="forward"),
}


@pytest.mark.parametrize("kind", METHODS)
def test_seeds_together_equal_seeds_apart(kind, monkeypatch):
    """Vmapped, in batches, or alone: 1e-12 apart after one sweep, from the same start bit for bit."""
    method = METHODS[kind]()
    together = train(method, 1, seeds=[7, 3, 11, 5])
    alone = train(method, 1, seeds=[11])
    runs = [together.state(2)]
    if kind == "alternating":
        monkeypatch.setattr(seeding, "CORE_CACHE_BYTES", 1)
        runs.append(train(method, 1, seeds=[7, 3, 11, 5]).state(2))
    for run in runs:
        for x, y in zip(jax.tree.leaves(run), jax.tree.leaves(alone.state(0)), strict=True):
            assert np.max(np.abs(x - y), initial=0) <= 1e-12 * (1 + np.max(np.abs(y), initial=0))
    assert together.history["loss"][2, 0] == alone.history["loss"][0, 0]


class Faulty(AlternatingEngine):
    """The alternating engine, except that b_1 of a marked seed turns NaN (the mark: a length at
    layer L, which nothing else uses).
    """

    def blocks(self):
        def spoil(work):
            marked = work.parts[0].length[-1, 0] == 7
            return jax.tree.map(lambda x: x + jnp.where(marked, jnp.nan, 0.0), work)

        return [*super().blocks()[:-1], ("block b of layer 1", spoil)]

    def step(self, state):
        for _, block in self.blocks():
            state = block(state)
        return state


def test_a_failing_seed_harms_no_other():
    """It is named with block and iteration and keeps its last finite state; the others run as if it
    were not there.
    """
    plain = METHODS["alternating"]()
    faulty = Faulty(
        plain.objective,
        plain.widths,
        plain.sigma,
        plain.order,
        plain.guard,
        plain.initialiser,
        plain.start,
        plain.loop,
        plain.precision,
    )
    clean = jax.vmap(faulty.init)(jax.vmap(jax.random.key)(jnp.arange(3)))
    part = clean.parts[0]
    part = Part(part.aux, part.lifted, part.defect, part.length.at[1, -1, 0].set(7))
    result, wanted = (
        train(faulty, 6, seeds=3, record_every=4, initial=s)
        for s in (Work(clean.network, (part,), clean.norms), clean)
    )
    assert result.status == ("finished", "non-finite", "finished")
    assert result.reason[1] == "non-finite numbers came from block b of layer 1 in iteration 1."
    assert list(result.history["iteration"][:, -1]) == [6, 0, 6]
    assert np.all(np.isfinite(result.history["loss"])) and all(
        np.all(np.isfinite(x)) for x in jax.tree.leaves(result.states)
    )
    for i in (0, 2):
        assert np.array_equal(result.history["loss"][i], wanted.history["loss"][i])
    assert result.best in (0, 2)


def test_stalled_and_bad_starts():
    """A loss that cannot fall stops as stalled, with the iterations it took; a start that overflows
    is named as such.
    """
    x = np.linspace(-1, 1, 20)
    crawling = descent(objective([value_term(x, x)], 2, "ls"), (1, 3, 1), tanh, "gd", rate=1e-30)
    result = train(crawling, 400, seeds=2, record_every=10, patience=50)
    assert result.status == ("stalled", "stalled")
    assert (
        result.reason[0]
        == "the loss fell by less than a fraction 1e-09 in the last 50 of 50 iterations."
    )
    overflow = alternating(objective([value_term(x, 1e200 * x)], 2), (1, 3, 1), tanh)
    result = train(overflow, 5, seeds=2)
    assert result.status == ("non-finite", "non-finite")
    assert result.reason[0] == "the loss of the starting point is not finite."


def test_one_compilation_per_method_and_shape(monkeypatch):
    """New data, seeds, rates and numbers of sweeps reuse the program; a new shape compiles one
    more.
    """
    monkeypatch.setattr(
        "sapm.training.loop.room", lambda n, *_: seeding.Room(n, n, False)
    )  # GPUs have another for half the seeds
    seeding.chunk.clear_cache()
    for seed in range(3):
        term = value_term(np.random.default_rng(seed).uniform(-1, 1, 30), np.ones(30))
        train(
            alternating(objective([term], 3), (1, 4, 4, 1), relu),
            3 + seed,
            seeds=[seed, 9],
            record_every=2,
        )
    assert seeding.chunk._cache_size() == 1
    for rate in (1e-2, 1e-3):
        train(descent(objective([regression()], 2, "ls"), (1, 4, 1), relu, "gd", rate), 3, seeds=2)
    assert seeding.chunk._cache_size() == 2
    train(alternating(objective([regression()], 3), (1, 5, 5, 1), relu), 2, seeds=2)
    assert seeding.chunk._cache_size() == 3


@pytest.mark.parametrize(
    ("name", "model", "kind"),
    [
        ("gd", "ls", "regression"),
        ("adam", "ls", "regression"),
        ("lbfgs", "ls", "regression"),
        ("adam", "sapm", "regression"),
        ("gd", "pm", "regression"),
        ("adam", "sapm", "transport"),
        ("gd", "pm", "transport"),
    ],
)
def test_descent_lowers_every_loss(name, model, kind):
    """And with SAPM the theorem holds at every record."""
    obj = objective([regression()] if kind == "regression" else transport(), 3, model)
    result = train(
        descent(
            obj,
            (1 if kind == "regression" else 2, 6, 6, 1),
            tanh,
            name,
            rate=0.1 if name == "gd" else 1e-2,
            halving=300,
            start="noise",
        ),
        200,
        seeds=3,
    )
    loss = result.history["loss"]
    assert np.all(loss[:, -1] < loss[:, 0])
    assert np.median(loss[:, -1] / loss[:, 0]) < (0.9 if model == "pm" else 0.5)
    if model == "ls":
        assert np.all(result.history["bound_ratio"] == 1)
    if model == "sapm":
        assert np.all(result.history["bound_ratio"] <= 1 + ROUNDING)


def test_weights_per_sample_and_one_input():
    """Equal weights given one by one are the same problem; a single input may be given as a plain
    vector.
    """
    x = np.linspace(-1, 1, 20)
    runs = [
        train(alternating(objective([value_term(x, x**2, w)], 2), (1, 4, 1), "tanh"), 5, seeds=1)
        for w in (2.0, np.full(20, 2.0))
    ]
    assert relative(*(r.history["loss"] for r in runs)) < 1e-10


def test_old_states_are_freed():
    """A long run holds the arrays of one state, not of all it went through."""
    method = METHODS["alternating"]()
    train(method, 3, seeds=2)
    before = len(jax.live_arrays())
    train(method, 60, seeds=2)
    assert len(jax.live_arrays()) <= before + 5


@pytest.mark.parametrize(
    ("name", "model"),
    [(name, model) for name in ("gd", "adam", "lbfgs") for model in ("ls", "sapm")]
    + [("gd", "pm")],
)
def test_steps_of_descent(name, model):
    """On a PDE they are those of optax, on the loss stated here and its `jax.grad`, with a rate
    that halves every two iterations.
    """

    def rate(k):
        return 0.1 * 0.5 ** (jnp.asarray(k, float) / 2)

    def loss(variables):
        network = variables.network if isinstance(variables, Point) else variables
        sizes = 0.3 * sum(jnp.sum(layer.W**2) for layer in network.stack.layers())
        if isinstance(variables, Point):
            return penalty(replace(obj, l2=0.0), variables) + sizes
        return mean_square(variables, obj.terms) + sizes

    obj = objective(transport(), 2, model, l2=0.3)
    engine = descent(obj, (2, 4, 1), tanh, name, rate=0.1, halving=2, start="noise")
    optimiser = {
        "gd": optax.with_extra_args_support(optax.sgd(rate)),
        "adam": optax.with_extra_args_support(optax.adam(rate)),
        "lbfgs": optax.lbfgs(memory_size=LBFGS_MEMORY),
    }[name]

    @jax.jit
    def by_hand(x, memory):
        value, slope = jax.value_and_grad(loss)(x)
        more = {"value": value, "grad": slope, "value_fn": loss}
        change, memory = optimiser.update(slope, memory, x, **more)
        return optax.apply_updates(x, change), memory

    state = engine.init(jax.random.key(0))
    x = state.variables
    assert isinstance(x, Network if model == "ls" else Point)
    memory = optimiser.init(x)
    step = eqx.filter_jit(engine.step)
    for _ in range(3):
        state = step(state)
        x, memory = by_hand(x, memory)
    assert float(loss(x)) < float(loss(engine.init(jax.random.key(0)).variables))
    for got, wanted in zip(jax.tree.leaves(state.variables), jax.tree.leaves(x), strict=True):
        assert got.shape == wanted.shape and (got.size == 0 or relative(got, wanted) < 1e-9)
    np.testing.assert_allclose(engine.losses(state)[0], loss(x), rtol=1e-9)


def test_refusals():
    obj = objective([regression()], 3)
    cases = [
        (
            lambda: alternating(objective([regression()], 3, "ls"), (1, 4, 4, 1), relu),
            "got model 'ls', expected 'pm' or 'sapm'",
        ),
        (
            lambda: alternating(obj, (1, 4, 1), relu),
            "describe depth 2, but the objective has depth 3",
        ),
        (lambda: alternating(obj, (1, 4, 4, 1), relu, order=(("a", 3),)), r"order: got \('a', 3\)"),
        (
            lambda: alternating(obj, (1, 4, 4, 3), relu),
            "are for 1 inputs and 3 outputs, but a term has 1 and 1",
        ),
        (lambda: descent(obj, (2, 4, 4, 1), "tanh"), "are for 2 inputs and 1 outputs"),
        (lambda: objective([], 3), "at least one term"),
        (
            lambda: train(METHODS["alternating"](), 5, seeds=2, initial=np.ones((3, 1))),
            "initial: got states of 3 seeds, expected 2",
        ),
        (lambda: train(METHODS["alternating"](), 5, seeds=[]), "seeds: got none"),
        (lambda: train(METHODS["alternating"](), -1), "iterations=-1"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            call()


@pytest.mark.slow_cases("pinn")
@pytest.mark.parametrize("kind", METHODS)
def test_mixed_precision_keeps_its_types_and_follows_double(kind):
    """Samples in float32, weights and sums in float64, after any number of sweeps; two sweeps are
    those of float64 nearly.
    """
    double = METHODS[kind]()
    mixed = alternating(
        double.objective, double.widths, double.sigma, start=double.start, precision="mixed"
    )
    runs = [train(method, 2, seeds=2) for method in (double, mixed)]
    np.testing.assert_allclose(runs[1].history["loss"], runs[0].history["loss"], rtol=1e-3)
    work = runs[1].states
    assert {x.dtype for x in jax.tree.leaves(work.parts)} == {np.dtype("float32")}
    assert {
        x.dtype
        for x in jax.tree.leaves((work.network, work.norms.s, work.norms.tau, work.norms.out))
    } == {np.dtype("float64")}
    assert all(
        np.all(np.diff(run.history["loss"]) <= 1e-6 * run.history["loss"][:, :-1]) for run in runs
    )
