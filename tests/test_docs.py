"""What the documentation says is so: it builds, its tutorials and examples run, its commands parse,
its links lead somewhere.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer.main

import sapm
from sapm.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
TEXTS = [*PAGES, *TUTORIALS]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


# ---------------------------------------------------------------- the site


# `.ci/run` builds the site, too
@pytest.mark.slow
def test_the_site_builds_without_warnings_and_has_every_public_name(tmp_path):
    from sphinx.util import inventory  # the extra "test" has it: without it this fails

    shutil.copytree(
        ROOT / "docs",
        tmp_path / "docs",
        ignore=shutil.ignore_patterns("gallery", "sg_execution_times.rst"),
    )
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-D",
        "plot_gallery=0",
        "docs",
        "site",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    named = (tmp_path / "site" / "objects.inv").read_bytes()
    found = inventory.InventoryFile.loads(named, uri="").data
    documented = {name for kind in ("py:class", "py:function") for name in found[kind]}
    homes = {name: str(getattr(getattr(sapm, name), "__module__", "")) for name in dir(sapm)}
    public = {f"sapm.{name}" for name, home in homes.items() if home.startswith("sapm.")}
    assert "sapm.solve" in public <= documented
    for tutorial in TUTORIALS:
        assert (tmp_path / "site" / "gallery" / f"{tutorial.stem}.html").exists()


# ---------------------------------------------------------------- tutorials


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A tutorial's quick mode, away from any screen; processes that it starts have one device each,
    as a user's.
    """
    import matplotlib.pyplot as plt

    jax.devices()  # those of this process are settled before the variables change
    monkeypatch.setenv("SAPM_QUICK", "1")
    monkeypatch.setenv(
        "XLA_FLAGS",
        re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")),
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plt.switch_backend("agg")
    yield plt
    plt.close("all")


# `.ci/run` runs all of them when it builds the documentation
@pytest.mark.slow_cases(
    "2_transport",
    "3_convection",
    "4_burgers",
    "5_parameter",
    "6_torch",
    "7_seeds",
    "8_devices",
    "9_your_own",
)
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run_and_draw(tutorial, quick):
    if tutorial.stem == "6_torch":
        pytest.importorskip("torch")
    runpy.run_path(str(tutorial))
    assert quick.get_fignums()


def test_the_torch_tutorial_says_that_torch_is_missing(quick, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    runpy.run_path(str(ROOT / "docs" / "tutorials" / "6_torch.py"))
    assert "pip install torch" in capsys.readouterr().out


def test_tutorials_have_one_figure_one_budget_and_a_next_step():
    for tutorial in TUTORIALS:
        text = tutorial.read_text()
        assert text.count("SAPM_QUICK") == 1 and "plt.show()" in text and "# Try next" in text, (
            tutorial
        )


def test_what_the_tutorials_suggest_can_be_stated():
    """The equations under "Try next", in single precision outside and without a warning."""
    still = sapm.Dirichlet(lambda p: 0.0)
    start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
    seen = sapm.Observed([[0.5, 0.5]], [0.2])
    square = sapm.Box(x=(0, 1), y=(0, 1))
    strip = sapm.Box(t=(0, 1), x=(0, 1))
    sapm.PDE(
        strip,
        lambda p, u: u.t + u.value * u.x - 0.02 * u.xx,
        [sapm.Initial(start.g, hard=True), still],
    )
    sapm.PDE(
        square,
        lambda p, u: u.xx + u.yy + 10.0,
        [sapm.Dirichlet(lambda p: 0.0, hard=True)],
        features=sapm.Fourier(16),
    )
    sapm.PDE(
        strip,
        lambda p, u: u.t - p.k * u.xx - p.s,
        [start, still, seen],
        parameters={"k": 1.0, "s": 0.0},
    )
    both = [sapm.Initial(start.g, of="u"), sapm.Dirichlet(lambda p: (0.0, 0.0))]
    third = sapm.PDE(strip, lambda p, u, v: (v.value - u.xx, u.t + v.x), both)
    assert third.equation.fields == ("u", "v")
    heat = sapm.PDE(
        sapm.Box(t=(0, 1)) * square,
        lambda p, u: u.t - u.d("x", "x") - u.d("y", "y"),
        [start, still],
    )
    assert heat.domain.names == ("t", "x", "y")
    kdv = sapm.PDE(strip, lambda p, u: u.t + 6 * u.value * u.x + u.xxx, [start, still])
    assert kdv.equation.nonlinear
    with pytest.warns(UserWarning, match="determined"):
        sapm.PDE(sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t - u.x, [start])


# ---------------------------------------------------------------- examples


RUN = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("index", "interface", "design")),
]


