"""Finite differences on poisson_2d and heat_1d (sapm/catalogue/textbook.py), for docs/choosing.md.

It takes seconds and needs only scipy.

python benchmarks/grids.py
"""

import time

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve


def second_difference(n: int) -> sp.spmatrix:
    """-d²/dx² on n inner points of (0, 1), 0 at the ends."""
    return sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (n, n)) * (n + 1) ** 2


def differences(n: int) -> float:
    """poisson_2d by five-point differences on n × n inner points: the relative error there."""
    x = np.arange(1, n + 1) / (n + 1)
    exact = np.outer(np.sin(np.pi * x), np.sin(np.pi * x)).ravel()
    D = second_difference(n)
    one = sp.identity(n)
    u = spsolve((sp.kron(D, one) + sp.kron(one, D)).tocsc(), 2 * np.pi**2 * exact)
    return float(np.linalg.norm(u - exact) / np.linalg.norm(exact))


def chebyshev(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n + 1 Chebyshev points of [0, 1] and the matrix of d/dx on them."""
    x = np.cos(np.pi * np.arange(n + 1) / n)
    c = np.r_[2, np.ones(n - 1), 2] * (-1.0) ** np.arange(n + 1)
    D = np.outer(c, 1 / c) / (x[:, None] - x + np.eye(n + 1))
    return (x + 1) / 2, 2 * (D - np.diag(D.sum(1)))


def spectral(n: int) -> float:
    """poisson_2d by collocation at Chebyshev points, with the eigenvectors of one direction: the
    relative error there.
    """
    x, D = chebyshev(n)
    values, vectors = np.linalg.eig(-(D @ D)[1:-1, 1:-1])
    exact = np.outer(np.sin(np.pi * x), np.sin(np.pi * x))[1:-1, 1:-1]
    back = np.linalg.inv(vectors)
    right = back @ (2 * np.pi**2 * exact) @ back.T
    u = (vectors @ (right / (values[:, None] + values)) @ vectors.T).real
    return float(np.linalg.norm(u - exact) / np.linalg.norm(exact))


def crank_nicolson(n: int) -> float:
    """The relative error of heat_1d with n inner points and n time steps, at the final time."""
    x = np.arange(1, n + 1) / (n + 1)
    h = 1 / n

    def mode(k, t):
        return np.exp(-0.1 * (k * np.pi) ** 2 * t) * np.sin(k * np.pi * x)

    A = 0.1 * second_difference(n)
    one = sp.identity(n)
    left = sp.linalg.splu((one + h / 2 * A).tocsc())
    right = (one - h / 2 * A).tocsr()
    u = mode(1, 0) + 0.5 * mode(3, 0)
    wrong = 0.0
    size = 0.0
    for k in range(1, n + 1):
        u = left.solve(right @ u)
        exact = mode(1, k * h) + 0.5 * mode(3, k * h)
        wrong = wrong + np.sum((u - exact) ** 2)
        size = size + np.sum(exact**2)
    return float(np.sqrt(wrong / size))


if __name__ == "__main__":
    for what, solve, sizes in (
        ("poisson_2d, five-point differences", differences, (64, 256)),
        ("poisson_2d, Chebyshev collocation", spectral, (8, 24)),
        ("heat_1d, Crank-Nicolson", crank_nicolson, (64, 1024)),
    ):
        for n in sizes:
            began = time.perf_counter()
            error = solve(n)
            print(f"{what}, n = {n}: error {error:.1e} in {time.perf_counter() - began:.3f} s")
