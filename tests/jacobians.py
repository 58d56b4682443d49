"""The residuals of a least-squares problem as one function of the weights, for `jax.jacobian`."""

from dataclasses import replace

import jax.numpy as jnp

from sapm.methods.linearise import unflatten


def residual_vector(terms, network):
    """√κ_n · residual, term by term and in a term output by output: the order of the engine's rows."""
    parts = []
    for term in terms:
        root = jnp.sqrt(jnp.broadcast_to(term.weight, len(term.y)))
        parts.append((term.residual(network(term.x)) * root[:, None]).T.ravel())
    return jnp.concatenate(parts)


def weighted_residuals(terms, network):
    """The map from the weights, in the order of `flatten`, to the residual vector."""

    def of_weights(flat):
        return residual_vector(terms, replace(network, stack=unflatten(flat, network.stack)))

    return of_weights
