"""Small random problems and points, in the engine's types and in the reference's."""

from dataclasses import replace
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import reference as ref

from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.jets import Jet
from sapm.numerics.network import Network, Stack
from sapm.objective.penalty import Objective, Point, mean_square, objective, penalty, start_point
from sapm.objective.terms import pde_term, value_term
from sapm.objective.weights import steepness_of_term

# (kind, widths m_0 … m_L, activation): depth 2 to 15, equal and unequal widths, one and several
# outputs. The engine loops over
# equal layers when it can, so some are long enough for that.
SHAPES = [
    ("value", (1, 4, 1), "relu"),
    ("value", (2, 5, 3, 2), "tanh"),
    ("value", (2, 3, 3, 3, 3, 1), "softplus"),
    ("value", (3, *[3] * 14, 2), "sin"),
    ("pde", (2, 4, 1), "sin"),
    ("pde", (2, 4, 3, 1), "tanh"),
    ("pde", (2, 4, 4, 4, 4, 1), "sin"),
    ("pde", (3, 4, 4, 4, 4, 1), "sigmoid"),
    ("pde", (2, 3, 3, 3, 1), "relu"),
]
MODELS = ("pm", "sapm")
CONFIGS = list(product(SHAPES, MODELS))
SAPM = [(shape, "sapm") for shape in SHAPES]
PM = [
    (shape, "pm") for shape in SHAPES if shape[2] in ("tanh", "sin")
]  # a dead ReLU unit has many least-squares solutions


def name(config) -> str:
    (kind, widths, activation), model = config
    return f"{model}-{kind}-{activation}-{'x'.join(map(str, widths))}"


