"""Texts from files, tables, names and users reach a terminal as text: no control character, no
link, no reversed text, no markup. And no table starts a formula.
"""

import ast
import csv
import io
import json
import re
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from problems import curve
from rich.console import Console
from typer.testing import CliRunner

import sapm
from sapm import errors
from sapm.cli import terminal
from sapm.cli.main import app
from sapm.driver.progress import Bar
from sapm.results import files

TEXTS = {
    "colours": "\x1b[31mred\x1b[0m",
    "link": "\x1b]8;;http://a.b\x07link\x1b]8;;\x1b\\",
    "C1": "\x9b31m\x9d0;title\x9c\x85",
    "C0": "bell\x07 back\x08 tab\t return\r form\x0c vertical\x0b delete\x7f",
    "lines": "one\ntwo\u2028three\u2029four\x1cfive",
    "reversed": "\u202egro.live\u202c \u2066a\u2069 \u200f",
    "nothing": "zero\u200b\u200d\u2060\ufeff\u00ad\u3164\u034f\ufe0f width",
    "tags": "a\U000e0041\U000e007f b\ue000",
    "half": "a\udc9bb",
    "markup": "[red]red[/red] [link=http://a.b]link[/link] [/nope] :smile:",
    "formula": "=1+1 $\\frac{1}{$ $x$",
    "page": "<script>alert(1)</script>\"'&",
}
ALL = " ".join(TEXTS.values())
MARKUP = TEXTS["markup"]
INVISIBLE = "\u034f\u115f\u1160\u3164\ufe0f\uffa0"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def harmful(text: str) -> list[str]:
    """The characters of an output that a terminal would not show as themselves."""
    return [
        c
        for c in text
        if c != "\n"
        and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or c in INVISIBLE)
    ]


def said(*words, code=None) -> str:
    """All that a command prints; nothing harmful may be in it."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert not harmful(done.output), (words, harmful(done.output))
    assert code is None or done.exit_code == code, done.output
    return done.output


def refusal(function, *arguments) -> str:
    with pytest.raises((ValueError, TypeError, OSError)) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.fixture(scope="module")
def result():
    return sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=0, progress=False)


@pytest.fixture(scope="module")
def content(result, tmp_path_factory):
    """(arrays, description) of a file."""
    return files.read(result.save(tmp_path_factory.mktemp("content") / "a.sapm"))


def changed(content, path: Path, changes: dict) -> Path:
    """A file with another description: {(key, …): value}."""
    arrays, about = content
    about = json.loads(json.dumps(about))
    for keys, value in changes.items():
        part = about
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
    files.write(path, dict(arrays), about)
    return path


def sentences(text: str) -> dict:
    """Hostile values of all sentences of a file."""
    return {
        ("advice",): [{"kind": "statement", "sentence": text}],
        ("reason",): [text],
        ("cut",): text,
        ("config", "choice"): text,
        ("config", "problem"): text,
    }


def on_terminal(table, width: int) -> str:
    """A table as it is printed on a terminal with colours, by a console of the user's."""
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="truecolor", width=width).print(table)
    return stream.getvalue()


# ---------------------------------------------------------------- one decision


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_printable(text):
    """It escapes what a terminal does not show, and nothing else; JSON stays the same content."""
    safe = errors.printable(text)
    assert not harmful(safe) and "\n" not in safe
    assert errors.printable(safe) == safe
    assert errors.printable("é 中 ∂²u/∂x² … [red]") == "é 中 ∂²u/∂x² … [red]"
    in_json = errors.printable(json.dumps({text: [text]}, ensure_ascii=False, indent=1), True)
    assert not harmful(in_json) and json.loads(in_json) == {text: [text]}
    assert len(errors.shown(text * 500)) <= errors.LONGEST_QUOTE
    assert len(errors.shown_path(text * 500)) <= errors.LONGEST_PATH


@pytest.fixture(scope="module")
def trees():
    """The syntax trees of the package, by file."""
    package = Path(sapm.__file__).parent
    paths = sorted(package.rglob("*.py"))
    return {p.relative_to(package).as_posix(): ast.parse(p.read_text()) for p in paths}


