"""A method defined outside sapm: gradient descent with Nesterov's momentum on the true loss."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import sapm
from sapm.methods.engine import OnePhase
from sapm.methods.gauss_newton import gauss_newton
from sapm.numerics.activations import Activation
from sapm.numerics.network import Network, initialise
from sapm.objective.penalty import Objective, mean_square, true_loss
from sapm.training.loop import Chunks


class Momentum(eqx.Module):
    """The network and the last change of its weights."""

    network: Network
    velocity: Network


class NesterovEngine(OnePhase):
    """v ← m v - r ∇L(θ + m v), θ ← θ + v."""

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    weights: str = eqx.field(static=True)
    rate: float
    momentum: float

    def init(self, key):
        constants = self.objective.constants
        return self.begin(initialise(key, self.widths, self.sigma, self.weights, constants))

    def begin(self, network):
        return Momentum(network, jax.tree.map(jnp.zeros_like, network))

    def step(self, state):
        carried = jax.tree.map(lambda v: self.momentum * v, state.velocity)
        ahead = jax.tree.map(jnp.add, state.network, carried)
        slope = jax.grad(lambda network: true_loss(self.objective, network))(ahead)
        velocity = jax.tree.map(lambda v, g: v - self.rate * g, carried, slope)
        return Momentum(jax.tree.map(jnp.add, state.network, velocity), velocity)

    def losses(self, state):
        true = mean_square(state.network, self.objective.terms)
        return true_loss(self.objective, state.network), true

    def network(self, state):
        return state.network


@dataclass(frozen=True, kw_only=True)
class Nesterov(sapm.Method):
    rate: float = 0.05
    momentum: float = 0.9

    name: ClassVar[str] = "nesterov"
    models: ClassVar[tuple[str, ...]] = ("ls",)

    def engine(self, objective, widths, sigma, init, start):
        return NesterovEngine(objective, tuple(widths), sigma, init, self.rate, self.momentum)


def line() -> sapm.Function:
    return sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(2 * p.x))


SMALL = {"points": 30, "test_points": 20, "seeds": 2, "model": "ls", "progress": False}


def test_it_trains():
    """The loss falls, a step adds m v - r ∇L(θ + m v) to θ, and the tables know the name."""
    result = sapm.solve(line(), 3, 8, method=Nesterov(rate=0.02), max_iter=60, **SMALL)
    assert np.all(result.history["loss"][:, -1] < 0.2 * result.history["loss"][:, 0])
    assert "True loss by nesterov" in str(result.summary())
    assert result.config["method"] == "nesterov" and result.config["options"]["rate"] == 0.02

    with jax.enable_x64(True):
        engine = result.run.engine
        network = result.run.network(0)
        velocity = jax.tree.map(lambda x: 0.1 * jnp.cos(x), network)
        new = engine.step(Momentum(network, velocity))

        def loss(flat):
            return true_loss(engine.objective, rebuild(flat))

        old, rebuild = ravel_pytree(network)
        carried = 0.9 * ravel_pytree(velocity)[0]
        change = carried - 0.02 * jax.grad(loss)(old + carried)
        np.testing.assert_allclose(ravel_pytree(new.network)[0], old + change, rtol=1e-12)
        np.testing.assert_allclose(ravel_pytree(new.velocity)[0], change, rtol=1e-12)
        np.testing.assert_allclose(engine.losses(new)[0], loss(old + change), rtol=1e-12)


def test_it_is_kept(tmp_path):
    """Its file gives the networks without the method, and continues with it."""
    method = Nesterov(rate=0.02)
    out = tmp_path / "run"
    short = sapm.solve(line(), 3, 8, method=method, max_iter=20, out=out, **SMALL)
    loaded = sapm.load(out)
    x = np.linspace(-1, 1, 7)
    np.testing.assert_allclose(loaded.best(x), short.best(x), rtol=1e-12)
    assert loaded.config == short.config
    with pytest.raises(
        ValueError, match="method 'nesterov', which a file cannot hold; give method="
    ):
        sapm.resume(out, 40, progress=False)
    with pytest.raises(ValueError, match=r"got rate=0.05, expected 0.02 as in the file"):
        sapm.resume(out, 40, method=Nesterov(), progress=False)
    resumed = sapm.resume(out, 40, method=method, progress=False)
    whole = sapm.solve(line(), 3, 8, method=method, max_iter=40, **SMALL)
    np.testing.assert_array_equal(resumed.history["loss"][:, -1], whole.history["loss"][:, -1])


@dataclass(frozen=True, kw_only=True)
class Lifted(sapm.Method):
    """Gauss-Newton by another name: its history counts phases."""

    name: ClassVar[str] = "lifted"

    def engine(self, objective, widths, sigma, init, start):
        return gauss_newton(objective, widths, sigma, init=init, start=start)


def test_phases_are_kept(tmp_path):
    result = sapm.solve(line(), 3, 4, method=Lifted(), max_iter=2, **SMALL | {"model": "sapm"})
    result.save(tmp_path / "a.sapm")
    loaded = sapm.load(tmp_path / "a.sapm")
    assert "phase" in loaded.history and loaded.best(x=0.3) == result.best(x=0.3)


class Halfway(eqx.Module):
    """An engine with a step and nothing else."""

    def step(self, state):
        return state


@dataclass(frozen=True, kw_only=True)
class Unfinished(sapm.Method):
    name: ClassVar[str] = "unfinished"

    def engine(self, objective, widths, sigma, init, start):
        return Halfway()


def test_an_engine_without_all_its_members():
    with pytest.raises(TypeError, match="Halfway: got no begin, blocks, diagnostics, init, loss"):
        Chunks(Unfinished().engine(None, (1, 1), None, "he", "uniform"), 1)


def test_what_it_cannot_train():
    with pytest.raises(
        ValueError, match="method='nesterov' does not train model='sapm'; use one of ls"
    ):
        sapm.solve(line(), 3, 8, method=Nesterov(), progress=False)
    with pytest.raises(TypeError, match="a method of your own inherits"):
        sapm.solve(line(), 3, 8, method=NesterovEngine, progress=False)
