"""Networks of other libraries: read their weights and activation, and put new weights into a copy.

A `Form` describes a kind of network: pairs of arrays, a torch.nn.Module, an equinox.nn.MLP,
scikit-learn's MLPRegressor, or sapm's own Solution. Another library is imported only where one of
its networks is given.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import brief, shown
from sapm.numerics.activations import ACTIVATIONS, Activation
from sapm.numerics.activations import activation as find_activation
from sapm.problem.samples import Weights
from sapm.results.export import fill
from sapm.results.solution import Solution, forward
from sapm.scopes import float64

# two networks are equal up to this fraction of their variation, and this fraction of their size
VARIATION_TOLERANCE = 1e-7
SIZE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Form:
    """How networks of one kind are read and written.

    Parameters
    ----------
    pairs : network → (W, b) of every layer, before the checks of `checked_weights`.
    sigma : (network, its weights, activation= or None) → its activation.
    put : (network, weights) → a copy of the network with these weights, in its own precision.
    values : (network, x) → the network's own forward pass; None where it cannot differ from that of
        its weights.
    """

    pairs: Callable[[Any], Sequence]
    sigma: Callable[[Any, Weights, Any], Activation]
    put: Callable[[Any, Weights], Any]
    values: Callable[[Any, np.ndarray], np.ndarray] | None = None

    def agrees(self, network, weights: Weights, sigma: Activation, x: np.ndarray) -> bool:
        """Whether the network has the values of the network u(x) of these weights and σ.

        Parameters
        ----------
        x : (points, inputs).
        """
        return self.values is None or _same(weights, sigma, x, self.values(network, x))


def form_of(network) -> Form:
    """The form of a network; a TypeError for what is none."""
    torch = sys.modules.get("torch")
    sklearn = sys.modules.get("sklearn.neural_network")
    if isinstance(network, Solution):
        return Form(_solution_pairs, _solution_sigma, _solution_put)
    if isinstance(network, eqx.nn.MLP):
        return Form(_mlp_pairs, _mlp_sigma, _mlp_put, _mlp_values)
    if torch is not None and isinstance(network, torch.nn.Module):
        return Form(_torch_pairs, _torch_sigma, _torch_put, _torch_values)
    if sklearn is not None and isinstance(network, sklearn.MLPRegressor):
        return Form(_sklearn_pairs, _sklearn_sigma, _sklearn_put)
    if isinstance(network, (list, tuple)):
        return Form(lambda pairs: pairs, _pairs_sigma, _pairs_put)
    hint = " Its .best is one." if hasattr(network, "best") else ""
    raise TypeError(
        f"network is a {type(network).__name__}; give a list of (W, b), a torch.nn.Module, an "
        f"equinox.nn.MLP, a fitted sklearn MLPRegressor or a sapm.Solution.{hint}"
    )


# ---------------------------------------------------------------- what all forms share


def _numbers(name: str, array) -> np.ndarray:
    """An array of real numbers in float64; `name` is what a message calls it."""
    try:
        a = np.asarray(array)
        a = a.astype(float) if a.dtype.kind in "biufO" else a
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a torch tensor with a gradient
        a = np.asarray("not numbers")
    if a.dtype.kind != "f":
        raise TypeError(
            f"{name} is a {type(array).__name__} that does not hold real numbers; give a NumPy "
            "array."
        )
    return a


def checked_weights(pairs) -> Weights:
    """Pairs (W, b) as float64 arrays, W (out, in) and b (out,); an error says which pair does not
    fit.
    """
    weights: list[tuple[Any, Any]] = []
    for l, pair in enumerate(pairs, 1):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"layer {l} is a {type(pair).__name__}; give a pair (W, b) for every layer, "
                "W (out, in) and b (out,)."
            )
        W, b = (_numbers(f"{name} of layer {l}", a) for name, a in zip("Wb", pair, strict=True))
        if W.ndim != 2 or 0 in W.shape or b.shape != W.shape[:1]:
            raise ValueError(
                f"layer {l} has W {W.shape} and b {b.shape}; give W (out, in) and b (out,)."
            )
        if weights and W.shape[1] != len(weights[-1][1]):
            raise ValueError(
                f"layer {l} has W {W.shape}, and the layer below gives {len(weights[-1][1])} "
                "values; W must be (out, in), so transpose it if it is (in, out)."
            )
        for name, a in (("W", W), ("b", b)):
            if not np.isfinite(a).all():
                raise ValueError(
                    f"{name} of layer {l} has {a[~np.isfinite(a)][0]}; all weights must be finite: "
                    "take the network from before its training diverged."
                )
        weights.append((W, b))
    if len(weights) < 2:
        raise ValueError(
            f"the network has depth {len(weights)} and so no hidden layer; give at least two "
            "layers."
        )
    return weights


def _needs_bias(l: int, fix: str) -> ValueError:
    """The error about layer l without a bias; `fix` says how to get one."""
    return ValueError(
        f"layer {l}: got no bias, expected one, since the bias of every layer is trained; {fix} "
        "(a bias of zeros computes the same)."
    )


@float64
def _alike(one: Activation, other: Activation) -> bool:
    """Whether two activations have the same values on [-40, 40], in single precision."""
    x = jnp.linspace(-40, 40, 801)
    return bool(jnp.allclose(one(x), other(x), rtol=1e-6, atol=1e-6))


def _named(sigma: Activation) -> Activation:
    """The built-in activation with the values of σ, which has constants for a certificate; σ itself
    if there is none.
    """
    known = (each for each in ACTIVATIONS.values() if sigma is each or _alike(sigma, each))
    return next(known, sigma)


def _agreed(asked, own: Activation) -> Activation:
    """The network's own activation. The one that the user asked for, if any, must be the same."""
    if asked is not None and not _alike(find_activation(asked), own):
        raise ValueError(
            f"activation={brief(asked)} is not what the network has, {own.name!r}; leave "
            "activation= out."
        )
    return own


