"""DeepXDE (Lu, Meng, Mao and Karniadakis, SIAM Review 63, 2021) on the textbook problems.

It runs on PyTorch by its own recipe: a tanh network of the same size with Glorot's uniform weights;
as many points as ours, but DeepXDE's own (Hammersley) points; Adam with the rate 1e-3 for half of
the time, then torch's L-BFGS. All in float64, which DeepXDE's documentation recommends where L-BFGS
ends early. Loss weights are 1 and inputs are not scaled, unless the demo of the same equation in
DeepXDE's repository (lululxvi/deepxde, examples/pinn_forward) does so; a comment at each of
`STATEMENTS` names the demo. This module is imported only when it is used.
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

from sapm.numerics.jets import Jet
from sapm.problem.conditions import Initial, InitialVelocity
from sapm.problem.domain import Box
from sapm.problem.pde import PDE
from sapm.studies.bench.peers import Trainer
from sapm.studies.bench.task import Clock, Outcome, Task

ADAM_RATE = 1e-3
ADAM_SHARE = 0.5  # of the budget; the demos give Adam and L-BFGS equally many iterations
LBFGS_TOLERANCE = 1e-15  # so small that the clock ends L-BFGS
MIN_LBFGS_ITERATIONS = 2  # between two checks of the clock
MAX_LBFGS_ITERATIONS = 1000  # between two checks of the clock, as DeepXDE has it
UNLIMITED_ITERATIONS = 10**9
PI = np.pi


@dataclass(frozen=True)
class Statement:
    """A problem for DeepXDE.

    Its functions take points p, with the columns of coordinates by name, and a module m with sin,
    cos, …: torch, NumPy or jax.numpy.

    Parameters
    ----------
    residual : (p, u, m) → residual of the equation
    boundary : (p, m) → u on the faces of all coordinates but t; None means 0
    start : (p, m) → u at the initial time
    at_rest : whether u_t = 0 at the initial time
    insulated : whether u_n = 0 on the faces, in place of a value
    output : (p, network, m) → u, for a network that satisfies conditions by construction; these
        conditions are then left out of the loss
    activation : of the network
    balanced : whether the loss weights are 5 / (the initial losses)
    """

    residual: Callable
    boundary: Callable | None = None
    start: Callable | None = None
    at_rest: bool = False
    insulated: bool = False
    output: Callable | None = None
    activation: str = "tanh"
    balanced: bool = False


def _layer(p, m):
    """The factor of the solution of advection_diffusion along x: 0 at both ends."""
    small = 0.05
    return p.x + (m.exp((p.x - 1) / small) - np.exp(-1 / small)) / np.expm1(-1 / small)


def _cubic(u):
    """The right-hand side of nonlinear_poisson where u solves it."""
    return 1.25 * PI**2 * u + u**3


STATEMENTS = {
    "poisson_2d": Statement(
        lambda p, u, m: -u.xx - u.yy - 2 * PI**2 * m.sin(PI * p.x) * m.sin(PI * p.y)
    ),
    "poisson_5d": Statement(
        lambda p, u, m: (
            -sum(u.d(name, name) + PI**2 * m.sin(PI * getattr(p, name)) for name in p.names)
        ),
        boundary=lambda p, m: sum(m.sin(PI * getattr(p, name)) for name in p.names),
    ),
    # demo heat.py: weights 1, tanh, Adam, then L-BFGS
    "heat_1d": Statement(
        lambda p, u, m: u.t - 0.1 * u.xx,
        start=lambda p, m: m.sin(PI * p.x) + 0.5 * m.sin(3 * PI * p.x),
    ),
    # demo wave_1d.py: weights 5 / (the initial losses); the demo's network has Fourier features,
    # this one has none
    "wave_1d": Statement(
        lambda p, u, m: u.tt - 4 * u.xx,
        start=lambda p, m: m.sin(PI * p.x) + 0.5 * m.sin(3 * PI * p.x),
        at_rest=True,
        balanced=True,
    ),
    # demo Helmholtz_Dirichlet_2d.py: sin, and an output that vanishes on the boundary
    "helmholtz_2d": Statement(
        lambda p, u, m: (
            u.xx + u.yy + 4 * PI**2 * (u.value + m.sin(2 * PI * p.x) * m.sin(2 * PI * p.y))
        ),
        output=lambda p, network, m: p.x * (1 - p.x) * p.y * (1 - p.y) * network,
        activation="sin",
    ),
    "advection_diffusion": Statement(
        lambda p, u, m: (
            -0.05 * (u.xx + u.yy) + u.x - (1 + 0.05 * PI**2 * _layer(p, m)) * m.sin(PI * p.y)
        )
    ),
    "nonlinear_poisson": Statement(
        lambda p, u, m: -u.xx - u.yy + u.value**3 - _cubic(m.sin(PI * p.x) * m.cos(PI * p.y / 2))
    ),
    # demo Burgers.py: weights 1, tanh, 15,000 iterations of Adam, then L-BFGS
    "burgers": Statement(
        lambda p, u, m: u.t + u.value * u.x - 0.01 / PI * u.xx, start=lambda p, m: -m.sin(PI * p.x)
    ),
    # demo Allen_Cahn.py: an output that satisfies the initial condition; the demo also enforces
    # u = -1 at the ends, where this problem prescribes the slope
    "allen_cahn": Statement(
        lambda p, u, m: u.t - 1e-4 * u.xx - 5 * (u.value - u.value**3),
        insulated=True,
        output=lambda p, network, m: p.x**2 * m.cos(PI * p.x) + p.t * network,
    ),
}


class Point:
    """Points (n, d) with their columns by name: `p.x` is (n, 1)."""

    def __init__(self, names: Sequence[str], rows: Any):
        self.names = tuple(names)
        self.rows = rows

    def __getattr__(self, name: str):
        i = self.names.index(name)
        return self.rows[:, i : i + 1]


class Unknown:
    """u and its derivatives by name (u.t, u.xx), computed by DeepXDE.

    Parameters
    ----------
    grad : deepxde.grad
    names : of the coordinates
    rows, value : the points (n, d) and u there (n, 1), as torch tensors
    """

    def __init__(self, grad: Any, names: Sequence[str], rows: Any, value: Any):
        self.grad = grad
        self.names = tuple(names)
        self.rows = rows
        self.value = value

    def d(self, *names: str):
        """The first derivative by a coordinate, or the second by two: (n, 1)."""
        i, *j = (self.names.index(name) for name in names)
        return (
            self.grad.hessian(self.value, self.rows, i=i, j=j[0])
            if j
            else self.grad.jacobian(self.value, self.rows, i=0, j=i)
        )

    def __getattr__(self, name: str):
        return self.d(*name)


class Answer(eqx.Module):
    """A network trained by DeepXDE as a function of jets, to be measured like the others.

    Parameters
    ----------
    layers : pairs of weights and biases
    name : the problem, a key of `STATEMENTS`
    names : the coordinates in DeepXDE's order
    order : the index of each of them in ours
    """

    layers: list[tuple[Any, Any]]
    name: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)

    def at(self, row):
        """u at one point (d,), a number."""
        statement = STATEMENTS[self.name]
        y = row[jnp.array(self.order)]
        z = y
        for W, b in self.layers[:-1]:
            z = getattr(jnp, statement.activation)(W @ z + b)
        z = self.layers[-1][0] @ z + self.layers[-1][1]
        if statement.output is not None:
            z = statement.output(Point(self.names, y[None]), z, jnp)
        return z.reshape(())

    def __call__(self, x: Jet) -> Jet:
        """The jet of u: value, tangents and second-order channels at the points of a jet."""
        k = len(x.forms[0]) if x.forms else x.tangents.shape[1]

        def channels(row, seeds):
            slopes = seeds @ jax.grad(self.at)(row)
            if not x.forms:
                return slopes
            curved = jnp.einsum("ki,ij,kj->k", seeds[:k], jax.hessian(self.at)(row), seeds[:k])
            return slopes.at[k:].add(jnp.asarray(x.forms, curved.dtype) @ curved)

        value = jax.vmap(self.at)(x.value)[:, None]
        return Jet(value, jax.vmap(channels)(x.value, x.tangents)[..., None], x.forms)


def load() -> Any:
    """The package `deepxde`, set to PyTorch and float64. What it prints goes to standard error."""
    os.environ["DDE_BACKEND"] = "pytorch"
    with redirect_stdout(sys.stderr):
        dde: Any = import_module("deepxde")
        dde.config.set_default_float("float64")
        dde.optimizers.set_LBFGS_options(maxiter=UNLIMITED_ITERATIONS, gtol=LBFGS_TOLERANCE)
    return dde


class Stated:
    """A case as DeepXDE's geometry, conditions and model.

    Parameters
    ----------
    task : a case with a textbook problem
    dde : the package, from `load`
    """

    def __init__(self, task: Task, dde: Any):
        import torch  # type: ignore[import-not-found]

        self.task = task
        self.dde = dde
        self.torch = torch
        self.name = task.case.experiment
        domain = task.problem.domain
        assert isinstance(domain, Box)
        self.bounds = domain.bounds
        ours = domain.names
        if self.name not in STATEMENTS:
            raise ValueError(
                f"{self.name} is not stated for DeepXDE; there are {', '.join(STATEMENTS)}."
            )
        self.stated = STATEMENTS[self.name]
        # DeepXDE's last coordinate is the time
        self.names = tuple(sorted(ours, key=lambda name: name == "t"))
        self.order = tuple(ours.index(name) for name in self.names)

    def residual(self, x, y):
        """The residual of the equation at points x (n, d), where u is y (n, 1)."""
        return self.stated.residual(
            Point(self.names, x), Unknown(self.dde.grad, self.names, x, y), self.torch
        )

    def _values(self, datum: Callable | None) -> Callable:
        """The values of a condition as a function of NumPy points (n, d); 0 without a datum."""
        return lambda x: np.zeros((len(x), 1)) if datum is None else datum(Point(self.names, x), np)

    def geometry(self):
        """DeepXDE's geometry of the domain: a box in space, or in space and time."""
        bounds = self.bounds
        low, high = (
            np.array([bounds[name][side] for name in self.names if name != "t"]) for side in (0, 1)
        )
        kinds = self.dde.geometry
        if len(low) == 1:
            space = kinds.Interval(*low, *high)
        else:
            box = kinds.Rectangle if len(low) == 2 else kinds.Hypercube
            space = box(low.tolist(), high.tolist())
        if "t" not in self.names:
            return space
        return kinds.GeometryXTime(space, kinds.TimeDomain(*bounds["t"]))

    def conditions(self, geometry: Any) -> list:
        """DeepXDE's boundary and initial conditions on a geometry."""
        icbc = self.dde.icbc
        stated = self.stated
        conditions = []

        def on(_, on_boundary):
            return on_boundary

        if stated.insulated:
            conditions.append(icbc.NeumannBC(geometry, self._values(None), on))
        elif stated.output is None:
            conditions.append(icbc.DirichletBC(geometry, self._values(stated.boundary), on))
        if stated.start is not None:
            conditions.append(icbc.IC(geometry, self._values(stated.start), on))
        if stated.at_rest:
            first = self.bounds["t"][0]
            last = len(self.names) - 1

            def speed(x, y, _):
                return self.dde.grad.jacobian(y, x, i=0, j=last)

            conditions.append(
                icbc.OperatorBC(geometry, speed, lambda x, _: np.isclose(x[last], first))
            )
        return conditions

    def model(self, seed: int) -> tuple[Any, list[float] | None]:
        """A model with initial weights, compiled for Adam, and its loss weights (None for 1)."""
        dde = self.dde
        case = self.task.case
        stated = self.stated
        dde.config.set_random_seed(seed)
        geometry = self.geometry()
        problem = self.task.problem
        assert isinstance(problem, PDE)
        ours = problem.conditions
        starts = (
            case.boundary_points
            * sum(isinstance(c, (Initial, InitialVelocity)) for c in ours)
            // len(ours)
        )
        points = {"num_domain": case.points, "num_boundary": case.boundary_points - starts}
        if "t" in self.names:
            data = dde.data.TimePDE(
                geometry, self.residual, self.conditions(geometry), **points, num_initial=starts
            )
        else:
            data = dde.data.PDE(geometry, self.residual, self.conditions(geometry), **points)
        sizes = [len(self.names), *[case.width] * (case.depth - 1), 1]
        net = dde.nn.FNN(sizes, stated.activation, "Glorot uniform")
        output = stated.output
        if output is not None:
            net.apply_output_transform(lambda x, y: output(Point(self.names, x), y, self.torch))
        model = dde.Model(data, net)
        weights = None
        if stated.balanced:
            model.compile("adam", lr=ADAM_RATE, verbose=0)
            weights = (
                5 / np.asarray(model.train(iterations=0, verbose=0)[0].loss_train[0])
            ).tolist()
        model.compile("adam", lr=ADAM_RATE, loss_weights=weights, verbose=0)
        return model, weights

    def answer(self, model: Any) -> Answer:
        """The network of a model with its present weights."""

        def copy(a):
            return a.detach().cpu().numpy().copy()

        layers = [(copy(layer.weight), copy(layer.bias)) for layer in model.net.linears]
        return Answer(layers, self.name, self.names, self.order)


