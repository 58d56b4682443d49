import os
import signal
from importlib.metadata import version

# Most of the suite's time is compilation of small programs: let the compiler optimise less. Same
# programs, same arithmetic.
flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
if version("jaxlib").startswith(
    "0.10."
):  # another version may not know this flag, and refuse to start
    flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", flags)
if "device_count" not in os.environ["XLA_FLAGS"]:  # flags of the user's own are kept
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
os.environ.setdefault("NPROC", "16")  # threads for eight devices
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for tests side by side, and what they start

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as in the background of a script, where tests of Ctrl-C would wait forever
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import Phase, settings  # noqa: E402

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # to shrink an example that compiles takes minutes
)
settings.load_profile("fixed")


@pytest.fixture
def double_precision():
    """Arrays of 64 bits outside `sapm`, too: for tests that call the engine and not `sapm.solve`.

    Without it a test has JAX as a user has it: 32 bits outside.
    """
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def engine_precision(request):
    """The tests of these floors call the engine itself, which works in 64 bits."""
    if request.path.parent.name in ("numerics", "objective", "methods"):
        request.getfixturevalue("double_precision")


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Free compiled programs after every module: each has mapped memory, of which a process has
    only so many pieces.
    """
    yield
    jax.clear_caches()


def pytest_xdist_auto_num_workers(config):
    """One worker more than processors: some tests wait for programs that they have started."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """`slow_cases` names the cases of a test that are slow; one that is not there is a mistake."""
    named = {}
    seen = set()
    for item in items:
        for mark in item.iter_markers("slow_cases"):
            named[item.function] = set(mark.args)
            if item.callspec.id in mark.args:
                item.add_marker(pytest.mark.slow)
                seen.add((item.function, item.callspec.id))
    lacking = [
        (test.__name__, case)
        for test, cases in named.items()
        for case in cases
        if (test, case) not in seen
    ]
    if lacking and not any("::" in given for given in config.args):
        raise pytest.UsageError(f"slow_cases that are not there: {lacking}")
