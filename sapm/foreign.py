"""Networks as others have them: their weights and activation read, new weights put into a copy.

A form is a kind of network: pairs of arrays, a torch.nn.Module, an equinox.nn.MLP, scikit-learn's MLPRegressor, our own Solution.
Other libraries are imported only where a network of theirs is at hand.
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

from sapm.export import fill
from sapm.jet import ACTIVATIONS, Activation, float64
from sapm.jet import activation as find_activation
from sapm.names import brief
from sapm.solution import Solution, forward

Weights = list[tuple[Any, Any]]  # (W, b) of every layer, NumPy in float64, W is (out, in)
CLOSE, ROUNDING = 1e-7, 1e-12  # one function: differences of this fraction of its variation, and of its size


@dataclass(frozen=True)
class Form:
    """What is done with networks of one kind. `put` gives a copy with other weights, in the precision the network has."""

    pairs: Callable[[Any], Sequence]  # (W, b) of every layer, not yet `checked`
    sigma: Callable[[Any, Weights, Any], Activation]  # (network, its weights, the activation given or None)
    put: Callable[[Any, Weights], Any]
    values: Callable[[Any, np.ndarray], np.ndarray] | None = None  # the network's own forward pass, where it can be another one

    def agrees(self, network, weights: Weights, sigma: Activation, x: np.ndarray) -> bool:
        """Whether the network computes at x what these weights and σ do."""
        return self.values is None or _same(weights, sigma, x, self.values(network, x))


def form_of(network) -> Form:
    torch, sklearn = sys.modules.get("torch"), sys.modules.get("sklearn.neural_network")
    if isinstance(network, Solution):
        return Form(_solution_pairs, lambda u, weights, given: _agreed(given, u.sigma), _solution_put)
    if isinstance(network, eqx.nn.MLP):
        return Form(_mlp_pairs, _mlp_sigma, _mlp_put, _mlp_values)
    if torch is not None and isinstance(network, torch.nn.Module):
        return Form(_torch_pairs, _torch_sigma, _torch_put, _torch_values)
    if sklearn is not None and isinstance(network, sklearn.MLPRegressor):
        return Form(_sklearn_pairs, _sklearn_sigma, _sklearn_put)
    if isinstance(network, (list, tuple)):
        return Form(lambda pairs: pairs, _pairs_sigma, lambda pairs, weights: [(np.array(W), np.array(b)) for W, b in weights])
    hint = " Its .best is one." if hasattr(network, "best") else ""
    raise TypeError(
        f"network is a {type(network).__name__}; give a list of (W, b), a torch.nn.Module, an equinox.nn.MLP, a fitted "
        f"sklearn MLPRegressor or a sapm.Solution.{hint}"
    )


# ---------------------------------------------------------------- what all of them share


def _numbers(name: str, given) -> np.ndarray:
    try:
        a = np.asarray(given)
        a = a.astype(float) if a.dtype.kind in "biufO" else a
    except (TypeError, ValueError, RuntimeError):  # the last: a torch tensor that is part of a graph
        a = np.asarray("not numbers")
    if a.dtype.kind != "f":
        raise TypeError(f"{name} is a {type(given).__name__} that does not hold real numbers; give a NumPy array.")
    return a


def checked(pairs) -> Weights:
    """Pairs (W, b) as float64 arrays that fit together, or a sentence."""
    weights: Weights = []
    for l, pair in enumerate(pairs, 1):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"layer {l} is a {type(pair).__name__}; give a pair (W, b) for every layer, W (out, in) and b (out,)."
            )
        W, b = (_numbers(f"{name} of layer {l}", a) for name, a in zip("Wb", pair, strict=True))
        if W.ndim != 2 or 0 in W.shape or b.shape != W.shape[:1]:
            raise ValueError(f"layer {l} has W {W.shape} and b {b.shape}; give W (out, in) and b (out,).")
        if weights and W.shape[1] != len(weights[-1][1]):
            raise ValueError(
                f"layer {l} has W {W.shape}, and the layer below gives {len(weights[-1][1])} values; W must be (out, in), so "
                "transpose it if it is (in, out)."
            )
        for name, a in (("W", W), ("b", b)):
            if not np.isfinite(a).all():
                raise ValueError(
                    f"{name} of layer {l} has {a[~np.isfinite(a)][0]}; all weights must be finite: take the network from before "
                    "its training diverged."
                )
        weights.append((W, b))
    if len(weights) < 2:
        raise ValueError(f"the network has depth {len(weights)} and so no hidden layer; give at least two layers.")
    return weights


def _needs_bias(l: int, fix: str) -> ValueError:
    return ValueError(f"layer {l} has no bias, and every layer is trained with one; {fix}: zeros compute the same.")


@float64
def _alike(one: Activation, other: Activation) -> bool:
    """Whether two activations have the same values, to single precision."""
    x = jnp.linspace(-40, 40, 801)
    return bool(jnp.allclose(one(x), other(x), rtol=1e-6, atol=1e-6))


def _named(sigma: Activation) -> Activation:
    """The built-in activation with the same values, which has constants for a certificate; otherwise this one."""
    return next((known for known in ACTIVATIONS.values() if sigma is known or _alike(sigma, known)), sigma)


def _agreed(given, own: Activation) -> Activation:
    """The network's own activation; one given as well must be the same."""
    if given is not None and not _alike(find_activation(given), own):
        raise ValueError(f"activation={brief(given)} is not what the network has, {own.name!r}; leave activation= out.")
    return own