def test_one_place_prints(trees):
    """Commands print through `show` and `tell`; the others print what `printable` gives."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name == "print" and path != "cli/terminal.py":
                printed = node.args[0]
                assert isinstance(printed, ast.Call), (path, node.lineno)
                assert printed.func.id == "printable", (path, node.lineno)
            attribute = getattr(node, "attr", "")
            assert (attribute != "write") or ast.unparse(node.value) not in (
                "sys.stdout",
                "sys.stderr",
            ), path


def test_paths_in_sentences_are_shown(trees):
    """Below the command line, which escapes what it prints, a path enters a sentence by
    `shown_path`.
    """

    def is_path(value) -> bool:
        if isinstance(value, ast.BinOp):
            return is_path(value.left)
        name = getattr(value, "attr", getattr(value, "id", ""))
        return name in ("path", "folder", "out", "file", "target")

    for file, tree in trees.items():
        places = [n for n in ast.walk(tree) if isinstance(n, ast.FormattedValue)]
        for place in places if not file.startswith("cli/") else ():
            plain = place.conversion == -1 and place.format_spec is None
            assert not (plain and is_path(place.value)), (file, ast.unparse(place))


# ---------------------------------------------------------------- what a file says


@pytest.mark.parametrize("text", [*TEXTS.values(), ALL], ids=[*TEXTS, "all"])
def test_sentences_of_a_file(text, content, tmp_path):
    """Advice, reasons, choice, cut: in the table, in reprs, and in the page."""
    loaded = sapm.load(changed(content, tmp_path / "a.sapm", sentences(text)))
    shown = [str(loaded.summary()), repr(loaded.summary()), repr(loaded), repr(loaded.best)]
    assert not harmful("".join(shown))
    python = repr([loaded.table, loaded.config, loaded.run, loaded.plan])  # escaped by Python
    assert not set(harmful(python)) - set(INVISIBLE)
    assert errors.printable(text) in repr(loaded)
    plain = sapm.load(changed(content, tmp_path / "b.sapm", sentences("x" * len(text))))
    for width in (30, 80, 200):
        table = on_terminal(loaded.summary(), width)
        assert not harmful(COLOUR.sub("", table))
        assert set(COLOUR.findall(table)) == set(
            COLOUR.findall(on_terminal(plain.summary(), width))
        )
    if text == MARKUP:
        assert f"Warning: {text}" in COLOUR.sub("", on_terminal(loaded.summary(), 400))


def test_commands_show_the_sentences_of_a_file(content, tmp_path, monkeypatch):
    path = changed(content, tmp_path / "a.sapm", sentences(ALL))
    assert errors.printable(MARKUP) in re.sub(r"\s+", " ", said("report", path, code=0))
    page = (tmp_path / "a.html").read_text()
    assert not harmful(page) and "<script>" not in page and "&lt;script&gt;" in page
    answer = json.loads(said("report", path, "--json", code=0))
    assert answer["warnings"] == [ALL] and answer["seeds"][0]["reason"] == ALL
    said("export", path, tmp_path / "u.npz", code=0)
    said("resume", path, code=2)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    hostile = CliRunner().invoke(app, ["report", str(path)]).output
    plain = changed(content, tmp_path / "b.sapm", sentences("x" * len(ALL)))
    harmless = CliRunner().invoke(app, ["report", str(plain)]).output
    assert COLOUR.findall(harmless) and not harmful(COLOUR.sub("", hostile))
    assert set(COLOUR.findall(hostile)) == set(COLOUR.findall(harmless))


REFUSED = {
    "coordinates": ("names",),
    "functions": ("fields",),
    "parameters": ("parameters",),
    "activation": ("config", "activation"),
    "method": ("config", "method"),
    "model": ("config", "model"),
    "start": ("config", "init"),
    "kind of problem": ("kind",),
    "status": ("status",),
    "sampler": ("sampler",),
    "units": ("units",),
    "options": ("config", "options"),
    "advice": ("advice",),
}


@pytest.mark.parametrize("keys", REFUSED.values(), ids=REFUSED)
def test_names_of_a_file(keys, content, tmp_path):
    """Names that cannot be printed are refused, and the refusal can be printed."""
    old = content[1].get(keys[0]) if len(keys) == 1 else content[1]["config"].get(keys[1])
    value = {list: [ALL], dict: {ALL: 0.5}}.get(type(old), ALL)
    value = {"parameters": {ALL: 0.5}, "fields": [ALL]}.get(keys[0], value)
    path = changed(content, tmp_path / "a.sapm", {keys: value})
    sentence = refusal(sapm.load, path)
    assert not harmful(sentence) and "\n" not in sentence and len(sentence) < 1000, sentence
    assert len(said("report", path, code=2).strip().splitlines()) == 1


def test_a_domain_of_a_file(content, tmp_path):
    """It is read where it is needed."""
    for domain in ({"kind": ALL}, {"kind": "box", "bounds": {ALL: [0, 1]}}):
        path = changed(content, tmp_path / "a.sapm", {("domain",): domain})
        said("report", path)
        said("predict", path, path)


def test_names_that_can_be_printed_are_text(result, tmp_path):
    """Names of columns and of an activation: markup and formulas stay text, in figures too."""

    def sigma(z):
        return jnp.tanh(z)

    sigma.__name__ = ALL
    names = (MARKUP, "=$\\frac{1}{$ \\$")
    X = np.linspace(-1, 1, 12).reshape(6, 2)
    problem = sapm.Regression(X, X[:, 0], names=names, test=(X, X[:, 0]))
    named = sapm.solve(problem, 2, 3, sigma, seeds=1, max_iter=0, progress=False)
    assert not harmful(repr(named.best) + repr(named) + str(named.summary()) + repr(problem))
    assert MARKUP in repr(named.best)
    page = named.report(tmp_path / "a.html").read_text()
    assert not harmful(page) and "<script>" not in page
    sentence = refusal(sapm.load, named.save(tmp_path / "a.sapm"))
    assert "an activation of yours" in sentence and not harmful(sentence)
    for text in (TEXTS["colours"], TEXTS["nothing"], TEXTS["reversed"]):
        assert not harmful(
            refusal(lambda text=text: sapm.Regression(X[:, :1], X[:, 0], names=[text]))
        )
        assert not harmful(refusal(lambda text=text: sapm.Box(**{text: (0, 1)})))
    assert "cannot name a coordinate" in refusal(lambda: sapm.Box(**{"x\ufe0f": (0, 1)}))


def test_functions_with_odd_names_in_figures(result):
    fields = (ALL, "_$x")
    W, b = result.best.weights[-1]
    u = replace(
        result.best,
        weights=[*result.best.weights[:-1], (np.repeat(W, 2, 0), np.repeat(b, 2))],
        fields=fields,
    )
    odd = replace(result)
    vars(odd)["seeds"] = (u,)
    figure = odd.plot("solution")
    figure.canvas.draw()
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert not harmful("".join(texts))
    assert not harmful(repr(u))


# ---------------------------------------------------------------- warnings, errors, progress


def test_warnings_and_estimates():
    with pytest.warns(UserWarning) as caught:
        errors.warn(ALL)
    assert str(caught[0].message) == errors.printable(ALL)
    assert str(sapm.ErrorEstimate(0.1, sentence=ALL)) == errors.printable(ALL)
    assert not harmful(str(sapm.ErrorEstimate(0.1, field_errors={ALL: 0.1})))


def test_progress(capsys, monkeypatch):
    """The title of the bar names the method, which may be a user's own."""
    Bar(ALL, 1, None)._print("text")
    assert not harmful(capsys.readouterr().err)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "1000")
    with Bar(f"{ALL} end", 1, None) as bar:
        shown = Console(force_terminal=True, width=1000, file=io.StringIO())
        shown.print(bar.bar.make_tasks_table(bar.bar.tasks))
    written = shown.file.getvalue()
    assert not harmful(COLOUR.sub("", written)) and f"{MARKUP} =1+1" in COLOUR.sub("", written)