def suit_threads(stated: Stated) -> None:
    """Set torch's threads to one, or to its default, whichever trains faster.

    Both are timed twice, and the fastest run decides.
    """
    torch = stated.torch
    times = []
    for count in 2 * tuple(dict.fromkeys((1, torch.get_num_threads()))):
        torch.set_num_threads(count)
        model, _ = stated.model(0)
        model.train(iterations=1, verbose=0)
        began = time.perf_counter()
        model.train(iterations=4, verbose=0)
        times.append((time.perf_counter() - began, count))
    torch.set_num_threads(min(times)[1])


def deepxde(task: Task) -> Trainer:
    """Adam, then L-BFGS in pieces from snapshot to snapshot.

    L-BFGS is restarted where it ends early, as long as that lowers the loss.
    """
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
            """Offer snapshots, and stop when a share of the budget is spent.

            The pieces of L-BFGS get the length that fits the time to the next snapshot.
            """

            def __init__(self, share: float):
                super().__init__()
                self.share = share
                self.before = clock.seconds
                self.done = 0
                self.initial_loss = np.inf

            def on_train_begin(self):
                self.initial_loss = float(np.sum(model.train_state.loss_train))

            def on_batch_end(self):
                clock.keep(show())
                model.stop_training |= clock.left(self.share) <= 0
                if model.opt_name == "L-BFGS":
                    done = model.opt.state_dict()["state"][0]["n_iter"]
                    pace = (clock.seconds - self.before) / max(1, done - self.done)
                    self.before = clock.seconds
                    self.done = done
                    pieces(int(min(clock.until_next, clock.left()) / pace))

        def pieces(iterations: int) -> None:
            count = min(max(iterations, MIN_LBFGS_ITERATIONS), MAX_LBFGS_ITERATIONS)
            model.opt.param_groups[0].update(max_iter=count, max_eval=100 * count)

        clock.start(show())
        model.train(
            iterations=UNLIMITED_ITERATIONS,
            display_every=UNLIMITED_ITERATIONS,
            callbacks=[Watch(ADAM_SHARE)],
            verbose=0,
        )
        best = np.inf
        while clock.left() > 0:
            model.compile("L-BFGS", loss_weights=weights, verbose=0)
            pieces(MIN_LBFGS_ITERATIONS)
            watch = Watch(1.0)
            model.train(callbacks=[watch], verbose=0)
            if not model.stop_training:  # L-BFGS ended by its own rule, without a callback
                clock.keep(show())
            if not watch.initial_loss < best:
                return Outcome("converged", "it ended by its own rule.")
            best = watch.initial_loss
        return Outcome("out of time", "the time was up.")

    return train
