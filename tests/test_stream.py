"""Sweeps over chunks of samples are the sweeps over all of them; what is on disk outlives a kill, or is gone at the end."""


import jax
import numpy as np
import pytest
from cases import relative

import sapm
from sapm import stream
from sapm.methods.build import build
from sapm.samples import scaling_of
from sapm.solver import plan
from sapm.train import keys_of, train


def data(n=61, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    return X, np.c_[np.sin(3 * X[:, 0]) * X[:, 1], X[:, -1] ** 2]


def settings(**more):
    return {"model": "sapm", "method": "alternating", "seeds": 2, "max_iter": 3} | more


def both(problem, chunk, sweeps=1, depth=4, width=(5, 5, 4), files_in=None, **given):
    """(run in chunks, run on the whole) from the same networks and auxiliary variables."""
    config, sigma = plan(problem, depth, list(width), "tanh", **settings(**given))
    whole = build(problem.samples(), config, sigma)
    states = jax.vmap(whole.init)(keys_of(config["seeds"], 0))
    aux = [np.asarray(u.value) for u in jax.vmap(whole.point)(states).aux[0].layers()[:-1]]
    expected = train(whole, sweeps, config["seeds"], initial=states)

    config["options"]["chunk"] = chunk
    sketch = problem.sketch()
    method = build(sketch, config, sigma)
    source = stream.Source(problem, scaling_of(sketch, config["options"]["scale"]), chunk)
    with stream.Files(files_in, 2, source, method.widths[1:-1]) as files:
        run = stream.train(method, sweeps, config["seeds"], 0, None, 0.0, 10**9, source=source, files=files, initial=aux)
        where = stream.numbers(run.states)
        found = [np.concatenate([files.read(k, l, c) for c in range(source.chunks)], 1) for l, k in enumerate(where, 1)]
    wanted = jax.vmap(whole.point)(expected.states).aux[0].layers()[:-1]
    assert max(relative(a[:, : len(problem.X)], u.value) for a, u in zip(found, wanted, strict=True)) < 1e-10
    return run, expected


@pytest.mark.parametrize("model", ["pm", "sapm"])
@pytest.mark.parametrize("chunk", [61, 20, 7])
@pytest.mark.parametrize("more", [{}, {"l2": 1e-6, "joint": True, "scale": True}], ids=["plain", "l2-joint-scaled"])
def test_chunks_equal_the_whole(model, chunk, more):
    """The auxiliary variables, the weights and both losses after a sweep, for two seeds, with weights for the samples."""
    X, Y = data()
    problem = sapm.Regression(5 + 3 * X, Y, weights=np.random.default_rng(1).uniform(0, 2, len(X)))
    run, expected = both(problem, chunk, model=model, options=more, beta=[0.5, 2.0, 1.5])
    for name in ("loss", "mean_squared_loss"):
        assert relative(run.history[name], expected.history[name]) < 1e-10
    for i in range(2):
        for (W, b), (V, c) in zip(run.network(i).weights, expected.network(i).weights, strict=True):
            assert max(relative(W, V), relative(b, c)) < 1e-10