CODE = """
import warnings
import sapm
TEXT = {text!r}
def broken():
    raise ValueError(TEXT)
def unforeseen():
    class Odd(Exception):
        pass
    raise Odd(TEXT)
def warned():
    warnings.warn(TEXT)
    return sapm.Function(lambda p: p.x, sapm.Box(x=(0, 1)))
def at_points():
    def f(p):
        raise ValueError(TEXT)
    return sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.x - f(p), [sapm.Dirichlet(0)])
"""


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("name", ["broken", "unforeseen", "at_points", "warned"])
def test_errors_and_warnings_of_a_users_code(name, tmp_path):
    folder = tmp_path / TEXTS["colours"]
    folder.mkdir()
    (folder / "a.py").write_text(CODE.format(text=ALL))
    small = ("--depth", 2, "--width", 3, "--seeds", 1, "--max-iter", 0, "-q")
    output = said("run", f"{folder}/a.py:{name}", *small)
    assert "red" in output
    assert ("sapm: warning: " in output) == (name == "warned")


# ---------------------------------------------------------------- command lines and paths


def test_command_lines(result, tmp_path, monkeypatch):
    """Files, folders and options with any name, in all commands."""
    monkeypatch.chdir(tmp_path)
    texts = [text.replace("/", "-") for text in TEXTS.values() if "\udc9b" not in text]
    for k in range(0, len(texts), 4):
        name = " ".join(texts[k : k + 4])
        folder = Path(f"{k}{name}")
        folder.mkdir()
        model = result.save(folder / f"{name}.sapm")
        points = folder / f"{name}.csv"
        points.write_text("x\n0.5\n")
        said("predict", model, points, "-o", folder / f"{name}.u.csv", code=0)
        said("predict", model, points, "-o", folder / f"{name}.u.csv", "--json", code=0)
        said("export", model, folder / f"{name}.npz", code=0)
        said("export", model, folder / name, code=2)
        for words in (
            ("report", f"{folder}/none"),
            ("report", folder),
            ("resume", folder),
            ("resume", model),
            ("predict", model, folder),
            ("predict", model, folder / name),
            ("run", f"{folder}/a.py:{name}"),
            ("run", name),
            ("run", "function_1d", "--out", folder),
            ("run", "function_1d", "--models", name),
            ("run", "function_1d", "--set", f"{name}={name}"),
            ("run", "function_1d", "--set", f"activation={name}"),
            ("reproduce", "function_1d", "--out", folder),
            ("reproduce", name),
            ("bench", name, "--out", folder),
            ("bench", "function_1d", "--out", folder, "-q"),
            ("bench", "--out", folder, "--write", folder / "a.md"),
            ("report", model, name),
            (f"--{name}",),
            (name,),
            ("report", model, f"--{name}"),
            ("run", "function_1d", "--depth", name),
        ):
            said(*words, code=2)
        for call in (sapm.load, sapm.resume):
            assert not harmful(refusal(call, folder))
            assert not harmful(refusal(call, folder / "none"))


