"""DeepXDE (Lu, Meng, Mao and Karniadakis, SIAM Review 63, 2021) on the textbook problems, by its own recipe and on PyTorch.

A tanh network of the same size from Glorot's uniform weights, DeepXDE's own (Hammersley) points, as many as ours; Adam with the
rate 1e-3 for half of the time, then torch's L-BFGS. In float64: DeepXDE's documentation asks for it where L-BFGS ends early.
Loss weights are 1 and inputs are not scaled, except where the demo of the same equation in DeepXDE's repository
(lululxvi/deepxde, examples/pinn_forward) has it otherwise; the table below says where. Imported only when it is used.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sapm.bench.peers import Trainer
from sapm.bench.task import Clock, Outcome, Task
from sapm.conditions import Initial, InitialVelocity
from sapm.jet import Jet

RATE, ADAM_SHARE = 1e-3, 0.5  # the demos have as many iterations of Adam as L-BFGS may take
TOLERANCE = 1e-15  # of L-BFGS: the clock ends it, not a rule
SHORTEST, LONGEST = 2, 1000  # iterations of L-BFGS between two looks at the clock; 1000 is DeepXDE's own choice
PI = np.pi


@dataclass(frozen=True)
class Statement:
    """A problem for DeepXDE. Functions get a point (columns by name) and a module with sin, cos, …: torch, NumPy or jax.numpy."""

    residual: Callable  # (p, u, m)
    boundary: Callable | None = None  # u on the faces of all coordinates but t; 0 where there is none
    start: Callable | None = None
    at_rest: bool = False  # u_t = 0 at the start
    insulated: bool = False  # u_n = 0 on the faces, in place of a value
    output: Callable | None = None  # (p, network, m): the answer, where it meets values by its form: these are no conditions then
    activation: str = "tanh"
    balanced: bool = False  # loss weights 5 / (the losses at the start)


def _layer(p, m):
    """The answer of advection_diffusion along x: 0 at both ends."""
    small = 0.05
    return p.x + (m.exp((p.x - 1) / small) - np.exp(-1 / small)) / np.expm1(-1 / small)


def _cubic(answer):
    """The right-hand side of nonlinear_poisson."""
    return 1.25 * PI**2 * answer + answer**3


STATEMENTS = {
    "poisson_2d": Statement(lambda p, u, m: -u.xx - u.yy - 2 * PI**2 * m.sin(PI * p.x) * m.sin(PI * p.y)),
    "poisson_5d": Statement(
        lambda p, u, m: -sum(u.d(name, name) + PI**2 * m.sin(PI * getattr(p, name)) for name in p.names),
        boundary=lambda p, m: sum(m.sin(PI * getattr(p, name)) for name in p.names),
    ),
    # demo heat.py: weights 1, tanh, Adam, then L-BFGS
    "heat_1d": Statement(lambda p, u, m: u.t - 0.1 * u.xx, start=lambda p, m: m.sin(PI * p.x) + 0.5 * m.sin(3 * PI * p.x)),
    # demo wave_1d.py: weights 5 / (the losses at the start); its network, of Fourier features, is another one
    "wave_1d": Statement(
        lambda p, u, m: u.tt - 4 * u.xx,
        start=lambda p, m: m.sin(PI * p.x) + 0.5 * m.sin(3 * PI * p.x),
        at_rest=True,
        balanced=True,
    ),
    # demo Helmholtz_Dirichlet_2d.py: sin, and an output that is 0 on the boundary
    "helmholtz_2d": Statement(
        lambda p, u, m: u.xx + u.yy + 4 * PI**2 * (u.value + m.sin(2 * PI * p.x) * m.sin(2 * PI * p.y)),
        output=lambda p, network, m: p.x * (1 - p.x) * p.y * (1 - p.y) * network,
        activation="sin",
    ),
    "advection_diffusion": Statement(
        lambda p, u, m: -0.05 * (u.xx + u.yy) + u.x - (1 + 0.05 * PI**2 * _layer(p, m)) * m.sin(PI * p.y)
    ),
    "nonlinear_poisson": Statement(lambda p, u, m: -u.xx - u.yy + u.value**3 - _cubic(m.sin(PI * p.x) * m.cos(PI * p.y / 2))),
    # demo Burgers.py: weights 1, tanh, 15,000 iterations of Adam, then L-BFGS
    "burgers": Statement(lambda p, u, m: u.t + u.value * u.x - 0.01 / PI * u.xx, start=lambda p, m: -m.sin(PI * p.x)),
    # demo Allen_Cahn.py: an output that meets the start; what it adds for u = -1 at the ends is left out, the slope is given here
    "allen_cahn": Statement(
        lambda p, u, m: u.t - 1e-4 * u.xx - 5 * (u.value - u.value**3),
        insulated=True,
        output=lambda p, network, m: p.x**2 * m.cos(PI * p.x) + p.t * network,
    ),
}


class Point:
    """Rows of coordinates, each column by its name."""

    def __init__(self, names: Sequence[str], rows: Any):
        self.names, self.rows = tuple(names), rows

    def __getattr__(self, name: str):
        i = self.names.index(name)
        return self.rows[:, i : i + 1]


class Unknown:
    """u and its derivatives by name (u.t, u.xx), as DeepXDE computes them."""

    def __init__(self, grad: Any, names: Sequence[str], rows: Any, value: Any):
        self.grad, self.names, self.rows, self.value = grad, tuple(names), rows, value

    def d(self, *names: str):
        i, *j = (self.names.index(name) for name in names)
        return self.grad.hessian(self.value, self.rows, i=i, j=j[0]) if j else self.grad.jacobian(self.value, self.rows, i=0, j=i)

    def __getattr__(self, name: str):
        return self.d(*name)


class Answer(eqx.Module):
    """A trained network in JAX, to be measured as the others are; `order` has the place of each of its inputs among ours."""

    layers: list[tuple[Any, Any]]
    name: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)

    def at(self, row):
        """u at one point."""
        stated, y = STATEMENTS[self.name], row[jnp.array(self.order)]
        z = y
        for W, b in self.layers[:-1]:
            z = getattr(jnp, stated.activation)(W @ z + b)
        z = self.layers[-1][0] @ z + self.layers[-1][1]
        return (z if stated.output is None else stated.output(Point(self.names, y[None]), z, jnp)).reshape(())

    def __call__(self, x: Jet) -> Jet:
        """Value, tangents and second-order channels at the points of an input jet."""
        k = len(x.forms[0]) if x.forms else x.tangents.shape[1]

        def channels(row, seeds):
            found = seeds @ jax.grad(self.at)(row)
            if not x.forms:
                return found
            curved = jnp.einsum("ki,ij,kj->k", seeds[:k], jax.hessian(self.at)(row), seeds[:k])
            return found.at[k:].add(jnp.asarray(x.forms, curved.dtype) @ curved)

        value = jax.vmap(self.at)(x.value)[:, None]
        return Jet(value, jax.vmap(channels)(x.value, x.tangents)[..., None], x.forms)


def load() -> Any:
    """The package, on PyTorch and in float64. What it prints goes where errors go."""
    os.environ["DDE_BACKEND"] = "pytorch"
    with redirect_stdout(sys.stderr):
        dde: Any = import_module("deepxde")
        dde.config.set_default_float("float64")
        dde.optimizers.set_LBFGS_options(maxiter=10**9, gtol=TOLERANCE)
    return dde


class Stated:
    """A case in DeepXDE's words."""

    def __init__(self, task: Task, dde: Any):
        import torch  # type: ignore[import-not-found]

        self.task, self.dde, self.torch = task, dde, torch
        self.name, ours = task.case.experiment, task.problem.domain.names
        if self.name not in STATEMENTS:
            raise ValueError(f"{self.name} is not stated for DeepXDE; there are {', '.join(STATEMENTS)}.")
        self.stated = STATEMENTS[self.name]
        self.names = tuple(sorted(ours, key=lambda name: name == "t"))  # DeepXDE has the time last
        self.order = tuple(ours.index(name) for name in self.names)

    def residual(self, x, y):
        return self.stated.residual(Point(self.names, x), Unknown(self.dde.grad, self.names, x, y), self.torch)

    def _given(self, datum: Callable | None) -> Callable:
        """Values at rows of NumPy."""
        return lambda x: np.zeros((len(x), 1)) if datum is None else datum(Point(self.names, x), np)

    def geometry(self):
        """The domain: space alone, or with the time."""
        bounds = self.task.problem.domain.bounds
        low, high = (np.array([bounds[name][side] for name in self.names if name != "t"]) for side in (0, 1))
        kinds = self.dde.geometry
        space = (
            kinds.Interval(*low, *high)
            if len(low) == 1
            else (kinds.Rectangle if len(low) == 2 else kinds.Hypercube)(low.tolist(), high.tolist())
        )
        return kinds.GeometryXTime(space, kinds.TimeDomain(*bounds["t"])) if "t" in self.names else space

    def conditions(self, geometry: Any) -> list:
        icbc, stated, found = self.dde.icbc, self.stated, []
        on = lambda _, here: here  # noqa: E731
        if stated.insulated:
            found.append(icbc.NeumannBC(geometry, self._given(None), on))
        elif stated.output is None:
            found.append(icbc.DirichletBC(geometry, self._given(stated.boundary), on))
        if stated.start is not None:
            found.append(icbc.IC(geometry, self._given(stated.start), on))
        if stated.at_rest:
            first, last = self.task.problem.domain.bounds["t"][0], len(self.names) - 1
            speed = lambda x, y, _: self.dde.grad.jacobian(y, x, i=0, j=last)  # noqa: E731
            found.append(icbc.OperatorBC(geometry, speed, lambda x, _: np.isclose(x[last], first)))
        return found

    def model(self, seed: int) -> tuple[Any, list[float] | None]:
        """Compiled for Adam; and its loss weights."""
        dde, case, stated = self.dde, self.task.case, self.stated
        dde.config.set_random_seed(seed)
        geometry = self.geometry()
        ours = self.task.problem.conditions
        starts = case.boundary_points * sum(isinstance(c, (Initial, InitialVelocity)) for c in ours) // len(ours)
        points = {"num_domain": case.points, "num_boundary": case.boundary_points - starts}
        if "t" in self.names:
            data = dde.data.TimePDE(geometry, self.residual, self.conditions(geometry), **points, num_initial=starts)
        else:
            data = dde.data.PDE(geometry, self.residual, self.conditions(geometry), **points)
        sizes = [len(self.names), *[case.width] * (case.depth - 1), 1]
        net = dde.nn.FNN(sizes, stated.activation, "Glorot uniform")
        output = stated.output
        if output is not None:
            net.apply_output_transform(lambda x, y: output(Point(self.names, x), y, self.torch))
        model, weights = dde.Model(data, net), None
        if stated.balanced:
            model.compile("adam", lr=RATE, verbose=0)
            weights = (5 / np.asarray(model.train(iterations=0, verbose=0)[0].loss_train[0])).tolist()
        model.compile("adam", lr=RATE, loss_weights=weights, verbose=0)
        return model, weights

    def answer(self, model: Any) -> Answer:
        """The network as it is now."""
        copy = lambda a: a.detach().cpu().numpy().copy()  # noqa: E731
        layers = [(copy(layer.weight), copy(layer.bias)) for layer in model.net.linears]
        return Answer(layers, self.name, self.names, self.order)


