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