# ---------------------------------------------------------------- tables

FORMULAS = ("=1+1", "+1+1", "-x", "@SUM(1)", "\t=1", "\r=1", " =1", '=HYPERLINK("http://a.b","c")')


def test_no_table_starts_a_formula(result, tmp_path):
    """An apostrophe stands before it. Numbers stay numbers, and our own tables can be read."""
    odd = replace(result, samples=replace(result.samples, names=("=x",)))
    numbers = ("-1.5", "+2", "1e-3", "-inf", "5")
    head = ["=x", *FORMULAS, "n"]
    lines = [[str(0.1 * k), *FORMULAS, number] for k, number in enumerate(numbers)]
    table = io.StringIO()
    csv.writer(table, quoting=csv.QUOTE_ALL).writerows([head, *lines])
    path = odd.save(tmp_path / "a.sapm")
    (tmp_path / "0.csv").write_bytes(table.getvalue().encode())
    for k in range(3):
        said("predict", path, tmp_path / f"{k}.csv", "-o", tmp_path / f"{k + 1}.csv", code=0)
        with open(tmp_path / f"{k + 1}.csv", newline="") as file:
            first, *rest = list(csv.reader(file))
        cells = [cell for line in (first, *rest) for cell in line]
        for cell in cells:
            formula = cell.lstrip()[:1] in ("=", "+", "-", "@") or cell[:1] in ("\t", "\r")
            assert not formula or cell in numbers, cell
        assert first[0] == "'=x" and rest[0][1] == "'=1+1"
        assert [line[len(FORMULAS) + 1] for line in rest] == list(numbers)
        assert len(first) == len(head) + k + 1
    assert [line[-1] for line in rest] == [line[len(head)] for line in rest]
    twice = "=x,'=x\n1,2\n"
    (tmp_path / "4.csv").write_text(twice)
    assert "2 columns called '=x'" in said("predict", path, tmp_path / "4.csv", code=2)


