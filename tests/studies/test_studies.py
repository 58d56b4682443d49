"""The paper's experiments and the demonstration by the command line: tables, figures and pages that
stand alone.
"""

import html
import json
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import call

import sapm
from sapm.catalogue import paper_tables
from sapm.results.page import CONTENT_POLICY_HTML
from sapm.studies import demo, gallery, reproduce


def check_latex(text):
    """Every row has as many cells as the table has columns, braces balance, and every character is
    one that LaTeX has.
    """
    assert text.isascii() and text.count("{") == text.count("}")
    for table in text.split("\\begin{table}")[1:]:
        columns = len(table.split("\\begin{tabular}{")[1].split("}")[0])
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1 and all(
            len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows
        )


PROBE = """<script>window.addEventListener("load", () => {
  const pictures = [...document.images].filter((i) => i.complete && i.naturalWidth > 50).length;
  const wide = document.documentElement.scrollWidth > window.innerWidth + 1;
  document.title = JSON.stringify({tables: document.querySelectorAll("table").length, pictures, wide});
});</script>"""


def check_page(page, tables, figures):
    """The page stands alone: nothing to fetch."""
    text = page.read_text()
    assert text.count("<table") == tables and text.count("data:image/png") == figures == text.count(
        "<img"
    )
    assert not re.search(r'(?:src|href)="(?!data:)', text) and "width=device-width" in text


def check_window(page, tables, figures, folder):
    """In a phone's window the page fits and says no error. Skipped where no browser is installed."""
    browser = next(
        (b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None
    )
    if browser is None:
        pytest.skip("no Chromium or Chrome is installed")
    text = page.read_text()
    folder.mkdir()
    probe = folder / "page.html"
    assert CONTENT_POLICY_HTML in text  # which would not let the probe run
    probe.write_text(text.replace(CONTENT_POLICY_HTML, "").replace("</body>", PROBE + "</body>"))
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    command += [
        "--window-size=390,800",
        f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*command, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))
    assert seen == {"tables": tables, "pictures": figures, "wide": False}
    assert "CONSOLE" not in done.stderr


TINY = {
    "sizes": ((6, 10),),
    "seeds": 2,
    "max_iter": 3,
    "points": 20,
    "boundary_points": 10,
    "test_points": 10,
}


