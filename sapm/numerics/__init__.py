"""Jets, activations, layers, networks and linear least squares."""