def test_printed_tables(result, tmp_path):
    """Cells that are copied are printed as text; in a file they stay as they are."""
    path = result.save(tmp_path / "a.sapm")
    texts = [text for text in TEXTS.values() if "\udc9b" not in text]
    table = io.StringIO()
    csv.writer(table, quoting=csv.QUOTE_ALL).writerows([["x", *texts], [0.5, *texts]])
    (tmp_path / "x.csv").write_bytes(table.getvalue().encode())
    output = said("predict", path, tmp_path / "x.csv", code=0)
    assert MARKUP in output and "\\x1b[31mred" in output
    answer = json.loads(said("predict", path, tmp_path / "x.csv", "--json", code=0))
    assert answer["columns"][1:-1] == [text.strip() for text in texts]
    said("predict", path, tmp_path / "x.csv", "-o", tmp_path / "u.csv", code=0)
    with open(tmp_path / "u.csv", newline="", encoding="utf-8") as file:
        _, line = list(csv.reader(file))
    assert line[1:-1] == [f"'{t}" if t == TEXTS["formula"] else t for t in texts]


BAD_TABLES = {
    "NUL": b"x\n1\0\n",
    "NUL in the head": b"x\0\n1\n",
    "many columns": b",".join(b"c%d" % k for k in range(10**6)) + b"\n1\n",
    "many equal columns": b"x" + b",x" * 10**6 + b"\n1\n",
    "long cell": b"\x1b" * 10**7 + b"\n1\n",
    "long cell in quotes": b'"' + b"a\n" * 10**6 + b'"\n1\n',
    "quotes without end": b'x\n"1\n2\n',
    "carriage returns": b"y\r\n1\r\n",
    "byte order mark twice": "\ufeff\ufeffx\n1\n".encode(),
    "UTF-16": "x\n1\n".encode("utf-16"),
    "escape in a cell": b"x\n\x1b[31m\n",
    "hostile head": ALL.replace("\udc9b", "").replace("\n", "").encode() + b"\n1\n",
    "nothing": b"",
    "only commas": b",,,\n,,,\n",
}


@pytest.mark.parametrize("table", BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_tables(table, content, result, tmp_path):
    """One line, not too long."""
    (tmp_path / "x.csv").write_bytes(table)
    lines = said("predict", result.save(tmp_path / "a.sapm"), tmp_path / "x.csv", code=2)
    lines = [line for line in lines.splitlines() if "sapm: warning: " not in line]
    assert len(lines) == 1 and lines[0].startswith("sapm: ") and len(lines[0]) <= 1006


def test_good_tables(result, tmp_path):
    """A byte order mark, CRLF, quotes and 10⁶ columns."""
    path = result.save(tmp_path / "a.sapm")
    wide = b"x" + b"," * 10**6 + b"\n0.5\n"
    for table in (b"\xef\xbb\xbfx\r\n0.5\r\n", b'"x"\n"0.5"\n', b"x\r0.5\r", wide):
        (tmp_path / "x.csv").write_bytes(table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line = said("predict", path, tmp_path / "x.csv", code=0).strip().splitlines()[-1]
        assert float(line.rpartition(",")[2]) == pytest.approx(result.best(0.5), abs=1e-12)


def test_tables_of_commands():
    """Tables of every command, with any cells."""
    from rich.table import Table

    table = Table(ALL, title=ALL, caption=ALL)
    table.add_row(ALL)
    console = terminal.console()
    with console.capture() as captured:
        console.print(table)
        console.print(ALL)
    assert not harmful(captured.get())
