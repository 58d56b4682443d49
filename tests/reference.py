"""The paper as slow, plain NumPy: the specification the fast engine is tested against.

Layout of the paper: samples are columns. X is (d, N), a_l is (M, N), W_l is (out, in), b_l is
(out,); the tangents of
layer l are one array (d, M, N1), slice i for d_{l,i}. Lists over layers start with None: W[l],
a[l], beta[l], l = 1..L.

A `term` is a set of samples: "regression" (the FNN data), "interior" (superscript (1)), "boundary"
(superscript (2)).
Fixed weights: beta[l] on value defects, l < L (the defect at L is the misfit and has weight 1);
alpha[l] on tangent defects, l <= L. A family that is None is all ones. Block updates return the new
block and leave the point as it is.
"""

import copy
import math
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.linalg import lstsq


def _s(x):
    return np.exp(-np.logaddexp(0.0, -x))  # the logistic function


ACTIVATIONS = {  # name: (sigma, sigma', sigma'')
    "relu": (
        lambda x: np.where(x > 0, x, 0.0),
        lambda x: np.where(x > 0, 1.0, 0.0),
        lambda x: 0.0 * x,
    ),
    "sin": (np.sin, np.cos, lambda x: -np.sin(x)),
    "tanh": (
        np.tanh,
        lambda x: 1 - np.tanh(x) ** 2,
        lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2),
    ),
    "sigmoid": (_s, lambda x: _s(x) * _s(-x), lambda x: _s(x) * _s(-x) * (_s(-x) - _s(x))),
    "softplus": (lambda x: np.logaddexp(0.0, x), _s, lambda x: _s(x) * _s(-x)),
}
# name: (Lipschitz constant of sigma, bound of |sigma'|, Lipschitz constant of sigma' or None where
# there is none)
CONSTANTS = {"relu": (1.0, 1.0, None), "sin": (1.0, 1.0, 1.0), "softplus": (1.0, 1.0, 0.25)}
CONSTANTS |= {"tanh": (1.0, 1.0, 4 / math.sqrt(27)), "sigmoid": (0.25, 0.25, 1 / math.sqrt(108))}


@dataclass
class Regression:
    """Data of the FNN models: X (d, N), Y (m, N); act is a triple of ACTIVATIONS; model is "pm" or
    "sapm".
    """

    X: np.ndarray
    Y: np.ndarray
    act: tuple
    model: str = "sapm"
    beta: list | None = None


@dataclass
class Pinn:
    """Data of the PINN models: c(x).grad u = Y1 at X1 with C = [c(x_1) ... c(x_N1)] (d, N1); u = Y2
    at X2.
    """

    X1: np.ndarray
    Y1: np.ndarray
    C: np.ndarray
    X2: np.ndarray
    Y2: np.ndarray
    mu: float
    act: tuple
    model: str = "sapm"
    beta1: list | None = None
    beta2: list | None = None
    alpha: list | None = None


@dataclass
class Point:
    """Iterate of Algorithm 1 (W, b, a) or 2 (W, b, a1, a2, d): a up to l = L-1, d up to l = L, d[l]
    of (d, M_l, N1). rates[term, l] is the step length that every sample tries next."""

    W: list
    b: list
    a: list | None = None
    a1: list | None = None
    a2: list | None = None
    d: list | None = None
    rates: dict = field(default_factory=dict)


def depth(point):
    return len(point.W) - 1


def square(x):
    return float(np.sum(x**2))


def fixed(weights, l):
    """beta[l] or alpha[l]; 1 for a family that is None."""
    return 1.0 if weights is None else weights[l]


def view(point, data, term):
    """(X, Y, list of a_l, beta, factor in the loss) of one set of samples. Interior samples have no
    label of the value:
    the print's P_L^(1) = Y^(1) - b_L takes the label of c.grad psi for it, but only ever with
    weight zero."""
    if term == "regression":
        return data.X, data.Y, point.a, data.beta, 1 / data.X.shape[1]
    if term == "interior":
        return data.X1, None, point.a1, data.beta1, 1 / data.X1.shape[1]
    return data.X2, data.Y2, point.a2, data.beta2, data.mu / data.X2.shape[1]