def suit_threads(stated: Stated) -> None:
    """As many threads as are quickest, in the better of two tries: one, or all that torch would take."""
    torch, found = stated.torch, []
    for count in 2 * tuple(dict.fromkeys((1, torch.get_num_threads()))):
        torch.set_num_threads(count)
        model, _ = stated.model(0)
        model.train(iterations=1, verbose=0)
        began = time.perf_counter()
        model.train(iterations=4, verbose=0)
        found.append((time.perf_counter() - began, count))
    torch.set_num_threads(min(found)[1])


def deepxde(task: Task) -> Trainer:
    """Adam, then L-BFGS in pieces from snapshot to snapshot; started again where it ends early, if that lowers the loss."""
    dde = load()
    stated = Stated(task, dde)
    with redirect_stdout(sys.stderr):
        suit_threads(stated)

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        with redirect_stdout(sys.stderr):
            return steps(clock, *stated.model(seed))

    def steps(clock: Clock, model: Any, weights: list[float] | None) -> Outcome:
        def show():
            answer = stated.answer(model)
            return lambda: task.measure(answer)

        class Watch(dde.callbacks.Callback):
            """Snapshots, and an end when that share of the time is spent; pieces of L-BFGS as long as there is time for."""

            def __init__(self, share: float):
                super().__init__()
                self.share, self.before, self.done, self.first = share, clock.seconds, 0, np.inf

            def on_train_begin(self):
                self.first = float(np.sum(model.train_state.loss_train))

            def on_batch_end(self):
                clock.keep(show())
                model.stop_training |= clock.left(self.share) <= 0
                if model.opt_name == "L-BFGS":
                    done = model.opt.state_dict()["state"][0]["n_iter"]
                    pace = (clock.seconds - self.before) / max(1, done - self.done)
                    self.before, self.done = clock.seconds, done
                    pieces(int(min(clock.until_next, clock.left()) / pace))

        def pieces(iterations: int) -> None:
            count = min(max(iterations, SHORTEST), LONGEST)
            model.opt.param_groups[0].update(max_iter=count, max_eval=100 * count)

        clock.start(show())
        model.train(iterations=10**9, display_every=10**9, callbacks=[Watch(ADAM_SHARE)], verbose=0)
        best = np.inf
        while clock.left() > 0:
            model.compile("L-BFGS", loss_weights=weights, verbose=0)
            pieces(SHORTEST)
            watch = Watch(1.0)
            model.train(callbacks=[watch], verbose=0)
            if not model.stop_training:  # it ended by itself, and told no callback
                clock.keep(show())
            if not watch.first < best:
                return Outcome("converged", "it ended by its own rule.")
            best = watch.first
        return Outcome("out of time", "the time was up.")

    return train
