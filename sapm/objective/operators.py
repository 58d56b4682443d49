"""Operators: what a term compares with its targets, computed from the jet of the outputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sapm.numerics.jets import Jet, multiplied

Outputs = tuple[int, ...] | None


class Operator(eqx.Module):
    """prediction[n] = operator(x_n, jet of the outputs at x_n).

    A subclass defines `__call__`, and may define the rest. Its arrays have one row per sample;
    if it has others, it defines `padded` too.
    """

    @property
    def order(self) -> int:
        """The highest derivative that the operator uses, for `operator_term`."""
        return 0

    @property
    def uses_value(self) -> bool:
        """Whether the prediction depends on the value of the outputs in another way than being
        equal to it.
        """
        return True

    @property
    def constants(self) -> int:
        """How many of the last outputs are unknown numbers, which do not depend on x."""
        return 0

    @abstractmethod
    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        """The predictions at all samples."""

    def outputs(self, rows: int) -> int | None:
        """The number of network outputs, for so many rows of targets; None if it is not known."""
        return None

    def padded(self, grow: Callable[[Array], Array]) -> Operator:
        """The same operator for more samples; `grow` pads the first axis of an array."""
        return jax.tree.map(grow, self)

    def in_units(self, size: float) -> Operator:
        """ψ ↦ operator(size · ψ) / size: for outputs that count in units of that size. Unknown
        numbers are not scaled.
        """
        return InUnits(self, float(size))


class InUnits(Operator):
    """ψ ↦ operator(size · ψ) / size, where unknown numbers keep their unit."""

    operator: Operator
    size: float = eqx.field(static=True)

    @property
    def order(self) -> int:
        return self.operator.order

    @property
    def uses_value(self) -> bool:
        return self.operator.uses_value

    @property
    def constants(self) -> int:
        return self.operator.constants

    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        m = output.value.shape[1]
        unit = jnp.where(jnp.arange(m) < m - self.constants, self.size, 1.0)
        output = output.like(unit * output.value, unit * output.tangents)
        return self.operator(points, output) / self.size

    def outputs(self, rows: int) -> int | None:
        return self.operator.outputs(rows)

    def padded(self, grow: Callable[[Array], Array]) -> InUnits:
        return InUnits(self.operator.padded(grow), self.size)


class Value(Operator):
    """The value of the outputs.

    Parameters
    ----------
    of : the indices of the outputs. Default: all.
    """

    of: Outputs = eqx.field(static=True, default=None)

    @property
    def uses_value(self) -> bool:
        return self.of is not None

    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        return output.value if self.of is None else output.value[:, self.of]

    def outputs(self, rows: int) -> int | None:
        return rows if self.of is None else None

    def in_units(self, size: float) -> Value:
        return self


class Linear(Operator):
    """Σ_k c_k[n] (channel k of ψ at x_n) + c0[n] ψ(x_n).

    Parameters
    ----------
    c : (n, channels), the coefficients of the derivatives.
    c0 : (n,), optional, the coefficient of ψ itself.
    of : the indices of the outputs. Default: all.
    """

    c: Float[Array, "n k"]
    c0: Float[Array, " n"] | None = None
    of: Outputs = eqx.field(static=True, default=None)

    @property
    def order(self) -> int:
        return 1

    @property
    def uses_value(self) -> bool:
        return self.c0 is not None or self.of is not None

    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        value = output.value
        channels = output.tangents
        if self.of is not None:
            value = value[:, self.of]
            channels = channels[:, :, self.of]
        derivatives = jnp.einsum("nk,nkm->nm", self.c, channels)
        return derivatives if self.c0 is None else derivatives + self.c0[:, None] * value

    def outputs(self, rows: int) -> int | None:
        return rows if self.of is None else None

    def in_units(self, size: float) -> Linear:
        return self


class Nonlinear(Operator):
    """The numbers function(x_n, ψ(x_n), channels of ψ at x_n), a row for each sample.

    Parameters
    ----------
    unit : (outputs,), what the outputs of the network count in.
    function : of one sample, with outputs and channels in the problem's units. None where the
        operator was read from a file, which does not hold code.
    parameters : how many of the last outputs are unknown numbers.
    """

    unit: Float[Array, " m"]
    function: Callable | None = eqx.field(static=True)
    parameters: int = eqx.field(static=True, default=0)

    @property
    def constants(self) -> int:
        return self.parameters

    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        if self.function is None:
            raise ValueError("the equation is code, which a file does not hold; give problem=….")
        value = jax.vmap(self.function)(
            points, self.unit * output.value, self.unit * output.tangents
        )
        return value / self.unit[0]

    def outputs(self, rows: int) -> int | None:
        return len(self.unit)

    def padded(self, grow: Callable[[Array], Array]) -> Nonlinear:
        return self

    def in_units(self, size: float) -> Nonlinear:
        varies = jnp.arange(len(self.unit)) < len(self.unit) - self.parameters
        return replace(self, unit=self.unit * jnp.where(varies, size, 1.0))


class Composed(Operator):
    """Another operator, of u = g + φ ψ: a term with hard conditions.

    Parameters
    ----------
    operator : the operator of u.
    factor, datum : the jets of φ and g.
    """

    operator: Operator
    factor: Jet
    datum: Jet

    @property
    def order(self) -> int:
        return self.operator.order

    @property
    def constants(self) -> int:
        return self.operator.constants

    def composed(self, output: Jet) -> Jet:
        """The jet of u, by the rule for products."""
        return jax.tree.map(jnp.add, self.datum, multiplied(self.factor, output))

    def __call__(self, points: Float[Array, "n d"], output: Jet) -> Float[Array, "n rows"]:
        return self.operator(points, self.composed(output))

    def outputs(self, rows: int) -> int | None:
        return self.operator.outputs(rows)

    def padded(self, grow: Callable[[Array], Array]) -> Composed:
        factor, datum = (jax.tree.map(grow, jet) for jet in (self.factor, self.datum))
        return Composed(self.operator.padded(grow), factor, datum)

    def in_units(self, size: float) -> Composed:
        datum = jax.tree.map(lambda a: a / size, self.datum)
        return Composed(self.operator.in_units(size), self.factor, datum)
