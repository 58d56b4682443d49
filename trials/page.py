"""Hostile strings in the HTML report, opened in a browser, and in names of files.

    PYTHONPATH=. python trials/page.py --out page.json          # needs chromium, chromium-browser
    or google-chrome

Strings that would run a script or fetch something, were they not escaped, stand in every place
where a user's text can reach a page: names of coordinates, of an activation, of files and folders,
titles, settings, reasons. The page is opened in headless Chromium, as it is and without its content
security policy. It passes if no script ran and nothing was asked for. Two pages show that the trial
can fail: with the same strings as they are a script runs, unless the policy is there.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "trials")]

from trials import harness  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
RUN = "document.documentElement.setAttribute('data-ran', '1')"


def strings(url: str) -> list[str]:
    """Each would run RUN or fetch the address, where it is not escaped."""
    return [
        f"<script>{RUN}</script>",
        f'"><img src=x onerror="{RUN}">',
        f"'><img src={url}/single onerror={RUN.replace(' ', '')}>",
        f"</title><script>{RUN}</script>",
        f"</style><script>{RUN}</script>",
        f"<svg onload={RUN.replace(' ', '')}>",
        f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
        f'<a href="javascript:{RUN}">x</a><body onload="{RUN}">',
        f'<link rel=stylesheet href="{url}/style.css"><meta http-equiv=refresh '
        f'content="0;url={url}/refresh">',
        f"<base href={url}/><form action={url}/form><input autofocus "
        f"onfocus={RUN.replace(' ', '')}>",
        f"`${{{RUN}}}` ${{7*7}} {{{{7*7}}}} <%= 7*7 %> &lt;script&gt; &#60;script&#62;{RUN}",
        f"javascript:{RUN}//",
        "$\\frac{1}{$ $x$ \\$ % _ ^ {",
        "שלום עולם مرحبا",
        "[bold]x[/bold] [/nope] :smile:",
        f"<img src=x onerror={RUN.replace(' ', '')}>" + "x" * 5000,
        f"<!--<script>{RUN}</script>--><![CDATA[<script>{RUN}</script>]]>",
        f"＜script＞{RUN}＜/script＞",
    ]


class Listener:
    """A server that writes down what it is asked for."""

    def __enter__(self) -> Listener:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.asked = asked
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()


def opened(browser: str, page: Path, listener: Listener, folder: Path) -> dict:
    """Whether a script ran in the page, and what was asked for."""
    listener.asked.clear()
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {
        "ran": "data-ran" in done.stdout.split("<head", 1)[0],
        "asked": list(listener.asked),
        "dom": done.stdout,
    }


def results(url: str) -> dict:
    """Results with hostile strings wherever a user's text may stand, and what is to be found in
    their pages.
    """
    import jax.numpy as jnp
    import numpy as np

    import sapm

    texts = [s for s in strings(url) if s == s.strip() and s.isprintable()]
    rng = np.random.default_rng(0)
    small = {"seeds": 1, "max_iter": 1, "progress": False}
    found = {}
    for k in range(0, len(texts) - 1, 2):
        x = rng.normal(size=(20, 2))
        found[f"names {k}"] = sapm.solve(
            sapm.Regression(x, x[:, 0], names=texts[k : k + 2], test=(x, x[:, 0])), 2, 3, **small
        )

    def sigma(z):
        return jnp.tanh(z)

    sigma.__name__ = texts[0]
    first = next(iter(found.values()))
    found["activation"] = sapm.solve(sapm.Regression([0.0, 1.0], [1.0, 2.0]), 2, 3, sigma, **small)
    words = " ".join(texts)
    plan = replace(first.plan, why=words, problem=words)
    run = replace(first.run, reason=(words,), status=(words[:50],))
    found["settings and reasons"] = replace(first, plan=plan, run=run)
    return found


def pages(url: str) -> dict[str, str]:
    from sapm.results import page

    words = " ".join(strings(url))
    made = {
        name: page.page(result, words if name == "activation" else "")
        for name, result in results(url).items()
    }
    return made | {"a file with a name": made["activation"]}


def looked_at(folder: Path) -> list[dict]:
    """Every page in the browser, with and without its policy, and the two that show that the trial
    can fail.
    """
    from sapm.results.page import CONTENT_POLICY_HTML

    browser = next((b for b in BROWSERS if shutil.which(b)), None)
    if browser is None:
        return [
            {
                "family": "page",
                "case": "browser",
                "ok": False,
                "why": f"none of {', '.join(BROWSERS)} is installed",
                "seconds": 0,
            }
        ]
    found = []
    with Listener() as listener:
        words = " ".join(strings(listener.url))
        head = "<!doctype html><html><head><meta charset=utf-8>"
        rest = f"<title>{words}</title></head><body>{words}</body></html>"
        made = {"bare": head + rest, "bare, with the policy": head + CONTENT_POLICY_HTML + rest}
        for name, text in pages(listener.url).items():
            without = text.replace(CONTENT_POLICY_HTML, "")
            made |= {name: text, f"{name}, without the policy": without}
            if CONTENT_POLICY_HTML not in text:
                found.append(
                    {
                        "family": "page",
                        "case": name,
                        "ok": False,
                        "why": "has no policy",
                        "seconds": 0,
                    }
                )
        for name, text in made.items():
            began = time.monotonic()
            file = folder / (
                "'\"><img src=x onerror=x>.html" if name.startswith("a file") else "page.html"
            )
            file.write_text(text, encoding="utf-8")
            seen = opened(browser, file, listener, folder)
            control = name == "bare"
            let = {"/favicon.ico"} | (
                {"/refresh"} if name == "bare, with the policy" else set()
            )  # no policy is about redirections
            ran = seen["ran"]
            asked = [a for a in seen["asked"] if a not in let]
            ok = (ran and bool(asked)) if control else not (ran or asked)
            why = (
                ""
                if ok
                else f"script ran: {ran}; asked for {asked}"
                + (" (it should have)" if control else "")
            )
            if ok and not name.startswith("bare") and "All seeds" not in html.unescape(seen["dom"]):
                ok = False
                why = "the page is not whole"
            outcome = "ran, as it must" if control else "shown, nothing ran"
            seconds = time.monotonic() - began
            found.append(
                {
                    "family": "page",
                    "case": name,
                    "ok": ok,
                    "why": why,
                    "outcome": outcome,
                    "seconds": round(seconds, 2),
                }
            )
    return found


# ---------------------------------------------------------------- names that try to leave the
# folder


def attempts(here: Path) -> dict[str, list[str]]:
    """Command lines that name places; `here` is where they are given, in a folder of its own."""
    tiny = [
        "--max-iter",
        "1",
        "--seeds",
        "1",
        "--depth",
        "2",
        "--width",
        "3",
        "--set",
        "points=8",
        "--set",
        "test_points=4",
        "-q",
    ]
    run = ["run", "function_1d", *tiny]
    for name in ("link", "dangling", "lock", "folder link", "run link"):
        shutil.copytree(here / "run", here / name)
    for file in ("link/history.jsonl", "lock/.lock"):
        (here / file).unlink(missing_ok=True)
        (here / file).symlink_to(here.parent / "outside")
    (here / "dangling" / "config.json").unlink()
    (here / "dangling" / "config.json").symlink_to(here.parent / "new")
    shutil.move(here / "folder link" / "checkpoint", here.parent / "checkpoint")
    (here / "folder link" / "checkpoint").symlink_to(here.parent / "checkpoint")
    (here / "many").mkdir()
    shutil.move(here / "run link", here.parent / "elsewhere")
    (here / "many" / "ls").symlink_to(here.parent / "elsewhere")
    (here / "plan").mkdir()
    plan = {"experiments": ["transport_1d"], "models": ["../../../x"], "sizes": None, "quick": True}
    (here / "plan" / "reproduce.json").write_text(json.dumps(plan))
    return {
        "model that leads up": [*run, "--models", "../x", "--out", "new"],
        "absolute model": [*run, "--models", f"ls,{here.parent / 'x'}", "--out", "new"],
        "NUL": [*run, "--out", "a\0b"],
        "empty name": [*run, "--out", ""],
        "dot": [*run, "--out", "."],
        "file": [*run, "--out", "evil.py"],
        "below a file": [*run, "--out", "evil.py/x"],
        "history that is a link": ["resume", "link", "-q"],
        "settings that are a link to nothing": ["resume", "dangling", "-q"],
        "lock that is a link": ["resume", "lock", "-q"],
        "checkpoints that are a link": ["resume", "folder link", "-q"],
        "run that is a link": ["resume", "many", "-q"],
        "plan that leads up": ["resume", "plan", "-q"],
        "method that leads up": ["bench", "function_1d", "--methods", "../x", "--out", "new", "-q"],
        "case that leads up": ["bench", "../../x", "--out", "new", "-q"],
        "experiment that leads up": ["reproduce", "../x", "--out", "new", "-q"],
        "file that is a problem": ["report", "evil.py"],
    }


def places(folder: Path) -> list[dict]:
    """All attempts are refused in one line, and nothing outside the folder is written, made or
    removed.
    """
    from typer.testing import CliRunner

    import sapm
    from sapm.cli.main import app

    here = folder / "outer" / "here"
    here.mkdir(parents=True)
    os.chdir(here)
    (here.parent / "outside").write_text("mine")
    (here / "evil.py").write_text(f"open({str(here.parent / 'ran')!r}, 'w')\nproblem = None\n")
    runner = CliRunner()
    tiny = [
        "--max-iter",
        "1",
        "--seeds",
        "1",
        "--depth",
        "2",
        "--width",
        "3",
        "--set",
        "points=8",
        "--set",
        "test_points=4",
    ]
    assert (
        runner.invoke(
            app, ["run", "function_1d", *tiny, "--models", "ls,pm", "--out", "series", "-q"]
        ).exit_code
        == 0
    )
    shutil.copytree("series/ls", "run")
    shutil.rmtree("series/pm")
    sapm.load("run/model.sapm").report("r.html")
    tried = attempts(here)
    watch = harness.Watch(here)

    def around() -> dict[str, bytes]:
        beside = (p for p in here.parent.rglob("*") if here not in (p, *p.parents))
        return {str(p): p.read_bytes() if p.is_file() else b"" for p in beside}

    before = around()
    found = []
    for name, words in tried.items():
        began = time.monotonic()
        watch.on = True
        done = runner.invoke(app, words)
        watch.on = False
        broke = watch.take()
        last = (done.stderr.strip().splitlines() or [""])[-1]
        why = "" if done.exit_code == 2 else f"exit code {done.exit_code}: {done.exception!r}"
        if "Usage:" not in done.stderr:
            why = (
                why
                or harness.ill_said(last)
                or ("" if last.startswith("sapm: ") else "is not a sentence of ours")
            )
        why = why or broke
        why = why or ("" if around() == before else "something outside the folder is changed")
        seconds = round(time.monotonic() - began, 2)
        about = {
            "family": "place",
            "case": name,
            "outcome": "refused",
            "ok": not why,
            "why": why and f"{why}: {last[:300]}",
        }
        found.append(about | {"said": last, "seconds": seconds})
    return found


def main() -> int:
    given = harness.arguments(__doc__.splitlines()[0], 0, counts=()).parse_args()  # type: ignore[union-attr]
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="sapm-page-"))
    out = given.out and given.out.resolve()
    try:
        found = [*looked_at(folder), *places(folder)]
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    return harness.verdict("page", found, began, out)


if __name__ == "__main__":
    sys.exit(main())
