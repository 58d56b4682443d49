"""A network trained elsewhere is read, trained further and handed back in its own form, never worse
than it was.
"""

import copy
import warnings
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neural_network import MLPRegressor

import sapm
from sapm.driver.refine import judged
from sapm.driver.settings import plan
from sapm.results import imports

WIDTHS = (1, 8, 8, 1)  # one shape for most tests, so that they share one compiled program
SETTINGS = {"points": 40, "test_points": 40, "max_iter": 40, "progress": False}
X = np.linspace(-1, 1, 50)


def function():
    return sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(3 * p.x**2))


def pairs(widths=WIDTHS, seed=0):
    draw = np.random.default_rng(seed)
    sizes = zip(widths[1:], widths[:-1], strict=True)
    return [(draw.normal(size=(o, i)) / i**0.5, draw.normal(size=o)) for o, i in sizes]


def fitted(**settings):
    """An MLPRegressor that was trained, not far enough."""
    model = MLPRegressor(
        hidden_layer_sizes=WIDTHS[1:-1],
        solver="lbfgs",
        random_state=0,
        **({"max_iter": 3} | settings),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it did not converge
        return model.fit(X[:, None], np.sin(3 * X**2))


def mlp(activation=jnp.tanh, size=1, depth=2, **settings):
    return eqx.nn.MLP(
        size, size, 8, depth, activation=activation, key=jax.random.key(1), **settings
    )


def check(given, values, digits, **more):
    """Refine, and see that all there is agrees: the network, its measures, the result."""
    before = copy.deepcopy(given)
    found = sapm.refine(given, function(), **(SETTINGS | more))
    assert found.improved and type(found.network) is type(given) and found.network is not given
    assert found.after["mean_squared_loss"] < 1e-5 * found.before["mean_squared_loss"]
    assert found.after["test_error"] < 1e-2 < found.before["test_error"]
    h = found.result.history
    assert (
        h["loss"][0, 0]
        == h["mean_squared_loss"][0, 0]
        == pytest.approx(found.before["mean_squared_loss"], rel=1e-12)
    )
    assert (
        h["phase"] == "plain"
    ).all() and "weights: those given. Gauss-Newton: on the true" in str(found.result.summary())
    assert np.allclose(values(found.network), found.result.best(X), rtol=digits, atol=digits)
    assert np.array_equal(values(given), values(before)), "the one given was changed"
    assert not np.allclose(values(found.network), values(given), rtol=1e-2)
    x = found.result.samples.test["x"]
    wanted = found.result.samples.test["y"][:, 0]
    exact = np.linalg.norm(found.result.best(x) - wanted) / np.linalg.norm(wanted)
    assert found.after["test_error"] == pytest.approx(exact, rel=1e-6 if digits < 1e-6 else 1)
    assert "improved: true loss" in repr(found) and f"→ {found.after['test_error']:.2e}" in repr(
        found
    )
    return found


def forward(weights, sigma=np.tanh):
    z = X[:, None]
    for l, (W, b) in enumerate(weights):
        z = (sigma(z) if l else z) @ W.T + b
    return z[:, 0]


def test_pairs():
    found = check(pairs(), forward, 1e-12, activation="tanh")
    for W, b in found.network:
        assert W.dtype == b.dtype == np.float64 and W.flags.writeable
    lists = [[W.tolist(), b.tolist()] for W, b in pairs()]
    assert sapm.refine(lists, function(), activation=jnp.tanh, **SETTINGS).after == found.after


def test_solution():
    u = sapm.refine(
        pairs(), function(), activation="tanh", **(SETTINGS | {"max_iter": 2})
    ).result.best
    found = check(u, lambda u: u(x=X), 1e-12)
    assert found.network.names == ("x",) and found.network.sigma is u.sigma


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sklearn(dtype):
    given = fitted(activation="tanh")
    given.coefs_, given.intercepts_ = (
        [a.astype(dtype) for a in part] for part in (given.coefs_, given.intercepts_)
    )
    found = check(given, lambda m: m.predict(X[:, None]), 1e-12 if dtype is np.float64 else 1e-4)
    assert {a.dtype for a in found.network.coefs_ + found.network.intercepts_} == {np.dtype(dtype)}
    assert found.network.get_params() == given.get_params()
    for name, ours in {"logistic": "sigmoid", "relu": "relu"}.items():
        estimator = fitted(activation=name)
        assert imports.form_of(estimator).sigma(estimator, [], None).name == ours


@pytest.mark.slow
def test_equinox():
    found = check(mlp(), lambda m: np.asarray(jax.vmap(m)(X[:, None]))[:, 0], 1e-4)
    assert {a.dtype for a in jax.tree.leaves(eqx.filter(found.network, eqx.is_array))} == {
        np.dtype("float32")
    }
    with jax.enable_x64(True):
        given = mlp(size="scalar", dtype=jnp.float64)
        found = check(given, lambda m: np.asarray(jax.vmap(m)(X)), 1e-12)
        assert found.network.layers[0].weight.dtype == np.float64


def test_equinox_activations_and_scan():
    """Built-in activations are recognised by their values, others are kept; layers stacked for a
    scan come back stacked.
    """
    for f, name in (
        (jax.nn.relu, "relu"),
        (jnp.sin, "sin"),
        (lambda x: jnp.log1p(jnp.exp(x)), "softplus"),
        (jax.nn.silu, "silu"),
    ):
        given = mlp(f, depth=4, scan=True)
        form = imports.form_of(given)
        weights = imports.checked_weights(form.pairs(given))
        assert len(weights) == 5 and form.sigma(given, weights, None).name == name
        back = form.put(given, [(2 * W, b + 1) for W, b in weights])
        for old, new in zip(given.layers, back.layers, strict=True):
            assert np.array_equal(new.weight, 2 * old.weight) and np.array_equal(
                new.bias, old.bias + 1
            )
    assert form.sigma(given, weights, jax.nn.silu).name == "silu"
    with pytest.raises(
        ValueError,
        match="activation='tanh' is not what the network has, 'silu'; leave activation= out",
    ):
        form.sigma(given, weights, "tanh")


def test_few_digits_are_judged_as_they_are():
    """The measures are those of the weights handed back, not of the ones before they were rounded."""
    found = sapm.refine(mlp(dtype=jnp.float16), function(), **SETTINGS)
    weights = [
        tuple(np.asarray(a, float) for a in (layer.weight, layer.bias))
        for layer in found.network.layers
    ]
    x, y = (
        np.asarray(a)[:, 0]
        for a in (found.result.samples.terms[0].x.value, found.result.samples.terms[0].y)
    )
    rounded = np.mean((sapm.Solution(weights, ("x",), found.result.best.sigma, 0)(x) - y) ** 2)
    assert found.network.layers[0].weight.dtype == np.float16
    assert found.after["mean_squared_loss"] == pytest.approx(rounded, rel=1e-9)
    assert (
        rounded > 10 * found.result.table[0]["mean_squared_loss"]
        and "In double precision (result.best) the true loss is" in found.reason
    )
    again = sapm.refine(found.network, function(), **SETTINGS)
    assert again.after["mean_squared_loss"] <= found.after["mean_squared_loss"]


def test_never_worse():
    """Steps that are far too long, or none: what was given comes back, with the reason."""
    given = pairs()
    for more in (
        {"method": "adam", "options": {"learning_rate": 30.0}, "max_iter": 3},
        {"max_iter": 0},
    ):
        found = sapm.refine(given, function(), activation="tanh", **(SETTINGS | more))
        assert not found.improved and found.network is given and found.after == found.before
        assert (
            "as given" in repr(found)
            and "The loss did not fall, so this is the network that was given" in found.reason
        )
        assert found.result.table[0]["mean_squared_loss"] >= found.before["mean_squared_loss"]


@pytest.mark.slow
def test_pde_with_layers_of_different_width(tmp_path):
    """The first point is the network given; what was kept in a folder is read and continued as any
    run is.
    """
    problem = sapm.PDE(
        domain=sapm.Box(x=(0, 2)),
        residual=lambda p, u: u.x - jnp.cos(3 * p.x),
        conditions=sapm.Inflow(lambda p: 0.0 * p.x),
        exact=lambda p: jnp.sin(3 * p.x) / 3,
    )
    sizes = {
        "points": 40,
        "boundary_points": 1,
        "test_points": 30,
        "progress": False,
        "activation": "tanh",
    }
    found = sapm.refine(
        pairs((1, 5, 7, 1)), problem, max_iter=20, out=tmp_path, options={"bend": False}, **sizes
    )
    assert found.result.history["loss"][0, 0] == pytest.approx(
        found.before["mean_squared_loss"], rel=1e-12
    )
    assert found.after["mean_squared_loss"] < 1e-4 * found.before["mean_squared_loss"]
    assert found.after["solution_error"] < 0.1 < found.before[
        "solution_error"
    ] and found.result.config["width"] == [5, 7]
    assert found.after == pytest.approx(
        {name: found.result.table[0][name] for name in found.after}, rel=1e-9
    )
    assert found.before["test_residual"] > found.after["test_residual"] > 0
    assert np.allclose(forward(found.network), found.result.best(X), rtol=1e-12)
    assert "weights: those given" in str(sapm.load(tmp_path / "model.sapm").summary())
    more = sapm.resume(tmp_path, max_iter=22, progress=False)
    assert (
        more.table[0]["mean_squared_loss"] <= found.after["mean_squared_loss"]
        and more.table[0]["iterations"] == 22
    )


def test_sweeps_start_at_the_forward_pass():
    found = sapm.refine(
        pairs((1, 4, 1)), function(), activation="tanh", method="alternating", **SETTINGS
    )
    h = found.result.history
    assert h["loss"][0, 0] == pytest.approx(found.before["mean_squared_loss"], rel=1e-12)
    assert h["mean_squared_loss"][0, 0] == pytest.approx(
        found.before["mean_squared_loss"], rel=1e-12
    )
    assert found.improved and found.after["mean_squared_loss"] == pytest.approx(
        h["mean_squared_loss"][0, -1], rel=1e-9
    )


def test_validation_data_decide_too():
    """The best network on held-out data is kept, or the one given; "auto" leaves out the sweeps
    that prepare a random one.
    """
    wave = np.sin(3 * X)
    half = X[::2]
    settings = SETTINGS | {"activation": "tanh", "model": "ls", "method": "gauss-newton"}
    held_out = sapm.Regression(half, wave[::2], validation=(X[1::2], wave[1::2]))
    found = sapm.refine(pairs((1, 4, 1)), held_out, **settings)
    assert found.improved and found.after["validation_loss"] < 0.1 * found.before["validation_loss"]
    h = found.result.history
    assert h["validation_loss"][0, 0] == pytest.approx(found.before["validation_loss"], rel=1e-12)
    other = sapm.Regression(
        half, wave[::2], validation=(X[1::2], forward(pairs((1, 4, 1)))[1::2])
    )  # as the network is
    found = sapm.refine(pairs((1, 4, 1)), other, **settings)
    assert not found.improved and found.after["validation_loss"] == pytest.approx(0, abs=1e-20)
    before = {"mean_squared_loss": 1.0, "validation_loss": 1.0}
    after = {"mean_squared_loss": 0.5, "validation_loss": 1.5}
    assert not judged("old", "new", found.result, True, before, after, after).improved
    assert (
        judged("old", "new", found.result, True, before, dict.fromkeys(before, 0.5), after).network
        == "new"
    )
    assert (
        judged("old", "new", found.result, False, before, dict.fromkeys(before, 0.5), after).network
        == "old"
    )
    assert plan(held_out, 2, 4, from_network=True).why.startswith(
        "L-BFGS on the true loss, since held-out data end the training"
    )


# ---------------------------------------------------------------- torch


def test_torch():
    """Sequential, nested, or a class with functions between its layers; float32 and float64."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    nn = torch.nn
    torch.manual_seed(0)

    class Tanhs(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(1, 8)
            self.second = nn.Linear(8, 8)
            self.third = nn.Linear(8, 1)
            self.register_buffer("unused", torch.ones(3))

        def forward(self, x):
            return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))

    nested = nn.Sequential(
        nn.Sequential(nn.Linear(1, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)),
    )
    for given, dtype in (
        (Tanhs(), torch.float32),
        (nn.Sequential(nested, nn.Linear(8, 1)).eval(), torch.float64),
    ):
        given = given.to(dtype)
        given(torch.zeros(1, 1, dtype=dtype)).sum().backward()

        def values(module, dtype=dtype):
            return module(torch.tensor(X[:, None], dtype=dtype)).detach().numpy()[:, 0]

        found = check(given, values, 1e-12 if dtype == torch.float64 else 1e-4)
        assert {p.dtype for p in found.network.parameters()} == {
            dtype
        } and found.network.training == given.training
        assert all(p.grad is None and p.requires_grad for p in found.network.parameters())
        assert all(p.grad is not None for p in given.parameters())


def test_what_is_no_network():
    with pytest.raises(TypeError, match=r"give a list of \(W, b\), a torch.nn.Module"):
        sapm.refine(None, function())


def test_torch_activations_and_refusals():
    torch = pytest.importorskip("torch", exc_type=ImportError)
    nn = torch.nn
    torch.manual_seed(0)

    class Sin(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    def net(between, last=(), bias=True, first=()):
        return nn.Sequential(
            *first,
            nn.Linear(1, 8),
            between,
            nn.Linear(8, 8, bias=bias),
            between,
            nn.Linear(8, 1),
            *last,
        )

    def sigma(module, given=None):
        form = imports.form_of(module)
        return form.sigma(module, imports.checked_weights(form.pairs(module)), given)

    known = {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "softplus": nn.Softplus,
        "sin": Sin,
    }
    for name, kind in known.items():
        assert sigma(net(kind())).name == name
        assert sigma(net(kind()), name).name == name
    assert sigma(net(nn.SiLU()), jax.nn.silu).name == "silu"
    dead = net(nn.Tanh())
    nn.init.zeros_(dead[-1].weight)
    assert sigma(dead, "tanh").name == "tanh"
    tied = nn.Sequential(
        nn.Linear(1, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 1),
    )
    tied[4].weight = tied[2].weight

    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Linear(8, 8)
            self.a = nn.Linear(8, 8)
            self.c = nn.Linear(8, 8)

        def forward(self, x):
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))

    class Two(nn.Sequential):
        def forward(self, x, y):
            return super().forward(x + y)

    refused = {
        "Sequential does not compute what its Linear layers do, in the order they .* one of relu, sin": net(
            nn.LeakyReLU(0.2)
        ),
        "does not compute": net(nn.Tanh(), last=[nn.Sigmoid()]),
        "Crossed does not compute what": Crossed(),
        "computes the same with relu and sin and tanh and .* say which by activation=": dead,
        "has parameters besides those of plain Linear layers, '1.weight'": net(nn.PReLU()),
        "layers that share parameters": tied,
        "layer 2: got no bias, .* make the Linear layer with bias=True": net(nn.Tanh(), bias=False),
        "the network has depth 1 and so no hidden layer": nn.Linear(1, 1),
        r"Two cannot be called with points \(96, 1\) in double precision .* takes an array": Two(
            *net(nn.Tanh())
        ),
    }
    for sentence, module in refused.items():
        with pytest.raises(ValueError, match=sentence):
            sigma(module)
    with pytest.raises(ValueError, match="with tanh between them"):
        sigma(net(nn.ReLU()), "tanh")
    wide = sapm.Regression(
        50 * X, X
    )  # an activation that is like relu near 0, and not at the problem's points
    with pytest.raises(
        ValueError, match="at the problem's points differs from that of its layers with relu"
    ):
        sapm.refine(net(nn.Hardtanh(0.0, 15.0)), wide, progress=False)


# ---------------------------------------------------------------- refusals


def spoilt(l, change):
    weights = pairs()
    weights[l] = change(*weights[l])
    return weights


def odd_mlp(**settings):
    return sapm.refine(mlp(**settings), function())


def refine(network=None, problem=None, **settings):
    return sapm.refine(
        pairs() if network is None else network,
        problem or function(),
        **({"activation": "tanh"} | settings),
    )


CASES = {
    "activation missing": (
        lambda: refine(activation=None),
        ValueError,
        "do not say what is between the layers; give activation=",
    ),
    "activation unknown": (
        lambda: refine(activation="tan"),
        ValueError,
        "activation='tan' is not known",
    ),
    "W narrow": (
        lambda: refine(spoilt(1, lambda W, b: (W[:, :5], b))),
        ValueError,
        r"\(8, 5\), .* gives 8 values; W must",
    ),
    "b short": (
        lambda: refine(spoilt(1, lambda W, b: (W, b[:3]))),
        ValueError,
        r"layer 2 .* b \(3,\); give W \(out, in\)",
    ),
    "b a column": (
        lambda: refine(spoilt(0, lambda W, b: (W, b[:, None]))),
        ValueError,
        r"layer 1 has W .* and b \(8, 1\)",
    ),
    "no pair": (
        lambda: refine(spoilt(0, lambda W, b: W)),
        TypeError,
        r"layer 1 is a ndarray; give a pair \(W, b\)",
    ),
    "words": (
        lambda: refine(spoilt(0, lambda W, b: ("W", b))),
        TypeError,
        "W of layer 1 is a str that does not hold",
    ),
    "NaN": (
        lambda: refine(spoilt(2, lambda W, b: (W, b * np.nan))),
        ValueError,
        "b of layer 3 has nan; all weights must be finite: take the network from before its training diverged",
    ),
    "infinite": (
        lambda: refine(spoilt(0, lambda W, b: (W * np.inf, b))),
        ValueError,
        "W of layer 1 has -?inf",
    ),
    "no hidden layer": (
        lambda: refine(pairs((1, 1))),
        ValueError,
        "has depth 1 and so no hidden layer; give at least two",
    ),
    "empty": (lambda: refine([]), ValueError, "has depth 0"),
    "sizes": (
        lambda: refine(pairs((3, 8, 2))),
        ValueError,
        r"got \(inputs, outputs\) = \(3, 2\), expected \(1, 1\) for the coordinates x",
    ),
    "not a network": (
        lambda: refine("net.pt"),
        TypeError,
        r"network is a str; give a list of \(W, b\), a torch.nn.Module, an eq",
    ),
    "not a problem": (lambda: refine(problem=3), TypeError, "problem: got 3, expected a sapm.PDE"),
    "not fitted": (
        lambda: refine(MLPRegressor()),
        ValueError,
        r"MLPRegressor is not fitted, so it has no weights; call its fit",
    ),
    "linear estimator": (
        lambda: refine(fitted(activation="identity")),
        ValueError,
        "activation='identity', so it is a linear map",
    ),
    "another activation": (
        lambda: refine(fitted()),
        ValueError,
        "activation='tanh' is not what the network has, 'relu'",
    ),
    "hidden bias": (
        lambda: odd_mlp(use_bias=False),
        ValueError,
        "layer 1: got no bias, .* with use_bias=True and use_final_bias",
    ),
    "final bias": (lambda: odd_mlp(use_final_bias=False), ValueError, "layer 3: got no bias"),
    "final activation": (
        lambda: odd_mlp(final_activation=jnp.tanh),
        ValueError,
        "final_activation must be the identity",
    ),
    "learnt": (
        lambda: odd_mlp(activation=eqx.nn.PReLU()),
        ValueError,
        "the MLP's activation has parameters of its own",
    ),
    "lifted": (
        lambda: refine(options={"lifted": 5}),
        ValueError,
        "lifted: got 5, expected none: this phase prepares random networks",
    ),
    "option": (lambda: refine(options={"dampign": 5}), ValueError, "Did you mean 'damping'"),
    "callback": (lambda: refine(on_record=3), TypeError, "on_record: got 3, expected a function"),
    "mu": (lambda: refine(mu=-1), ValueError, "mu=-1 must be a positive"),
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name):
    call, error, sentence = CASES[name]
    with pytest.raises(error, match=sentence) as caught:
        call()
    assert str(caught.value).count("\n") == 0


def test_solutions_of_another_kind_are_refused():
    problem = sapm.Regression(np.ones((5, 2)), np.ones(5), names=("t", "x"))
    u = sapm.Solution(pairs((2, 4, 1)), ("x", "t"), imports.ACTIVATIONS["tanh"], 0)
    with pytest.raises(
        ValueError,
        match="network: got a function of x, t, expected one of t, x, the problem's coordinates",
    ):
        sapm.refine(u, problem)
    with pytest.raises(ValueError, match="a derivative cannot be refined; give u itself"):
        sapm.refine(u.d("x"), problem)
    with pytest.raises(TypeError, match=r"or a sapm.Solution. Its .best is one"):
        sapm.refine(SimpleNamespace(best=u), problem)  # as a Result has it


def test_a_test_error_that_rose_is_said():
    """The loss that was minimised fell, on data with noise."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (12, 1))
    line = [(np.full((8, 1), 0.1), np.zeros(8)), (np.full((1, 8), 1 / 0.8), np.zeros(1))]
    wrong = rng.normal(size=12)
    problem = sapm.Regression(x, x[:, 0] + wrong, test=(x, x[:, 0]))
    found = sapm.refine(line, problem, activation="tanh", progress=False, max_iter=30)
    assert found.improved and found.after["test_error"] > found.before["test_error"]
    assert repr(found).startswith(
        "<Refined: list, trained: true loss"
    ) and "The test error rose" in repr(found)
