"""What the parts of Gauss-Newton contribute: the bend, the lifted phase, its weights and its start.

    python benchmarks/ablation.py [iterations]

Seeds 100-109 (function) and 100-103 (transport): those that choices are made on. True loss and
error, median / worst.
"""

import sys
import time

import numpy as np

import sapm
from sapm.catalogue import CATALOGUE

VARIANTS = {
    "plain, not bent": {"model": "ls", "options": {"bend": False}},
    "plain": {"model": "ls"},
    "lifted 15, PM weights": {"model": "pm", "options": {"lifted": 15}},
    "lifted 15, SAPM weights, β = 1": {"options": {"lifted": 15}},
    "lifted 15, SAPM weights, β = 10": {"options": {"lifted": 15}, "beta": 10.0},
    "the same from forward + noise": {"options": {"lifted": 15}, "beta": 10.0, "start": "noise"},
    "the same from the forward pass": {"options": {"lifted": 15}, "beta": 10.0, "start": "forward"},
}
CASES = {
    "function_1d tanh (10,10)": (
        "function_1d",
        {"depth": 10, "width": 10, "activation": "tanh", "init": "orthogonal"},
        10,
    ),
    "function_1d tanh (20,10)": (
        "function_1d",
        {"depth": 20, "width": 10, "activation": "tanh", "init": "orthogonal"},
        10,
    ),
    "function_1d relu (10,10)": (
        "function_1d",
        {"depth": 10, "width": 10, "activation": "relu"},
        10,
    ),
    "transport_1d sin (6,10)": ("transport_1d", {"depth": 6, "width": 10, "activation": "sin"}, 4),
}


def main(iterations: int) -> None:
    for case, (name, network, count) in CASES.items():
        experiment = CATALOGUE[name]
        settings = {
            key: value
            for key, value in experiment.settings.items()
            if key not in ("activation", "max_iter")
        } | network
        for variant, more in VARIANTS.items():
            began = time.perf_counter()
            given = (
                settings
                | {
                    "max_iter": iterations,
                    "seeds": range(100, 100 + count),
                    "method": "gauss-newton",
                }
                | more
            )
            result = sapm.solve(experiment.problem(), **given, progress=False)
            error = "solution_error" if experiment.kind == "pde" else "test_error"
            loss, errors = (
                [row[key] for row in result.table] for key in ("mean_squared_loss", error)
            )
            words = (
                f"loss {np.median(loss):.0e} / {max(loss):.0e}, error {np.median(errors):.0e} "
                f"/ {max(errors):.0e}"
            )
            print(f"{case}, {variant}: {words} ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 80)