def samples(point, data, l):
    """All (term, n) with a value defect at layer l: every sample, but at L no interior one."""
    if isinstance(data, Regression):
        return [("regression", n) for n in range(data.X.shape[1])]
    interior = [("interior", n) for n in range(data.X1.shape[1])] if l < depth(point) else []
    return interior + [("boundary", n) for n in range(data.X2.shape[1])]


def tangents(data):
    """All (i, n) with a tangent defect; none in regression."""
    return [] if isinstance(data, Regression) else list(product(*map(range, data.X1.shape)))


def forward(W, b, sigma, X):
    """[None, a_1, ..., a_L] of the network, eq. (22) (regression: the constraints of eq. (05))."""
    a = [None]
    for l in range(1, len(W)):
        a.append(np.zeros((W[l].shape[0], X.shape[1])))
        for n in range(X.shape[1]):
            a[l][:, n] = W[l] @ (X[:, n] if l == 1 else sigma(a[l - 1][:, n])) + b[l]
    return a


def forward_tangents(W, b, sigma, dsigma, X):
    """[None, d_1, ..., d_L] of the network, eq. (24); d_l[i] is the derivative of a_l by x_i."""
    a = forward(W, b, sigma, X)
    d = [None]
    for l in range(1, len(W)):
        d.append(np.zeros((X.shape[0], W[l].shape[0], X.shape[1])))
        for i, n in product(range(X.shape[0]), range(X.shape[1])):
            d[l][i, :, n] = (
                W[1][:, i] if l == 1 else W[l] @ (dsigma(a[l - 1][:, n]) * d[l - 1][i, :, n])
            )
    return d


def value_pair(point, data, l, n, term):
    """(A_l[n], P_l[n] + b_l) of Section 2.4 and the Appendix: what enters layer l and what should
    leave it.
    """
    X, Y, a, _, _ = view(point, data, term)
    return X[:, n] if l == 1 else data.act[0](a[l - 1][:, n]), Y[:, n] if l == depth(point) else a[
        l
    ][:, n]


def value_defect(point, data, l, n, term):
    """W_l A_l[n] - P_l[n], the residual inside eqs. (SAPM_FNN), (SAPM_PINN)."""
    z, target = value_pair(point, data, l, n, term)
    return point.W[l] @ z + point.b[l] - target


def tangent_input(point, data, l, i, n):
    """Appendix, Z_{l,i}[n]; for l = 1 the i-th unit vector.
    Corrected: eq. (eq:w1) prints the unit vectors sample by sample, but D_1 on its right has i as
    the outer index."""
    return (
        np.eye(len(data.X1))[:, i]
        if l == 1
        else data.act[1](point.a1[l - 1][:, n]) * point.d[l - 1][i, :, n]
    )


def tangent_defect(point, data, l, i, n):
    """D_{l,i}[n] - d_{l,i}[n] with D_{l,i} of the Appendix."""
    return point.W[l] @ tangent_input(point, data, l, i, n) - point.d[l][i, :, n]


def omega(point, data, l):
    """eq. (27) with omega_L = 1: the product of |W_j|_F^2 over j > l. PM: 1."""
    return (
        1.0
        if data.model == "pm"
        else math.prod(square(point.W[j]) for j in range(l + 1, depth(point) + 1))
    )


def Omega_squared(point, data, l, n):
    """Squared n-th diagonal entry of Omega_l (Section 3.3); also gamma_{n,l}, theta_l[n],
    delta_{n,l}. PM: 1.
    Corrected: theta_l prints d_{l,i} under its sum over layers k (d_{k,i} is meant), delta_{n,l}
    lacks the sum over i;
    both come from derivatives of the loss, whose factor is this one."""
    pairs = product(range(data.X1.shape[0]), range(l, depth(point)))
    return 1.0 if data.model == "pm" else sum(square(point.d[j][i, :, n]) for i, j in pairs)


