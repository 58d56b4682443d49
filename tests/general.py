"""Terms with ψ itself, second derivatives and nonlinear functions: small random ones; their weights
and losses in slow NumPy.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import reference as ref

from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.network import Network
from sapm.objective.penalty import Objective, Point, objective, start_point
from sapm.objective.terms import flux_term, nonlinear_term, pde_term, second_order_term, value_term


def _reaction(rng, x, edge):
    """c·∇u + c0 u = f, beside a Robin condition."""
    n = len(x)
    m = len(edge)
    inner = pde_term(x, rng.normal(size=x.shape), rng.normal(size=n), c0=rng.normal(size=n))
    return [
        inner,
        flux_term(
            edge, rng.normal(size=edge.shape), rng.normal(size=m), 0.7, c0=rng.normal(size=m)
        ),
    ]


def _second(rng, x, edge):
    """tr(A∇²u) + b·∇u + c0 u with A full, indefinite and different at every sample; u given at
    other points.
    """
    A = np.array([[[1.0, q], [q, -2.0]] for q in rng.normal(size=len(x))])
    parts = (rng.normal(size=shape) for shape in (x.shape, len(x), len(x)))
    return [second_order_term(x, A, *parts), value_term(edge, rng.normal(size=len(edge)), 1.7)]


def _laplace(rng, x, edge):
    """Δu = f without u itself, and a flux."""
    A = np.broadcast_to(np.eye(2), (len(x), 2, 2))
    inner = second_order_term(x, A, np.zeros_like(x), None, rng.normal(size=len(x)))
    return [inner, flux_term(edge, rng.normal(size=edge.shape), rng.normal(size=len(edge)))]


def bent(x, u, d):
    """u_1 + u u_2 - u_12 / 2 + sin(u) + x_1 (of u_22 a share, too): three tangents, two
    second-order channels.
    """
    return d[0] + u * d[1] - 0.25 * d[3] + 0.1 * d[4] ** 2 / (1 + d[4] ** 2) + jnp.sin(u) + x[0]


def _nonlinear(rng, x, edge):
    directions = np.array([[1.0, 0], [0, 1], [1, 1]])
    return [
        nonlinear_term(x, directions, ((-1, -1, 1), (0, 1, 0)), bent),
        value_term(edge, rng.normal(size=len(edge))),
    ]


TERMS = {"reaction": _reaction, "second": _second, "laplace": _laplace, "nonlinear": _nonlinear}


def random_case(
    name: str, model: str, seed: int, widths=(2, 3, 3, 1), sigma="sin", noise=0.3, scale=1.0, n=5
) -> tuple:
    """(objective, point): random data, α, β and weights; auxiliary variables of the forward pass
    plus noise.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    edge = rng.uniform(-1, 1, (n - 2, 2))
    L = len(widths) - 1
    draw = lambda *shape: jnp.asarray(scale * rng.normal(size=shape))
    obj = objective(
        TERMS[name](rng, x, edge), L, model, rng.uniform(0.3, 3, L), rng.uniform(0.3, 3, L - 1)
    )
    network = Network.of(
        [(draw(o, i) / i**0.5, draw(o)) for i, o in pairwise(widths)], ACTIVATIONS[sigma]
    )
    aux = forward(obj, network).aux
    return obj, Point(network, jax.tree.map(lambda a: a + noise * rng.normal(size=a.shape), aux))


forward = jax.jit(lambda obj, network: start_point(jax.random.key(0), obj, network, "forward"))


def lifted(act, a, d, forms):
    """σ on one sample's value a (m,) and channels d (k, m), written out."""
    s, ds, dds = (f(a) for f in act)
    out = [ds * x for x in d]
    k = len(forms[0]) if forms else len(d)
    for q, form in enumerate(forms):
        out[k + q] = out[k + q] + dds * sum(sign * d[i] ** 2 for i, sign in enumerate(form))
    return s, np.array(out).reshape(d.shape)


def weights(obj: Objective, point: Point, i: int, n: int) -> list[tuple]:
    """Of sample n of term i, for each layer: the weights of its value, tangent and second-order
    defects, κ_n left out.
    """
    term = obj.terms[i]
    L = obj.depth
    W, b = zip(*point.network.weights, strict=True)
    beta = np.asarray(obj.beta[i])
    alpha = np.asarray(obj.alpha[i])
    forms = term.x.forms
    if obj.model == "pm":
        return [(beta[l], alpha[l], alpha[l]) for l in range(L)]
    act = ref.ACTIVATIONS[point.network.sigma.name]
    k = len(forms[0]) if forms else term.channels
    jets = [np.asarray(u.tangents)[n] for u in point.aux[i].layers()]
    z = np.asarray(term.x.value)[n]
    dz = np.asarray(term.x.tangents)[n]
    t = []
    q = []
    p = []
    for l in range(L):
        # the forward pass
        a = W[l] @ z + b[l]
        d = dz @ W[l].T
        z, dz = lifted(act, a, d, forms)
        t.append(np.sum(jets[l][:k] ** 2))
        q.append(np.sum(jets[l][k:] ** 2))
        p.append(np.sum((jets[l][:k] + d[:k]) ** 2))
    found = []
    contains_u = term.channels > 0 and term.uses_value
    for l in range(L):
        omega = np.prod([np.sum(W[j] ** 2) for j in range(l + 1, L)])
        value, tangent = (0.0, 1.0) if term.channels else (1.0, 1.0)
        for m in range(l, L - 1):
            value += t[m] if term.channels else 0.0
            if forms:
                value += q[m] + t[m] ** 2 + sum(t[m] * p[j] for j in range(m + 1, L - 1))
                tangent += p[m]
        found.append(
            (beta[l] * omega * (value + contains_u), alpha[l] * omega * tangent, alpha[l] * omega)
        )
    return found


def slow_loss(obj: Objective, point: Point) -> float:
    """The penalty loss, sample by sample and layer by layer."""
    total = 0.0
    L = obj.depth
    W, b = zip(*point.network.weights, strict=True)
    act = ref.ACTIVATIONS[point.network.sigma.name]
    for i, term in enumerate(obj.terms):
        forms = term.x.forms
        kappa = np.broadcast_to(term.weight, len(term.y))
        k = len(forms[0]) if forms else term.channels
        values = [np.asarray(u.value) for u in point.aux[i].layers()]
        jets = [np.asarray(u.tangents) for u in point.aux[i].layers()]
        for n, y in enumerate(np.asarray(term.y)):
            z = np.asarray(term.x.value)[n]
            dz = np.asarray(term.x.tangents)[n]
            for l, (wv, wt, ws) in enumerate(weights(obj, point, i, n)):
                goal = values[l][n] if values[l].size else (0.0 if term.channels else y)
                r = W[l] @ z + b[l] - goal
                dr = dz @ W[l].T - jets[l][n]
                total += kappa[n] * (
                    wv * np.sum(r**2) + wt * np.sum(dr[:k] ** 2) + ws * np.sum(dr[k:] ** 2)
                )
                if l < L - 1:
                    z, dz = lifted(act, values[l][n], jets[l][n], forms)
            if term.nonlinear:
                out = float(
                    term.operator.function(
                        np.asarray(term.points)[n], values[-1][n, 0], jets[-1][n, :, 0]
                    )
                )
            elif term.channels:
                out = np.asarray(term.linear.c)[n] @ jets[-1][n, :, 0] - y[0]
                out += (
                    0.0 if term.linear.c0 is None else float(term.linear.c0[n]) * values[-1][n, 0]
                )
            else:
                out = 0.0
            total += kappa[n] * out**2
    return float(total)
