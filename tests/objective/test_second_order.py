"""Jets of second order are nested forward-mode derivatives; residuals of second order and nonlinear
ones are what was typed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import nested, relative
from problems import typed

import sapm
from sapm.numerics.activations import ACTIVATIONS, sincos
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.numerics.network import initialise
from sapm.objective.terms import second_order_term, squares

FORMS = {"a sum": ((1, 1),), "mixed signs": ((1, -1, 0), (0, 1, 1))}
SMOOTH = [sigma for sigma in ACTIVATIONS.values() if sigma.name != "relu"]


def input_jet(rng, forms, n=3, d=2) -> Jet:
    """Random points and, at each, random directions and seeds."""
    channels = len(forms[0]) + len(forms)
    return Jet(
        jnp.asarray(rng.normal(size=(n, d))), jnp.asarray(rng.normal(size=(n, channels, d))), forms
    )


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS.keys())
def test_jets_are_nested_derivatives(forms):
    """Through σ, through a layer, and through whole networks with and without a run of equal
    layers.
    """

    @jax.jit
    def both(x, key):
        found = []
        for sigma in SMOOTH:
            found.append((lift(sigma, x), nested(sigma, x.value, x)))
        for sigma, widths in (("sin", (2, 3, 3, 3, 2)), ("tanh", (2, 3, 4, 1))):
            network = initialise(key, widths, ACTIVATIONS[sigma], "xavier")

            def plain(p, network=network):
                return network(Jet(p, jnp.zeros((len(p), 0, 2)))).value

            found.append((network(x), nested(plain, x.value, x)))
        layer = Dense(jax.random.normal(key, (4, 2)), jnp.ones(4))
        found.append((layer(x), nested(lambda p: p @ layer.W.T + layer.b, x.value, x)))
        return found

    for seed in range(5):
        for jet, wanted in both(
            input_jet(np.random.default_rng(seed), forms), jax.random.key(seed)
        ):
            assert jet.forms == wanted.forms == forms
            assert (
                relative(jet.value, wanted.value) < 1e-13
                and relative(jet.tangents, wanted.tangents) < 1e-12
            )


def test_sincos_differentiates_again_and_again():
    x = np.linspace(-7, 7, 101)

    def f(x):
        return sincos(x)[0]

    for wanted in (np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin):
        assert np.allclose(jax.vmap(f)(x), wanted(x), atol=1e-15)
        f = jax.grad(f)


def test_squares_make_the_matrix():
    """Whatever its rank and signs; along the coordinates where it is diagonal."""
    rng = np.random.default_rng(0)
    B = rng.normal(size=(20, 3, 3))
    rank_one = np.einsum("ni,nj->nij", B[:, 0], B[:, 0])
    changing = np.zeros((20, 2, 2))
    changing[:, 0, 0], changing[:, 1, 1] = np.linspace(-1, 1, 20), 2.0
    for A, count in (
        (B + B.transpose(0, 2, 1), 6),
        (-rank_one, 1),
        (changing, 3),
        (0 * changing, 0),
        (np.eye(3)[None] * 4, 3),
    ):
        v, signs = squares(A)
        assert len(signs) <= count and np.allclose(
            np.einsum("k,nki,nkj->nij", signs, v, v), A, atol=1e-14
        )
    v, signs = squares(changing)
    assert (
        signs == (1, -1, 1) and np.count_nonzero(v[:, :2, 1]) == np.count_nonzero(v[:, 2, 0]) == 0
    )


RESIDUALS = {
    "heat": (lambda p, u: u.t - 0.3 * u.xx - p.x, ((-1,),)),
    "wave": (lambda p, u: u.tt - 4 * u.xx, ((1, -1),)),
    "all of it": (
        lambda p, u: (
            (1 + p.x**2) * u.xx + 3 * u.tx - u.tt * p.t + u.t - p.x * u.x + 5 * u.value - p.t
        ),
        ((-1, 1),),
    ),
    "of changing type": (lambda p, u: p.x * u.tt + u.xx, ((1, -1, 1),)),
    "reaction": (lambda p, u: u.t - p.x * u.x + p.t * u.value - 1, ()),
    "Burgers": (lambda p, u: u.t + u.value * u.x - 0.1 * u.xx, ((0, 1),)),
    "Monge-Ampère": (
        lambda p, u: u.tt * u.xx - u.tx**2 - jnp.exp(u.value) * p.x,
        ((1, 0, 0), (0, 1, 0), (-1, -1, 1)),
    ),
    "eikonal": (lambda p, u: jnp.sqrt(u.t**2 + u.x**2 + 0.1) - p.x * u.value, ()),
    "mixed alone": (lambda p, u: u.tx + jnp.sin(u.value), ((-1, -1, 1),)),
}


@pytest.mark.parametrize("name", RESIDUALS)
def test_terms_are_the_residual(name):
    """On a network, and with as many channels as are needed."""
    residual, forms = RESIDUALS[name]
    faces = [
        sapm.Initial(lambda p: 0.0),
        sapm.InitialVelocity(lambda p: 0.0),
        sapm.Dirichlet(lambda p: 0.0),
    ]
    problem = sapm.PDE(sapm.Box(t=(0, 1), x=(-1, 1)), residual, faces)
    samples = problem.samples(6, 6, 6)
    network = initialise(jax.random.key(0), (2, 5, 4, 1), ACTIVATIONS["tanh"], "xavier")

    def plain(row):
        return network(Jet(row[None], jnp.zeros((1, 0, 2)))).value[0, 0]

    for term in (samples.terms[0], samples.test_equation):
        wanted = jax.jit(lambda x: typed(residual, ("t", "x"), plain, x))(term.x.value)
        assert np.allclose(
            jax.jit(lambda t: t.residual(network(t.x)))(term)[:, 0], wanted, rtol=1e-12, atol=1e-13
        )
    assert samples.terms[0].x.forms == forms


def test_general_operators():
    """tr(A∇²u) + b·∇u + c0 u in three dimensions, A full and different at every sample."""
    rng = np.random.default_rng(3)
    x, B, b, c0 = (rng.normal(size=shape) for shape in ((8, 3), (8, 3, 3), (8, 3), 8))
    A = B + B.transpose(0, 2, 1)
    network = initialise(jax.random.key(1), (3, 6, 6, 1), ACTIVATIONS["sin"], "xavier")

    @jax.jit
    def wanted(x):
        def f(row):
            return network(Jet(row[None], jnp.zeros((1, 0, 3)))).value[0, 0]

        H, g, value = (jax.vmap(h(f))(x) for h in (jax.hessian, jax.grad, lambda f: f))
        return jnp.einsum("nij,nij->n", A, H) + jnp.sum(b * g, 1) + c0 * value

    term = second_order_term(x, A, b, c0, np.zeros(8))
    assert np.allclose(term.residual(network(term.x))[:, 0], wanted(x), rtol=1e-12, atol=1e-13)