def value_weight(point, data, l, n, term):
    """Factor of a squared value defect beside omega_l: beta_l/N (at L: 1/N), times Omega_l^2 for
    interior samples.
    """
    _, _, _, beta, scale = view(point, data, term)
    weight = scale * (fixed(beta, l) if l < depth(point) else 1.0)
    return weight * Omega_squared(point, data, l, n) if term == "interior" else weight


def L(point, data):
    """eq. (LS_FNN)."""
    a = forward(point.W, point.b, data.act[0], data.X)[-1]
    return sum(square(a[:, n] - data.Y[:, n]) for n in range(a.shape[1])) / a.shape[1]


def J(point, data):
    """eqs. (28), (LS_PINN). Corrected: the network there is psi, not phi."""
    d = forward_tangents(point.W, point.b, data.act[0], data.act[1], data.X1)[-1]
    a = forward(point.W, point.b, data.act[0], data.X2)[-1]
    interior = (
        sum(square(data.C[:, n] @ d[:, :, n] - data.Y1[:, n]) for n in range(d.shape[2]))
        / d.shape[2]
    )
    return (
        interior
        + data.mu * sum(square(a[:, n] - data.Y2[:, n]) for n in range(a.shape[1])) / a.shape[1]
    )


def loss(point, data):
    """Loss with auxiliary variables, by data.model: eqs. (PM_FNN), (SAPM_FNN), (PM_PINN),
    (SAPM_PINN).
    """
    total = 0.0
    for l in range(1, depth(point) + 1):
        w = omega(point, data, l)
        for term, n in samples(point, data, l):
            total += (
                w
                * value_weight(point, data, l, n, term)
                * square(value_defect(point, data, l, n, term))
            )
        for i, n in tangents(data):
            total += (
                w
                * fixed(data.alpha, l)
                * square(tangent_defect(point, data, l, i, n))
                / data.X1.shape[1]
            )
    for n in range(data.X1.shape[1] if isinstance(data, Pinn) else 0):
        total += (
            square(data.C[:, n] @ point.d[depth(point)][:, :, n] - data.Y1[:, n]) / data.X1.shape[1]
        )
    return total


def L_P(point, data):
    """eq. (PM_FNN); under the name J_P eq. (PM_PINN)."""
    return loss(point, replace(data, model="pm"))


def L_S(point, data):
    """eq. (SAPM_FNN); under the name J_S eq. (SAPM_PINN)."""
    return loss(point, replace(data, model="sapm"))


J_P = L_P
J_S = L_S


def ridge_W(point, data, l):
    """lambda_l of Section 2.4 (FNN) and of the Appendix (PINN), for the W_l problem divided by
    omega_l. PM: 0.
    Corrected: the FNN sum gets 1/N (the data term here has it, as in Algorithm 2), the PINN's
    boundary sum gets mu.
    The print splits Omega_m^2 of a PINN into layers m..l-1 (tilde Omega_m) and l..L-1 (Omega_l)."""
    lam = 0.0
    for m in range(1, 1 if data.model == "pm" else l):
        tilde_omega = math.prod(square(point.W[k]) for k in range(m + 1, l))
        for term, n in samples(point, data, m):
            lam += (
                tilde_omega
                * value_weight(point, data, m, n, term)
                * square(value_defect(point, data, m, n, term))
            )
        for i, n in tangents(data):
            lam += (
                tilde_omega
                * fixed(data.alpha, m)
                / data.X1.shape[1]
                * square(tangent_defect(point, data, m, i, n))
            )
    return lam


def xi(point, data, l, n):
    """Appendix, xi_{n,l}: ridge of the d_l[n] problem multiplied by N1 and divided by omega_{l+1}.
    PM: 0.
    """
    total = 0.0
    for j in range(1, 1 if data.model == "pm" else l + 1):
        factor = fixed(data.beta1, j) * math.prod(square(point.W[k]) for k in range(j + 1, l + 2))
        total += factor * square(value_defect(point, data, j, n, "interior"))
    return total