def _probe(inputs: int) -> np.ndarray:
    """(96, inputs) Small and large points to compare two networks at."""
    sizes = np.repeat([0.3, 1.0, 3.0], 32)[:, None]
    return np.random.default_rng(0).normal(size=(96, inputs)) * sizes


@float64
def _same(weights: Weights, sigma: Activation, x: np.ndarray, values: np.ndarray) -> bool:
    """Whether the network of these weights and σ has these values at x, up to rounding."""
    own = np.asarray(forward(weights, sigma, jnp.asarray(x)))
    if own.shape != values.shape or not np.isfinite(values).all():
        return False
    variation = np.abs(values - values.mean(0)).max()
    size = np.abs(values).max()
    tolerance = VARIATION_TOLERANCE * variation + SIZE_TOLERANCE * size
    return bool(np.abs(own - values).max() <= tolerance)


# ---------------------------------------------------------------- pairs and solutions


def _pairs_sigma(pairs, weights: Weights, asked) -> Activation:
    """The activation that the user asks for, which pairs alone do not have."""
    if asked is None:
        raise ValueError(
            "weights alone do not say what is between the layers; give activation=, one of "
            f"{', '.join(ACTIVATIONS)} or an elementwise JAX function."
        )
    return _named(find_activation(asked))


def _pairs_put(pairs, weights: Weights) -> Weights:
    """A copy of the weights."""
    return [(np.array(W), np.array(b)) for W, b in weights]


def _solution_sigma(u: Solution, weights: Weights, asked) -> Activation:
    """The activation of a solution."""
    return _agreed(asked, u.sigma)


def _solution_pairs(u: Solution) -> Sequence:
    """The weights of a solution; derivatives of solutions are refused."""
    if u.directions:
        raise ValueError("a derivative cannot be refined; give u itself.")
    return u.weights


def _solution_put(u: Solution, weights: Weights) -> Solution:
    """The solution with other weights."""
    return replace(u, weights=weights)


# ---------------------------------------------------------------- scikit-learn


def _sklearn_pairs(estimator) -> Sequence:
    """The weights of a fitted MLPRegressor, whose matrices are (in, out)."""
    if not hasattr(estimator, "coefs_"):
        raise ValueError(
            "this MLPRegressor is not fitted, so it has no weights; call its fit(X, y) first."
        )
    return [(W.T, b) for W, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)]


def _sklearn_sigma(estimator, weights: Weights, asked) -> Activation:
    """The activation of an MLPRegressor; its output has to be linear."""
    name = estimator.activation
    last = estimator.out_activation_
    if name == "identity":
        raise ValueError(
            "this MLPRegressor has activation='identity', so it is a linear map; give one with "
            "another activation."
        )
    if last != "identity":
        raise ValueError(
            f"this MLPRegressor ends with {last!r}; the last layer must be linear, as with "
            "loss='squared_error'."
        )
    return _agreed(asked, find_activation("sigmoid" if name == "logistic" else name))


def _sklearn_put(estimator, weights: Weights):
    """A copy of an MLPRegressor with these weights."""
    new = copy.deepcopy(estimator)
    with np.errstate(over="ignore"):
        new.coefs_ = [
            np.array(W.T, old.dtype, order="C")
            for (W, _), old in zip(weights, estimator.coefs_, strict=True)
        ]
        new.intercepts_ = [
            np.array(b, old.dtype)
            for (_, b), old in zip(weights, estimator.intercepts_, strict=True)
        ]
    return new


# ---------------------------------------------------------------- equinox


@float64
def _mlp_pairs(mlp: eqx.nn.MLP) -> Sequence:
    """The weights of an MLP in float64."""
    pairs = []
    for layer in mlp.layers:
        if layer.bias is None:
            raise _needs_bias(
                len(pairs) + 1, "make the MLP with use_bias=True and use_final_bias=True"
            )
        W, b = (np.asarray(jnp.asarray(a, jnp.float64)) for a in (layer.weight, layer.bias))
        pairs += zip(W, b, strict=True) if _scanned(mlp, layer) else [(W, b)]
    return pairs


def _scanned(mlp: eqx.nn.MLP, layer) -> bool:
    """Whether a layer holds all hidden layers of an MLP with scan=True, stacked on axis 0."""
    return getattr(mlp, "scan", False) and len(mlp.layers) == 3 and layer is mlp.layers[1]


