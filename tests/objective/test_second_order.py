"""Terms of second order are what was given: A as a sum of squares, and the whole operator."""

import jax
import jax.numpy as jnp
import numpy as np

from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.jets import Jet
from sapm.numerics.network import initialise
from sapm.objective.terms import second_order_term, squares


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
            np.einsum("k,nki,nkj->nij", signs, v, v), A, rtol=1e-12, atol=1e-14
        )
    v, signs = squares(changing)
    assert (
        signs == (1, -1, 1) and np.count_nonzero(v[:, :2, 1]) == np.count_nonzero(v[:, 2, 0]) == 0
    )


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