def update_W(point, data, l, joint=False):
    """W_l from eq. (25) (FNN), eqs. (eq:wl), (eq:w1) (PINN); joint=True: (W_l, b_l) at once, ridge
    on W_l only.
    Corrected: the boundary columns carry sqrt(mu), as in the loss; the FNN columns 1/sqrt(N), to
    match the ridge."""
    (out, width), lam, rows, targets = point.W[l].shape, ridge_W(point, data, l), [], []

    def column(weight, one, z, target):
        rows.append(math.sqrt(weight) * (np.append(z, one) if joint else z))
        targets.append(math.sqrt(weight) * (target if joint else target - one * point.b[l]))

    for i, n in tangents(data):
        column(
            fixed(data.alpha, l) / data.X1.shape[1],
            0.0,
            tangent_input(point, data, l, i, n),
            point.d[l][i, :, n],
        )
    for term, n in samples(point, data, l):
        column(value_weight(point, data, l, n, term), 1.0, *value_pair(point, data, l, n, term))
    for k in range(width):
        column(lam, 0.0, np.eye(width)[k], np.zeros(out))
    solution = lstsq(np.array(rows), np.array(targets), rcond=None)[0].T
    return (solution[:, :width], solution[:, width]) if joint else solution


def update_b(point, data, l):
    """b_l from eq. (26) (FNN), eqs. (eq:bl), (eq:bL) (PINN). Corrected: sqrt(mu) on the boundary
    columns.
    """
    rows = []
    targets = []
    for term, n in samples(point, data, l):
        root, (z, target) = (
            math.sqrt(value_weight(point, data, l, n, term)),
            value_pair(point, data, l, n, term),
        )
        rows.append([root])
        targets.append(root * (target - point.W[l] @ z))
    return lstsq(np.array(rows), np.array(targets), rcond=None)[0][0]


def update_d(point, data, l):
    """d_l from eq. (eq:dli), l < L, or eq. (eq:dLi), l = L. Corrected: the latter's right-hand side
    ends in D_{L,d}.
    Rows of defect l+1, of defect l and of the equation carry alpha_{l+1}, alpha_l and 1. PM:
    |W_{l+1}|_F becomes 1."""
    new = np.zeros_like(point.d[l])
    here = math.sqrt(fixed(data.alpha, l))
    dim, out, N1 = new.shape
    for n in range(N1):
        D = np.array([point.W[l] @ tangent_input(point, data, l, i, n) for i in range(dim)])
        if l == depth(point):
            rows = np.vstack([data.C[:, n], here * np.eye(dim)])
            new[:, :, n] = lstsq(rows, np.vstack([data.Y1[:, n], here * D]), rcond=None)[0]
            continue
        above = math.sqrt(fixed(data.alpha, l + 1))
        W = point.W[l + 1]
        norm = 1.0 if data.model == "pm" else math.sqrt(square(W))
        ridge = math.sqrt(xi(point, data, l, n))
        slope = np.diag(data.act[1](point.a1[l][:, n]))
        rows = np.vstack([above * W @ slope, here * norm * np.eye(out), ridge * np.eye(out)])
        for i in range(dim):
            targets = np.concatenate(
                [above * point.d[l + 1][i, :, n], here * norm * D[i], np.zeros(out)]
            )
            new[i, :, n] = lstsq(rows, targets, rcond=None)[0]
    return new