@pytest.mark.slow
def test_reproduction(tmp_path, monkeypatch):
    """All runs of a (tiny) reproduction, its tables and figures; a second call runs nothing again;
    another plan is refused.
    """
    monkeypatch.setitem(reproduce.QUICK, "transport_1d", TINY)
    monkeypatch.setattr(reproduce, "QUICK_RATES", (0.01,))
    out = tmp_path / "out"
    shown = call(
        "reproduce", "transport_1d", "--quick", "--models", "ls,sapm", "-o", out, "-q"
    ).output
    assert "QUICK RUN" in shown and "6.85e-03" in shown and "SAPM forward" in shown
    cells = sorted(out.rglob("cell.json"))
    assert [c.parent.name for c in cells] == [
        "ls-rate0.01",
        "sapm-forward",
        "sapm-uniform",
        "sapm-uniform-guarded",
        "sapm-uniform-up",
    ]
    before = [c.stat().st_mtime_ns for c in cells]
    found = json.loads(call("resume", out, "--json").stdout)
    assert [c.stat().st_mtime_ns for c in cells] == before and len(found["rows"]) == 5
    assert all(
        row["largest_bound_ratio"] <= 1 + 1e-9 and row["holds"] is True for row in found["rows"]
    )
    assert all(0 < row["largest_stated_ratio"] <= 1 for row in found["rows"])
    assert all(
        len(row["non_affine"]) == row["seeds"] and min(row["non_affine"]) >= 0
        for row in found["rows"]
    )
    assert {p.name for p in (out / "figures").iterdir()} == {
        f"transport_1d_{name}.{kind}"
        for name in ("losses", "consistency")
        for kind in ("png", "svg")
    }
    words = (out / "results.md").read_text()
    assert "figures/transport_1d_losses.svg" in words and "QUICK RUN" in words
    assert "it held in 4 of 4 runs; the largest ratio" in words
    check_latex((out / "tables.tex").read_text())
    check_page(out / "report.html", tables=1, figures=2)
    assert "its plan sets its length" in call("resume", out, "--max-iter", 5, code=2).stderr
    assert (
        "holds another reproduction" in call("reproduce", "transport_1d", "-o", out, code=2).stderr
    )
    assert (
        "holds no reproduction" in call("reproduce", "transport_1d", "-o", tmp_path, code=2).stderr
    )
    cell = next(
        cell
        for cell in reproduce.all_cells(json.loads((out / "reproduce.json").read_text()))
        if cell.model == "sapm"
    )
    result = sapm.load(out / cell.folder / "model.sapm")
    for ratio, holds in (
        (1.01, False),
        (float("nan"), None),
    ):  # in a record before the last; in none
        result.run.history["bound_ratio"][:, :-1] = ratio
        result.run.history["bound_ratio"][:, -1] *= ratio
        assert reproduce.summarise(cell, result)["holds"] is holds
    twice = reproduce.plan(["transport_1d"] * 2, ["ls", "sapm", "ls"], [(6, 10), (6, 10)], True)
    assert (
        twice == reproduce.plan(["transport_1d"], ["ls", "sapm"], [(6, 10)], True)
        and len(reproduce.all_cells(twice)) == 5
    )
    some = reproduce.plan(["transport_1d"], ["ls", "sapm"], None, False, ["uniform-up", "rate0.1"])
    assert {cell.variant for cell in reproduce.all_cells(some)} == {"uniform-up", "rate0.1"}
    with pytest.raises(ValueError, match=r"--variants='up' is not known; use one of rate0\.3"):
        reproduce.plan(["transport_1d"], ["ls", "sapm"], None, False, ["up"])
    assert (
        "transprt_1d"
        in call("reproduce", "all", "transprt_1d", "-o", tmp_path / "no", code=2).stderr
    )
    check_window(out / "report.html", tables=1, figures=2, folder=tmp_path / "browser")


KILLED = """
import sys
from sapm.studies import reproduce
reproduce.QUICK["function_1d"] = {"sizes": ((6, 10),), "seeds": 2, "max_iter": 6000, "points": 20, "test_points": 10}
if __name__ == "__main__":
    from sapm.cli.main import app
    app()
"""