@pytest.mark.slow_cases("index.md", "interface.md", "design.md")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_examples_run(page, tmp_path, monkeypatch):
    """The Python of a page, as printed, one block after the other, with a smaller network and a few
    steps.
    """
    solve = sapm.solve
    small = {
        "depth": 3,
        "width": 6,
        "points": 60,
        "boundary_points": 40,
        "test_points": 50,
        "max_iter": 2,
    }
    monkeypatch.setattr(
        sapm, "solve", lambda problem, *size, **given: solve(problem, **given | small)
    )
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    names: dict = {}
    with contextlib.redirect_stdout(printed):
        for block in blocks(page, "python"):
            exec(compile(block, page.name, "exec"), names)
    assert isinstance(names["result"], sapm.Result)
    assert "true loss" in printed.getvalue() or page.name == "interface.md"
    written = {"transport.html", "transport.sapm"} if page.name == "README.md" else set()
    assert {path.name for path in tmp_path.iterdir()} == written


@pytest.mark.slow
def test_one_interval_of_time_after_the_other(monkeypatch):
    """docs/choosing.md, as printed: logistic growth up to t = 10."""
    solve = sapm.solve
    monkeypatch.setattr(
        sapm,
        "solve",
        lambda problem, **given: solve(problem, **given | {"seeds": 1, "progress": False}),
    )
    (block,) = blocks(ROOT / "docs" / "choosing.md", "python")
    names: dict = {}
    exec(compile(block, "choosing.md", "exec"), names)
    t = np.linspace(5, 10, 20)
    assert np.abs(names["u"](t=t) - 1 / (1 + 99 * np.exp(-t))).max() < 1e-6


def commands(page: Path) -> list[list[str]]:
    """Every `sapm …` in the console blocks, without comments; several on a line are set apart by &&
    or wide gaps.
    """
    lines = [
        line.split(" # ")[0].split("#")[0]
        for block in blocks(page, "console")
        for line in block.splitlines()
    ]
    parts = [part.strip() for line in lines for part in re.split(r"&&|\s{2,}", line)]
    found = [shlex.split(re.sub(r"^srun ", "", part)) for part in parts]
    return [words[1:] for words in found if words and words[0] == "sapm"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    """Names and options of every command in the documentation are those of the command line;
    nothing is run.
    """
    group = typer.main.get_command(app)
    for words in commands(page):
        name, *given = [word for word in words if word != "…"]
        command = group.commands[name]  # type: ignore[attr-defined]
        given = given if len(given) == len(words) - 1 else ["problem", *given]
        assert command.make_context(name, list(given)).params, words


def test_readme_commands_run(tmp_path):
    """The commands around a run, one after the other, with a smaller network and a few steps; those
    that take minutes are only parsed (above), and run in tests/studies.
    """
    small = "--depth 2 --width 4 --seeds 1 --max-iter 2 --set points=30 --set boundary_points=10 --set test_points=20 --quiet"
    shown = {words[0]: words for words in commands(ROOT / "README.md")}
    assert {
        "demo",
        "list",
        "run",
        "resume",
        "report",
        "predict",
        "export",
        "reproduce",
        "bench",
    } <= set(shown)
    (tmp_path / "points.csv").write_text("t,x\n0.5,0\n1,0.5\n")
    from typer.testing import CliRunner

    with contextlib.chdir(tmp_path):
        for name in ("list", "run", "resume", "report", "predict", "export"):
            done = CliRunner().invoke(
                app, [*shown[name], *(small.split() if name == "run" else ())]
            )
            assert done.exit_code == 0, (name, done.output)
    assert (tmp_path / "u.onnx").exists() and (tmp_path / "runs" / "h" / "report.html").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_compile(page):
    """Syntax alone; README.md, index.md, interface.md, design.md, choosing.md and the tutorials are
    run (above).
    """
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


# ---------------------------------------------------------------- links and files


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`$]", "", title).lower()).replace(" ", "-")
        for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}"


def test_files_named_in_the_documentation_exist():
    for page in TEXTS:
        for name in re.findall(
            r"(?<![\w/.])((?:sapm|tests|docs|benchmarks)/[\w/-]+\.\w+(?:\.xz)?)", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