def local_loss_a(point, data, l, n, term, a):
    """The part of the loss that depends on column n of a_l, at the value a: S_l of Section 2.4 with
    all its factors.
    """
    here = omega(point, data, l)
    above = omega(point, data, l + 1)
    W = point.W[l + 1]
    predicted = point.W[l] @ value_pair(point, data, l, n, term)[0] + point.b[l]
    total = here * value_weight(point, data, l, n, term) * square(predicted - a)
    if (term, n) in samples(point, data, l + 1):
        defect = W @ data.act[0](a) + point.b[l + 1] - value_pair(point, data, l + 1, n, term)[1]
        total += above * value_weight(point, data, l + 1, n, term) * square(defect)
    for i in range(data.X1.shape[0] if term == "interior" else 0):
        defect = W @ (data.act[1](a) * point.d[l][i, :, n]) - point.d[l + 1][i, :, n]
        total += above * fixed(data.alpha, l + 1) / data.X1.shape[1] * square(defect)
    return total


def gradient_a(point, data, l, term):
    """Gradient of the whole loss by a_l, of its shape (M, N): the displayed gradients of Sections
    2.4 and 3.4.
    Corrected: the print drops the common factors omega_{l+1}/N, omega_{l+1}/N1, mu omega_{l+1}/N2;
    kept here."""
    values, W, (_, dsigma, ddsigma) = view(point, data, term)[2][l], point.W[l + 1], data.act
    here = omega(point, data, l)
    above = omega(point, data, l + 1)
    gradient = np.zeros_like(values)
    for n in range(values.shape[1]):
        a = values[:, n]
        g = -here * value_weight(point, data, l, n, term) * value_defect(point, data, l, n, term)
        if (term, n) in samples(point, data, l + 1):
            weight = value_weight(point, data, l + 1, n, term)
            defect = value_defect(point, data, l + 1, n, term)
            g += above * weight * (W.T @ defect) * dsigma(a)
        for i in range(data.X1.shape[0] if term == "interior" else 0):
            weight = fixed(data.alpha, l + 1) / data.X1.shape[1]
            defect = tangent_defect(point, data, l + 1, i, n)
            g += above * weight * (W.T @ defect) * point.d[l][i, :, n] * ddsigma(a)
        gradient[:, n] = 2 * g
    return gradient


def gradient_step(point, data, l, term, shared=False):
    """One descent step for a_l; the paper asks for a line search and leaves its rule open. Ours:
    one trial for each column, a - rate * gradient / (2 * weight of the column's value defect);
    taken where the column's part of the loss meets Armijo's rule, and then its rate grows 1.5 times
    (at most to 4), elsewhere it halves (at least 1e-6). Rates start at 1. shared: the columns'
    parts are added up, so that all steps are taken or none."""
    a = view(point, data, term)[2][l]
    gradient = gradient_a(point, data, l, term)
    rates = point.rates.setdefault((term, l), np.ones(a.shape[1]))
    trial = a.copy()
    excess = np.zeros(a.shape[1])
    for n in range(a.shape[1]):
        weight = omega(point, data, l) * value_weight(point, data, l, n, term)
        direction = -gradient[:, n] / (2 * weight) if weight > 0 else np.zeros(a.shape[0])
        trial[:, n] = a[:, n] + rates[n] * direction
        rise = local_loss_a(point, data, l, n, term, trial[:, n]) - local_loss_a(
            point, data, l, n, term, a[:, n]
        )
        excess[n] = rise - 1e-4 * rates[n] * float(gradient[:, n] @ direction)
    taken = np.full(a.shape[1], excess.sum() <= 0) if shared else excess <= 0
    point.rates[term, l] = np.where(
        taken, np.minimum(1.5 * rates, 4.0), np.maximum(0.5 * rates, 1e-6)
    )
    return np.where(taken, trial, a)


def solve_W_b(point, data, l, joint):
    """W_l and then b_l, written into the point; joint: both in one solve."""
    if joint:
        point.W[l], point.b[l] = update_W(point, data, l, joint=True)
    else:
        point.W[l] = update_W(point, data, l)
        point.b[l] = update_b(point, data, l)


def step_a(point, data, l, term, shared):
    view(point, data, term)[2][l] = gradient_step(point, data, l, term, shared)