def _probe(inputs: int) -> np.ndarray:
    """Points, small and large, to compare two networks at."""
    return np.random.default_rng(0).normal(size=(96, inputs)) * np.repeat([0.3, 1.0, 3.0], 32)[:, None]


@float64
def _same(weights: Weights, sigma: Activation, x: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether that network has these values at x, to rounding."""
    found = np.asarray(forward(weights, sigma, jnp.asarray(x)))
    if found.shape != wanted.shape or not np.isfinite(wanted).all():
        return False
    variation, size = np.abs(wanted - wanted.mean(0)).max(), np.abs(wanted).max()
    return bool(np.abs(found - wanted).max() <= CLOSE * variation + ROUNDING * size)


# ---------------------------------------------------------------- pairs and solutions


def _pairs_sigma(pairs, weights: Weights, given) -> Activation:
    if given is None:
        raise ValueError(
            f"weights alone do not say what is between the layers; give activation=, one of {', '.join(ACTIVATIONS)} or an "
            "elementwise JAX function."
        )
    return _named(find_activation(given))


def _solution_pairs(u: Solution) -> Sequence:
    if u.directions:
        raise ValueError("a derivative cannot be refined; give u itself.")
    return u.weights


def _solution_put(u: Solution, weights: Weights) -> Solution:
    return replace(u, weights=weights)


# ---------------------------------------------------------------- scikit-learn


def _sklearn_pairs(estimator) -> Sequence:
    if not hasattr(estimator, "coefs_"):
        raise ValueError("this MLPRegressor is not fitted, so it has no weights; call its fit(X, y) first.")
    return [(W.T, b) for W, b in zip(estimator.coefs_, estimator.intercepts_, strict=True)]


def _sklearn_sigma(estimator, weights: Weights, given) -> Activation:
    name, last = estimator.activation, estimator.out_activation_
    if name == "identity":
        raise ValueError("this MLPRegressor has activation='identity', so it is a linear map; give one with another activation.")
    if last != "identity":
        raise ValueError(f"this MLPRegressor ends with {last!r}; the last layer must be linear, as with loss='squared_error'.")
    return _agreed(given, find_activation("sigmoid" if name == "logistic" else name))


def _sklearn_put(estimator, weights: Weights):
    new = copy.deepcopy(estimator)
    with np.errstate(over="ignore"):
        new.coefs_ = [np.array(W.T, old.dtype, order="C") for (W, _), old in zip(weights, estimator.coefs_, strict=True)]
        new.intercepts_ = [np.array(b, old.dtype) for (_, b), old in zip(weights, estimator.intercepts_, strict=True)]
    return new


# ---------------------------------------------------------------- equinox


@float64
def _mlp_pairs(mlp: eqx.nn.MLP) -> Sequence:
    pairs = []
    for layer in mlp.layers:
        if layer.bias is None:
            raise _needs_bias(len(pairs) + 1, "make the MLP with use_bias=True and use_final_bias=True")
        W, b = (np.asarray(jnp.asarray(a, jnp.float64)) for a in (layer.weight, layer.bias))
        pairs += zip(W, b, strict=True) if _scanned(mlp, layer) else [(W, b)]
    return pairs


def _scanned(mlp: eqx.nn.MLP, layer) -> bool:
    """Whether this is all the hidden layers of an MLP with scan=True in one."""
    return getattr(mlp, "scan", False) and len(mlp.layers) == 3 and layer is mlp.layers[1]


def _mlp_sigma(mlp: eqx.nn.MLP, weights: Weights, given) -> Activation:
    if any(eqx.is_array(leaf) for leaf in jax.tree.leaves((mlp.activation, mlp.final_activation))):
        raise ValueError("the MLP's activation has parameters of its own; only one without them can be refined.")
    sigma, x = _agreed(given, _named(find_activation(mlp.activation))), _probe(weights[0][0].shape[1])
    if not _same(weights, sigma, x, _mlp_values(mlp, x)):
        raise ValueError(
            "the MLP does not compute what its layers with an elementwise activation between them do; final_activation must be "
            "the identity."
        )
    return sigma


@float64
def _mlp_values(mlp: eqx.nn.MLP, x: np.ndarray) -> np.ndarray:
    """Its own forward pass in double precision."""
    points = jnp.asarray(x[:, 0] if mlp.in_size == "scalar" else x)
    return np.asarray(jax.vmap(_mlp_put(mlp, _mlp_pairs(mlp), jnp.float64))(points)).reshape(len(x), -1)


@float64
def _mlp_put(mlp: eqx.nn.MLP, weights: Sequence, dtype=None) -> eqx.nn.MLP:
    left, new, layers = list(weights), [], cast(Any, mlp.layers)
    for layer in layers:
        count = len(layer.weight) if _scanned(mlp, layer) else 1
        part, left = left[:count], left[count:]
        W, b = (np.stack(x) for x in zip(*part, strict=True)) if _scanned(mlp, layer) else part[0]
        new += [jnp.asarray(a, dtype or old.dtype) for a, old in ((W, layer.weight), (b, layer.bias))]
    return eqx.tree_at(lambda m: [a for layer in m.layers for a in (layer.weight, layer.bias)], mlp, new)


# ---------------------------------------------------------------- torch


def _linear_layers(module) -> list:
    """In the order of registration; `_torch_sigma` checks that they are used in this order."""
    import torch  # type: ignore[import-not-found]

    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def _torch_pairs(module) -> Sequence:
    layers, name = _linear_layers(module), type(module).__name__
    for l, layer in enumerate(layers, 1):
        if layer.bias is None:
            raise _needs_bias(l, "make the Linear layer with bias=True")
    own = {id(p) for layer in layers for p in (layer.weight, layer.bias)}
    for other, p in module.named_parameters():
        if id(p) not in own:
            raise ValueError(f"{name} has parameters besides those of plain Linear layers, {other!r}; only these can be refined.")
    if len(own) < 2 * len(layers):
        raise ValueError(f"{name} has layers that share parameters; only layers with weights of their own can be refined.")
    return [tuple(p.detach().cpu().double().numpy() for p in (layer.weight, layer.bias)) for layer in layers]


def _torch_sigma(module, weights: Weights, given) -> Activation:
    """The activation, given or built in, with which the layers one after the other compute what the module does."""
    name, x = type(module).__name__, _probe(weights[0][0].shape[1])
    wanted = _torch_values(module, x)
    known = list(ACTIVATIONS.values()) if given is None else [_named(find_activation(given))]
    fitting = [sigma for sigma in known if _same(weights, sigma, x, wanted)]
    if len(fitting) > 1:
        which = " and ".join(sigma.name for sigma in fitting)
        raise ValueError(f"{name} computes the same with {which}, so its activation is not clear; say which by activation=.")
    if not fitting:
        names = ", ".join(sigma.name for sigma in known)
        raise ValueError(
            f"{name} does not compute what its Linear layers do, in the order they were defined and with "
            f"{'one of ' if given is None else ''}{names} between them; if its activation is another one, give that as an "
            "elementwise JAX function (activation=)."
        )
    return fitting[0]


def _torch_values(module, x: np.ndarray) -> np.ndarray:
    """Its own forward pass, in double precision and without dropout."""
    import torch  # type: ignore[import-not-found]

    twin = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
    try:
        with torch.no_grad():
            return twin(torch.from_numpy(x)).numpy().reshape(len(x), -1)
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} cannot be called with points {x.shape} in double precision ({error}); give a module that "
            "takes an array (points, coordinates) and gives it to its first layer (with features, give the sapm.Solution itself)."
        ) from error


def _torch_put(module, weights: Weights):
    new = copy.deepcopy(module)
    new.zero_grad(set_to_none=True)  # gradients that the given one may hold are of the old weights
    fill(_linear_layers(new), weights)
    return new