def _mlp_sigma(mlp: eqx.nn.MLP, weights: Weights, asked) -> Activation:
    """The activation of an MLP whose forward pass is that of its layers."""
    if any(eqx.is_array(leaf) for leaf in jax.tree.leaves((mlp.activation, mlp.final_activation))):
        raise ValueError(
            "the MLP's activation has parameters of its own; only one without them can be refined."
        )
    sigma = _agreed(asked, _named(find_activation(mlp.activation)))
    x = _probe(weights[0][0].shape[1])
    if not _same(weights, sigma, x, _mlp_values(mlp, x)):
        raise ValueError(
            "the MLP does not compute what its layers with an elementwise activation between them "
            "do; final_activation must be the identity."
        )
    return sigma


@float64
def _mlp_values(mlp: eqx.nn.MLP, x: np.ndarray) -> np.ndarray:
    """(points, outputs) The MLP's own forward pass in double precision."""
    points = jnp.asarray(x[:, 0] if mlp.in_size == "scalar" else x)
    in_float64 = _mlp_put(mlp, _mlp_pairs(mlp), jnp.float64)
    return np.asarray(jax.vmap(in_float64)(points)).reshape(len(x), -1)


@float64
def _mlp_put(mlp: eqx.nn.MLP, weights: Sequence, dtype=None) -> eqx.nn.MLP:
    """A copy of the MLP with these weights; dtype: its precision, by default that of the MLP."""
    remaining = list(weights)
    arrays = []
    layers = cast(Any, mlp.layers)
    for layer in layers:
        scanned = _scanned(mlp, layer)
        count = len(layer.weight) if scanned else 1
        pairs = remaining[:count]
        remaining = remaining[count:]
        W, b = (np.stack(x) for x in zip(*pairs, strict=True)) if scanned else pairs[0]
        arrays += [
            jnp.asarray(a, dtype or old.dtype) for a, old in ((W, layer.weight), (b, layer.bias))
        ]
    return eqx.tree_at(
        lambda m: [a for layer in m.layers for a in (layer.weight, layer.bias)], mlp, arrays
    )


# ---------------------------------------------------------------- torch


def _linear_layers(module) -> list:
    """The Linear layers of a module in the order of registration; `_torch_sigma` checks that the
    module uses them in this order.
    """
    import torch  # type: ignore[import-not-found]

    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def _torch_pairs(module) -> Sequence:
    """The weights of a module of Linear layers; other parameters are refused."""
    layers = _linear_layers(module)
    name = type(module).__name__
    for l, layer in enumerate(layers, 1):
        if layer.bias is None:
            raise _needs_bias(l, "make the Linear layer with bias=True")
    own = {id(p) for layer in layers for p in (layer.weight, layer.bias)}
    for other, p in module.named_parameters():
        if id(p) not in own:
            raise ValueError(
                f"{name} has parameters besides those of plain Linear layers, {other!r}; only "
                "these can be refined."
            )
    if len(own) < 2 * len(layers):
        raise ValueError(
            f"{name} has layers that share parameters; only layers with weights of their own can "
            "be refined."
        )
    return [
        tuple(p.detach().cpu().double().numpy() for p in (layer.weight, layer.bias))
        for layer in layers
    ]


def _torch_sigma(module, weights: Weights, asked) -> Activation:
    """The activation with which the layers, one after the other, compute what the module does: the
    one that the user asked for, or one of the built-in ones.
    """
    name = type(module).__name__
    x = _probe(weights[0][0].shape[1])
    values = _torch_values(module, x)
    known = list(ACTIVATIONS.values()) if asked is None else [_named(find_activation(asked))]
    fitting = [sigma for sigma in known if _same(weights, sigma, x, values)]
    if len(fitting) > 1:
        which = " and ".join(sigma.name for sigma in fitting)
        raise ValueError(
            f"{name} computes the same with {which}, so its activation is not clear; say which by "
            "activation=."
        )
    if not fitting:
        names = ", ".join(sigma.name for sigma in known)
        raise ValueError(
            f"{name} does not compute what its Linear layers do, in the order they were defined "
            f"and with {'one of ' if asked is None else ''}{names} between them; if its activation "
            "is another one, give that as an elementwise JAX function (activation=)."
        )
    return fitting[0]


def _torch_values(module, x: np.ndarray) -> np.ndarray:
    """(points, outputs) The module's own forward pass, in double precision and without dropout."""
    import torch  # type: ignore[import-not-found]

    twin = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
    try:
        with torch.no_grad():
            return twin(torch.from_numpy(x)).numpy().reshape(len(x), -1)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{type(module).__name__} cannot be called with points {x.shape} in double precision "
            f"({shown(str(error))}); give a module that takes an array (points, coordinates) and "
            "gives it to its first layer (with features, give the sapm.Solution itself)."
        ) from error


def _torch_put(module, weights: Weights):
    """A copy of a module with these weights."""
    new = copy.deepcopy(module)
    new.zero_grad(set_to_none=True)  # its gradients would be those of the old weights
    fill(_linear_layers(new), weights)
    return new