def algorithm_1(point, data, joint=False, shared=False):
    """One sweep of Algorithm 1: W_L, b_L, then for l = L-1..1: a_l, W_l, b_l. New point."""
    point = copy.deepcopy(point)
    for l in range(depth(point), 0, -1):
        if l < depth(point):
            step_a(point, data, l, "regression", shared)
        solve_W_b(point, data, l, joint)
    return point


def algorithm_2(point, data, joint=False, shared=False):
    """One sweep of Algorithm 2: W_L, b_L, d_L, then for l = L-1..1: W_l, b_l, d_l, a_l^(1),
    a_l^(2). New point.
    """
    point = copy.deepcopy(point)
    for l in range(depth(point), 0, -1):
        solve_W_b(point, data, l, joint)
        point.d[l] = update_d(point, data, l)
        if l < depth(point):
            step_a(point, data, l, "interior", shared)
            step_a(point, data, l, "boundary", shared)
    return point


def theorem_1_printed(B, L, beta=None):
    """Theorem 1: the mean square loss is at most this times L_S, with B the Lipschitz constant of
    sigma.
    """
    return max(1.0, B ** (2 * L - 2)) * max([1.0, *(1 / fixed(beta, l) for l in range(1, L))]) * L


def theorem_1_sharp(B, L, beta=None):
    """The same by a weighted Cauchy-Schwarz inequality on the last display of the proof of Theorem
    1.
    """
    return 1.0 + sum(B ** (2 * (L - l)) / fixed(beta, l) for l in range(1, L))


def theorem_3_printed(C_s, B_ds, C_ds, B_c, d, L, alpha=None, beta1=None, beta2=None):  # noqa: PLR0913
    """Theorem 3: J is at most this times J_S; C_s, B_ds, C_ds as in CONSTANTS, |c_i| <= B_c; beta_L
    is read as 1.
    Kept as printed: for B_ds, C_s < 1 < C_ds its maximum lacks B_c^2 C_ds^2 (power 0) and the bound
    can fail."""
    if C_ds is None:
        raise ValueError("Theorem 3 needs a Lipschitz continuous sigma'")
    powers = [C_ds**2 * max(B_ds**p, C_s**p) for p in (2 * L - 4, 2 * L - 6)]
    interior = max(1.0, B_c**2, B_c**2 * B_ds ** (2 * L - 2), B_c**2 * max(powers))
    interior *= max(
        1.0,
        *(1 / fixed(alpha, l) for l in range(1, L + 1)),
        *(1 / fixed(beta1, l) for l in range(1, L)),
    )
    boundary = max(1.0, C_s ** (2 * L - 2)) * max(
        [1.0, *(1 / fixed(beta2, l) for l in range(1, L))]
    )
    return max(interior, boundary) * d * L * (L + 1)


def theorem_5_sharp(C, B, K, M, form_square, alpha, beta):
    """X_a, X_d and X_S of Theorem 5 (docs/method.md, section 8): what the squares of c_0, c_d and
    c_S are multiplied by. form_square is φ²; alpha[l] for l = 1..L and beta[l] for l < L.
    """
    depth = len(alpha) - 1

    def P(i):
        return sum(B ** (2 * (depth - m - 1)) * C ** (2 * (m - i)) for m in range(i, depth))

    def R(i):
        return sum(
            (depth - 1 - j) * B ** (2 * (depth - j - 2)) * C ** (2 * (j - i))
            for j in range(i, depth - 1)
        )

    below = range(1, depth)
    along = sum(B ** (2 * (depth - l)) / alpha[l] for l in range(1, depth + 1))
    values = 1 + sum(C ** (2 * (depth - l)) / beta[l] for l in below)
    tangents = along + K**2 * sum(P(i) / beta[i] for i in below)
    second = along
    for l in below:
        second += form_square * K**2 * (depth - l) * B ** (2 * (depth - l - 1)) / alpha[l]
        second += (K**2 + form_square * M**2) * P(l) / beta[l]
        second += form_square * K**4 * R(l) / beta[l]
    return values, tangents, second