def random_objective(config, seed: int, weighted: bool = True, n: int = 12) -> Objective:
    """Random data; with `weighted`, random β, α in [0.3, 3] and μ = 1.7."""
    (kind, widths, _), model = config
    rng = np.random.default_rng(seed)
    depth = len(widths) - 1
    d = widths[0]

    def weights(length):
        return rng.uniform(0.3, 3, length) if weighted else np.ones(length)

    x = rng.uniform(-1, 1, (n, d))
    y = rng.normal(size=(n, widths[-1]))
    if kind == "value":
        return objective([value_term(x, y)], depth, model, beta=weights(depth - 1))
    c = rng.normal(size=(n, d))
    x_boundary = rng.uniform(-1, 1, (n // 2, d))
    terms = [
        pde_term(x, c, y),
        value_term(x_boundary, rng.normal(size=(n // 2, 1)), 1.7 if weighted else 1.0),
    ]
    return objective(
        terms, depth, model, alpha=weights(depth), beta=(weights(depth - 1), weights(depth - 1))
    )


forward_point = jax.jit(
    lambda obj, network: start_point(jax.random.key(0), obj, network, "forward")
)


def random_point(
    config, obj: Objective, seed: int, noise: float = 0.3, scale: float = 1.0
) -> Point:
    """Random weights of that scale; auxiliary variables: the forward pass plus normal noise."""
    (_, widths, activation), _ = config
    rng = np.random.default_rng([seed, 1])

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape))

    weights = [(scale * draw(o, i) / i**0.5, scale * draw(o)) for i, o in pairwise(widths)]
    network = Network.of(weights, ACTIVATIONS[activation])
    return Point(
        network,
        jax.tree.map(
            lambda x: x + noise * rng.normal(size=x.shape), forward_point(obj, network).aux
        ),
    )


def first_layer_defect(obj: Objective, widths, sigma, key) -> tuple[Objective, Point]:
    """Random large weights, and labels that the top of the chain predicts exactly: only layer 1 has
    a defect, of about 1e-3.
    """
    *keys, last = jax.random.split(key, len(widths))
    network = Network.of(
        [
            (3 * jax.random.normal(key, (o, i)) / i**0.5, jnp.zeros(o))
            for key, (i, o) in zip(keys, pairwise(widths), strict=True)
        ],
        sigma,
    )
    first, *above = network.stack.layers()
    terms = []
    aux = []
    for term in obj.terms:
        near = replace(term, x=term.x.like(1e-3 * term.x.value, term.x.tangents))
        below = first(near.x)
        u = [jax.tree.map(lambda a: a + 1e-3 * jax.random.normal(last, a.shape), below)]
        for layer in above:
            u.append(layer.apply(sigma, u[-1]))
        y = near.y + near.residual(u[-1])
        if not near.uses_value:
            u[-1] = replace(u[-1], value=jnp.zeros((len(y), 0)))
        terms.append(replace(near, y=y))
        aux.append(Stack.of(u, network.stack.run))
    return replace(obj, terms=tuple(terms)), Point(network, tuple(aux))


def losses_with_a_first_layer_defect(obj: Objective, widths, sigma, draws: int = 30) -> tuple:
    """Of random draws: the true loss, SAPM's, PM's, and the Lipschitz constant of the residuals (0
    where they are linear).
    """

    @jax.jit
    @jax.vmap
    def measured(key):
        drawn, point = first_layer_defect(obj, widths, sigma, key)
        pairs = [(t, u) for t, u in zip(drawn.terms, point.aux, strict=True) if t.nonlinear]
        steep = [steepness_of_term(term, point.network(term.x), u.top) for term, u in pairs]
        return (
            mean_square(point.network, drawn.terms),
            penalty(drawn, point),
            penalty(replace(drawn, model="pm"), point),
            jnp.max(jnp.array([0.0, *steep])),
        )

    return tuple(np.asarray(x) for x in measured(jax.random.split(jax.random.key(0), draws)))


def to_reference(config, obj: Objective, point: Point):
    """(point, data) for tests/reference.py: columns for samples, lists that start with None."""
    (kind, _, activation), model = config
    act = ref.ACTIVATIONS[activation]
    depth = obj.depth
    weights = point.network.weights
    values = [[None, *(np.asarray(u.value).T for u in aux.layers()[:-1])] for aux in point.aux]
    lists = {"W": [None, *(W for W, _ in weights)], "b": [None, *(b for _, b in weights)]}
    beta = [[None, *np.asarray(b)[: depth - 1]] for b in obj.beta]
    columns = [(np.asarray(t.x.value).T, np.asarray(t.y).T) for t in obj.terms]
    if kind == "value":
        return ref.Point(**lists, a=values[0]), ref.Regression(*columns[0], act, model, beta[0])
    d = [None, *(np.moveaxis(np.asarray(u.tangents), 0, -1) for u in point.aux[0].layers())]
    alpha = [None, *np.asarray(obj.alpha[0])]
    mu = float(obj.terms[1].weight) * len(obj.terms[1].y)
    data = ref.Pinn(
        *columns[0], np.asarray(obj.terms[0].linear.c).T, *columns[1], mu, act, model, *beta, alpha
    )
    return ref.Point(**lists, a1=values[0], a2=values[1], d=d), data


def reference_arrays(point) -> list[np.ndarray]:
    """All unknowns of a reference point, in the engine's order: per layer W, b; per term and layer
    value, tangents.
    """
    arrays = [x for W, b in zip(point.W[1:], point.b[1:], strict=True) for x in (W, b)]
    if point.a is not None:
        return arrays + [a.T for a in point.a[1:]]
    arrays += [
        x
        for a, d in zip(point.a1[1:], point.d[1:], strict=False)
        for x in (a.T, np.moveaxis(d, -1, 0))
    ]
    return arrays + [np.moveaxis(point.d[-1], -1, 0)] + [a.T for a in point.a2[1:]]


def engine_arrays(point: Point) -> list[np.ndarray]:
    arrays = [x for pair in point.network.weights for x in pair]
    jets = [x for aux in point.aux for u in aux.layers() for x in (u.value, u.tangents)]
    return arrays + [np.asarray(x) for x in jets if x.size]


def relative(x, y) -> float:
    """Largest difference, relative to the size of y."""
    x = np.asarray(x)
    y = np.asarray(y)
    return float(np.max(np.abs(x - y)) / max(np.max(np.abs(y)), 1e-300))


def nested(f, x, jet: Jet) -> Jet:
    """The jet of f by jax.jvp: of it along each direction, of that again, and along the seeds."""
    k = len(jet.forms[0])

    def along(g, v):
        return lambda x: jax.jvp(g, (x,), (v,))[1]

    v = [jet.tangents[:, i] for i in range(jet.tangents.shape[1])]
    tangents = [along(f, v[i])(x) for i in range(k)]
    for form, seed in zip(jet.forms, v[k:], strict=True):
        tangents.append(
            along(f, seed)(x) + sum(s * along(along(f, v[i]), v[i])(x) for i, s in enumerate(form))
        )
    return Jet(f(x), jnp.stack(tangents, axis=1), jet.forms)
