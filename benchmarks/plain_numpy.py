"""Sweeps of Algorithm 1 (regression) or 2 (PINN) for the SAPM loss in NumPy, for one seed.

Written as one would write it for speed without a compiler: samples first, whole-array operations,
defects kept between blocks instead of computed anew, normal equations for W, one batched
`numpy.linalg.solve` for the d systems of a layer. Lists and arrays over layers have index 0 for the
input and 1..L for the layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def relu(x):
    return np.maximum(x, 0.0), (x > 0).astype(float)


def sin(x):
    return np.sin(x), np.cos(x)


ACTIVATIONS = {
    "relu": (relu, lambda z: 0.0 * z),
    "sin": (sin, lambda z: -z),
}  # x → (σ, σ'); σ → σ''


class Term:
    """One kind of sample: data, free variables a_l (and d_l where c is given), and what is kept of
    them by layer.

    z, slope: σ and σ' at a_l. r, rd: value and tangent defects. length: step lengths for a, row l-1
    for layer l.
    v, tau, t: squared norms of r, rd and d (per sample where c is given, except tau).
    """

    def __init__(self, *, x, y, c, kappa, a, d, W, b, pair):  # noqa: PLR0913
        L = len(W) - 1
        n = len(x)
        self.y = y
        self.c = c
        self.kappa = kappa
        self.pde = c is not None
        self.a = [x, *a[1:L], None]
        lifted = [(x, np.ones_like(x)), *(pair(u) for u in self.a[1:L])]
        self.z = [u for u, _ in lifted]
        self.slope = [u for _, u in lifted]
        self.r = [None] * (L + 1)
        self.rd = [None] * (L + 1)
        self.length = np.ones((L, n))
        if self.pde:
            self.d = [np.broadcast_to(np.eye(x.shape[1]), (n, *c.shape[1:], x.shape[1])), *d[1:]]
            self.v = np.zeros((L + 1, n))
            self.t = np.zeros((L + 1, n))
            self.tau = np.zeros(L + 1)
        else:
            self.v = np.zeros(L + 1)
        for l in range(1, L + 1):
            if l < L or not self.pde:
                self.r[l] = self.z[l - 1] @ W[l].T + b[l] - (self.a[l] if l < L else y)
            if self.pde:
                self.rd[l] = self.zd(l - 1) @ W[l].T - self.d[l]
                self.t[l] = np.einsum("nkm,nkm->n", self.d[l], self.d[l]) if l < L else 0.0
            self.measure(l)

    def zd(self, l):
        """The tangents that enter layer l+1."""
        return self.slope[l][:, None, :] * self.d[l] if l else self.d[0]

    def measure(self, l):
        if not self.pde:
            self.v[l] = np.vdot(self.r[l], self.r[l])
            return
        self.tau[l] = np.vdot(self.rd[l], self.rd[l])
        if self.r[l] is not None:
            self.v[l] = np.einsum("nm,nm->n", self.r[l], self.r[l])

    def omega(self, l):
        """Ω²_l per sample; 1 without a PDE."""
        return self.t[l:].sum(0) if self.pde else 1.0

    def energy(self):
        """Per layer, the share of the loss before ω_l."""
        if not self.pde:
            return self.kappa * self.v
        Omega = np.cumsum(self.t[::-1], 0)[::-1]
        return self.kappa * (np.einsum("ln,ln->l", Omega, self.v) + self.tau)


@dataclass
class Sapm:
    """The iterate. `terms` as keyword arguments of `Term`; W, b with index 0 unused.

    `rule` for the steps of a: (Armijo's constant, growth of the length if taken, shrinkage if not,
    greatest length).
    """

    W: list
    b: list
    sigma: str
    terms: list
    rule: tuple

    def __post_init__(self):
        self.pair, self.curve = ACTIVATIONS[self.sigma]
        self.W, self.b = [None, *map(np.array, self.W[1:])], [None, *map(np.array, self.b[1:])]
        self.L = len(self.W) - 1
        self.terms = [Term(**kw, W=self.W, b=self.b, pair=self.pair) for kw in self.terms]
        self.s = np.array([0.0] + [np.vdot(w, w) for w in self.W[1:]])

    def loss(self):
        omega = np.append(np.cumprod(self.s[:1:-1])[::-1], 1.0)  # ω_1 … ω_L
        total = omega @ sum(q.energy() for q in self.terms)[1:]
        for q in self.terms:
            if q.pde:
                total += q.kappa * np.sum((np.einsum("nk,nkm->nm", q.c, q.d[self.L]) - q.y) ** 2)
        return total

    def sweep(self):
        """Algorithm 1: W_L, b_L, then a_l, W_l, b_l downwards. Algorithm 2: W_l, b_l, d_l, a_l from
        L downwards.
        """
        pinn = any(q.pde for q in self.terms)
        for l in range(self.L, 0, -1):
            if l < self.L and not pinn:
                self.update_a(l)
            self.update_W(l)
            self.update_b(l)
            if pinn:
                self.update_d(l)
            if l < self.L and pinn:
                self.update_a(l)

    def update_W(self, l):
        W = self.W[l]
        lam = 0.0
        for s, e in zip(self.s[1:l], sum(q.energy() for q in self.terms)[1:l], strict=True):
            lam = lam * s + e  # λ_{m+1} = s_m λ_m + energy_m
        m = W.shape[1]
        H = lam * np.eye(m)
        gradient = lam * W.T
        for q in self.terms:
            z = q.z[l - 1]
            if q.r[l] is not None and q.pde:
                wz = (q.kappa * q.omega(l))[:, None] * z
                H = H + wz.T @ z
                gradient = gradient + wz.T @ q.r[l]
            elif q.r[l] is not None:
                H = H + q.kappa * (z.T @ z)
                gradient = gradient + q.kappa * (z.T @ q.r[l])
            if q.pde:
                zd = q.zd(l - 1).reshape(-1, m)
                H = H + q.kappa * (zd.T @ zd)
                gradient = gradient + q.kappa * (zd.T @ q.rd[l].reshape(len(zd), -1))
        H.flat[:: m + 1] += (
            1e-15 * H.diagonal().max() + 1e-300
        )  # keeps dead units solvable; pulls towards no change
        change = -np.linalg.solve(H, gradient)
        self.W[l] = W = W + change.T
        self.s[l] = np.vdot(W, W)
        for q in self.terms:
            if q.r[l] is not None:
                q.r[l] += q.z[l - 1] @ change
            if q.pde:
                q.rd[l] += q.zd(l - 1) @ change

    def update_b(self, l):
        shift = 0.0
        total = 0.0
        for q in self.terms:
            if q.r[l] is not None:
                w = q.kappa * q.omega(l) * np.ones(len(q.r[l]))
                shift = shift + w @ q.r[l]
                total = total + w.sum()
        if total > 0:
            self.b[l] = self.b[l] - shift / total
        for q in self.terms:
            if q.r[l] is not None and total > 0:
                q.r[l] -= shift / total
            q.measure(l)

    def update_d(self, l):
        for q in self.terms:
            if not q.pde:
                continue
            if l == self.L:
                misfit = q.y - np.einsum("nk,nkm->nm", q.c, q.d[l] + q.rd[l])
                change = (q.c / (1 + np.sum(q.c**2, 1, keepdims=True)))[:, :, None] * misfit[
                    :, None, :
                ] + q.rd[l]
            else:
                W = self.W[l + 1]
                slope = q.slope[l]
                xi = 0.0
                for s, v in zip(self.s[2 : l + 2], q.v[1 : l + 1], strict=True):
                    xi = s * (xi + v)  # ξ_l = s_{l+1} (ξ_{l-1} + v_l)
                shift = self.s[l + 1]
                gradient = (
                    slope[:, None, :] * (q.rd[l + 1] @ W)
                    - shift * q.rd[l]
                    + xi[:, None, None] * q.d[l]
                )
                H = slope[:, :, None] * (W.T @ W) * slope[:, None, :]
                H[:, range(W.shape[1]), range(W.shape[1])] += (shift + xi)[:, None]
                change = -np.linalg.solve(H, gradient.swapaxes(1, 2)).swapaxes(1, 2)
                q.rd[l + 1] += (slope[:, None, :] * change) @ W.T
                q.measure(l + 1)
            q.d[l] = q.d[l] + change
            q.rd[l] -= change
            q.measure(l)
            if l < self.L:
                q.t[l] = np.einsum("nkm,nkm->n", q.d[l], q.d[l])

    def update_a(self, l):
        W, (armijo, grow, shrink, longest) = self.W[l + 1], self.rule
        for q in self.terms:
            rho = self.s[l + 1] * q.omega(l) * np.ones(len(q.y))
            w = q.omega(l + 1)
            length = q.length[l - 1]
            scale = np.divide(1.0, rho, out=np.zeros_like(rho), where=rho > 0)
            a = q.a[l]
            r = q.r[l]
            upper = q.r[l + 1]
            value = q.r[l + 1] is not None
            gradient = -rho[:, None] * r
            phi = rho * np.einsum("nm,nm->n", r, r)
            if value:
                gradient += q.slope[l] * ((w[:, None] * upper if q.pde else upper) @ W)
                phi += w * np.einsum("nm,nm->n", upper, upper)
            if q.pde:
                tangents = q.rd[l + 1]
                gradient += self.curve(q.z[l]) * np.einsum("nkm,nkm->nm", q.d[l], tangents @ W)
                phi += np.einsum("nkm,nkm->n", tangents, tangents)
            step = -(length * scale)[:, None] * gradient
            new_a = a + step
            new_r = r - step
            z, slope = self.pair(new_a)
            new_phi = rho * np.einsum("nm,nm->n", new_r, new_r)
            if value:
                new_upper = upper + (z - q.z[l]) @ W.T
                new_phi += w * np.einsum("nm,nm->n", new_upper, new_upper)
            if q.pde:
                new_tangents = tangents + ((slope - q.slope[l])[:, None, :] * q.d[l]) @ W.T
                new_phi += np.einsum("nkm,nkm->n", new_tangents, new_tangents)
            taken = new_phi <= phi - armijo * 2 * scale * length * np.einsum(
                "nm,nm->n", gradient, gradient
            )
            pick = taken[:, None]
            q.a[l], q.r[l] = np.where(pick, new_a, a), np.where(pick, new_r, r)
            q.z[l], q.slope[l] = np.where(pick, z, q.z[l]), np.where(pick, slope, q.slope[l])
            if value:
                q.r[l + 1] = np.where(pick, new_upper, upper)
            if q.pde:
                q.rd[l + 1] = np.where(pick[:, :, None], new_tangents, tangents)
            q.length[l - 1] = np.where(taken, np.minimum(length * grow, longest), length * shrink)
            q.measure(l)
            q.measure(l + 1)
