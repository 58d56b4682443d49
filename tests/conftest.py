import os
from importlib.metadata import version

# Most of the suite's time is compilation of small programs: let the compiler optimise less. Same programs, same arithmetic.
flags = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # another version may not know this flag, and refuse to start
    flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", flags)

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


LONG = (  # tests and cases of tests that take many seconds, and whose like run by default
    "test_stationary_and_never_up[sapm-pde-relu-2x3x3x3x1]",
    "test_stationary_and_never_up[pm-pde-relu-2x3x3x3x1]",
    "test_seeds_together_equal_seeds_apart[pinn]",
    "test_sweeps[sapm-pde-sin-2x4x4x4x4x1]",
    "test_peers_minimise_the_true_loss[transport_1d-sin-3x4]",
    "test_descent[transport-sapm]",
    "test_the_jacobian_and_what_stands_for_it[boundary first]",
    "test_interrupt_ends_a_series",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in LONG:
            item.add_marker(pytest.mark.slow)