@pytest.mark.slow
def test_killed_reproduction_continues(tmp_path):
    """SIGKILL half way, with two runs at a time and one: the same numbers at the end as from a
    reproduction left alone.
    """
    script = tmp_path / "short.py"
    script.write_text(KILLED)
    command = [
        sys.executable,
        str(script),
        "reproduce",
        "function_1d",
        "--quick",
        "--models",
        "sapm",
        "--variants",
        "uniform,uniform-up",
        "-q",
        "--json",
        "-o",
    ]
    left_alone = subprocess.Popen(
        [*command, str(tmp_path / "whole")], stdout=subprocess.PIPE, text=True
    )
    cut = subprocess.Popen([*command, str(tmp_path / "cut")], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200

    def records(run, count):
        file = tmp_path / "cut" / "function_1d" / "6x10" / run / "history.jsonl"
        while not file.exists() or len(file.read_text().splitlines()) < count:
            assert time.monotonic() < deadline and cut.poll() is None
            time.sleep(0.02)

    records("sapm-uniform", 1)
    refused = subprocess.run(
        [*command, str(tmp_path / "cut")], capture_output=True, text=True, check=False
    )
    assert (
        refused.returncode == 2
        and "is in use by another process" in refused.stderr
        and len(refused.stderr.splitlines()) == 1
    )
    records("sapm-uniform-up", 3)
    cut.kill()
    cut.communicate()
    assert [p.parent.name for p in (tmp_path / "cut").rglob("cell.json")] == ["sapm-uniform"]
    again = [
        sys.executable,
        str(script),
        "resume",
        str(tmp_path / "cut"),
        "--jobs",
        "2",
        "-q",
        "--json",
    ]
    resumed = subprocess.run(again, capture_output=True, text=True, check=True)
    rows = [
        json.loads(text)["rows"]
        for text in (left_alone.communicate(timeout=200)[0], resumed.stdout)
    ]
    assert len(rows[0]) == 2
    for a, b in zip(*rows, strict=True):
        differing = ("seconds", "env")  # the environment says whether runs were made side by side
        assert {k: v for k, v in a.items() if k not in differing} == {
            k: v for k, v in b.items() if k not in differing
        }


def test_tables_of_functions():
    """Failures are starred by the paper's rule, its figures stand beside ours, and verdicts say
    only what was measured.
    """
    row = {
        "experiment": "function_1d", "size": [10, 10], "model": "sapm", "variant": "uniform", "seeds": 2, "iterations": 9,
        "best": {"loss": 3e-6, "mean_squared_loss": 2e-6, "train_error": 3e-3, "test_error": 4e-3}, "success": 1,
        "median": {"test_error": 1.0}, "worst": {"test_error": 2.0}, "success_means": "small", "largest_bound_ratio": 0.5,
        "initial_final": [[100.0, 1e-6], [100.0, 20.0]], "failed": 1,
        "curves": {"best": 0, "iteration": [0, 5, 9], "loss": [[100.0, 2e-6, 1e-6]]},
    }  # fmt: skip
    best, seeds = gallery.tables([row], quick=False)
    assert (
        best["body"][0][3:5] == ["3.00e-06", "2.72e-07"]
        and seeds["body"][1][1] == "1.00e+02 → 2.00e+01 *"
    )
    assert "*" not in seeds["body"][0][1]
    assert seeds["body"][0][0] == "0" and "Seeds count from 0; the paper's" in seeds["note"]
    assert reproduce.verdict(row).startswith(
        "not reproduced: minimised loss × 11; the best seed's loss falls by a factor 2 in the last"
    )
    row["best"] |= {"loss": 2e-6, "test_error": 1.0}
    assert "test error × 2.9e+02; see the median; reproduced: minimised loss" in reproduce.verdict(
        row
    )
    off = {"seed": 1, "x": 0.25, "error": 8.0}
    assert "see the median" in reproduce.verdict(row | {"off_sample": off})
    spiked = row | {"off_sample": off | {"error": 9.0}, "best_seed": 1}
    assert "; the best seed has a spike of 9.0e+00 at x = 0.2500; reproduced" in reproduce.verdict(
        spiked
    )
    assert "; seed 1, not the best one, has a spike" in reproduce.verdict(spiked | {"best_seed": 0})
    row["best"]["test_error"] = 4e-3
    assert reproduce.verdict(row).startswith(
        "reproduced: minimised loss × 7.4, true loss × 1.1, test error × 1.2; median test error"
    )
    row["success"] = 0
    for said in (
        reproduce.verdict(row),
        reproduce.verdict(row | {"best": row["best"] | {"loss": 1.0}}),
    ):
        assert (
            said.startswith("not reproduced: minimised")
            and "; no seed succeeds (small)" in said
            and "; reproduced" not in said
        )
    assert "; every seed is constant or affine;" in reproduce.verdict(
        row | {"non_affine": [0.0, 1e-4]}
    )
    assert all(
        "no seed succeeds" in reproduce.verdict(row | {"non_affine": [0.0, share]})
        for share in (0.1, float("nan"))
    )
    assert reproduce.verdict(row | {"model": "pm"}).startswith(
        "not inconsistent: true / minimised loss 1.0e+00 (paper 4.1e+04); minimised loss × 14, "
    )
    env = {"devices": ["cpu"], "cores": 2, "python": "3", "packages": {}}
    row |= {"env": env, "seconds": 1.0, "holds": True}
    over = [
        row,
        row | {"largest_bound_ratio": 1.01},
        row | {"largest_bound_ratio": None},
        row | {"model": "ls"},
    ]
    said = "it held in 1 of 2 runs; the largest ratio of the true loss to the bound is 1.01; 1 more have no ratio."
    assert (
        gallery.lead(over, quick=False)[2].endswith(said)
        and len(gallery.lead(over[2:], quick=False)) == 4
    )
    assert gallery.missing(over)[0].startswith(
        "Not run yet (54 runs): function_1d (6,10) LS: rate0.3, rate0.1"
    )
    longer = row | {"model": "ls", "iterations": 90}
    assert (
        "2 seeds, 9 iterations of SAPM, 90 iterations of LS."
        in gallery.tables([row, longer], False)[0]["note"]
    )
    stuck = {"model": "ls", "failed": 2, "initial_final": [[0.09, 0.0705], [1.0, 1e30]]}
    assert (
        reproduce.verdict(row | stuck)
        == "1 of 2 seeds stuck, 1 diverged, 1 at the plateau 7.05e-02"
    )
    assert len(paper_tables()["all_seeds"]["function_1d"]["10,10"]["LS"]) == 10

    from types import SimpleNamespace

    points = np.array([[-0.5], [0.0], [0.25], [0.5]])
    networks = [
        lambda x, f=f: f(np.ravel(x))
        for f in (lambda x: 0 * x + 1e-13 * x**2, lambda x: 2 - x, lambda x: 9 * x**2)
    ]
    samples = SimpleNamespace(terms=[SimpleNamespace(x=SimpleNamespace(value=points))])
    result = SimpleNamespace(samples=samples, seeds=networks, run=SimpleNamespace(seeds=[0, 1, 2]))
    shares = reproduce.non_affine(result)
    assert shares[0] == 0 and shares[1] < 1e-20 and 0.1 < shares[2] < 1
    assert reproduce.off_sample(result)["seed"] == 1 and reproduce.off_sample(result)["x"] == -0.5


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """The page of a short demonstration, and what was printed."""
    small = (
        ("DEMO_SEEDS", 1),
        ("DEMO_ITERATIONS", 3),
        ("DEMO_POINTS", 20),
        ("DEMO_BOUNDARY_POINTS", 10),
        ("DEMO_WIDTH", 4),
        ("DEMO_DEPTH", 3),
    )
    page = tmp_path_factory.mktemp("demo") / "r.html"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small:
            patch.setattr(demo, name, value)
        yield page, call("demo", "-o", page, "-q").output


def test_demo(demonstration):
    """A short demonstration: three rows, a page that explains itself."""
    page, shown = demonstration
    assert all(model in shown for model in ("LS", "PM", "SAPM"))
    check_page(page, tables=1, figures=2)
    assert "Auxiliary variables" in page.read_text()
    rows = json.loads(call("demo", "-o", page, "--json").stdout)["rows"]
    assert [row["model"] for row in rows] == ["ls", "pm", "sapm"]


def test_the_page_of_the_demonstration_in_a_window(demonstration, tmp_path):
    check_window(demonstration[0], tables=1, figures=2, folder=tmp_path / "browser")


def test_the_page_of_results_is_made_of_the_stored_rows():
    """docs/results.md is what `python benchmarks/paper_page.py` writes, and its figures are there."""
    root = Path(__file__).parents[2]
    program = runpy.run_path(str(root / "benchmarks" / "paper_page.py"))
    text = program["PAGE"].read_text()
    assert program["page"](program["read"]()) == text
    figures = re.findall(r"\(figures/(\w+\.svg)\)", text)
    assert figures and all((root / "docs" / "figures" / name).exists() for name in figures)
