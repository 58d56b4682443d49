import os

# Most of the suite's time is compilation of small programs: let the compiler optimise less. Same programs, same arithmetic.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield
