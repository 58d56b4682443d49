"""Write a trained network in other formats (ONNX, torch, NumPy, MATLAB), and evaluate it at the
points of a CSV file.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from sapm.errors import brief, nearest, shown, shown_path, warn
from sapm.results.files import write_whole

if TYPE_CHECKING:
    from torch import nn  # type: ignore[import-not-found]

    from sapm.results.solution import Solution

# operators of ONNX for the built-in activations
ONNX_ACTIVATIONS = {
    "relu": "Relu",
    "sin": "Sin",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
}
ONNX_OPSET = 17
ONNX_IR_VERSION = 8  # the one of opset 17; a newer one is not read everywhere
NOT_A_NETWORK = (
    "a solution with hard conditions cannot be exported: its network, u.weights, is only a factor "
    "of it; `sapm predict` with --problem gives its values."
)

# ---------------------------------------------------------------- formats


def check_ending(path: Path) -> None:
    """Refuse a file name whose ending names no format."""
    if path.suffix not in FORMATS:
        known = ", ".join(f"{ending} ({each.name})" for ending, each in FORMATS.items())
        raise ValueError(f"{path.name} has an unknown ending; expected {known}.")


def export(u: Solution, path: str | Path) -> Path:
    """Write the network in the format that the ending of the file's name stands for.

    Parameters
    ----------
    u : the solution.
    path : the file; its ending is one of `FORMATS`.
    """
    path = Path(path)
    check_ending(path)
    FORMATS[path.suffix].write(u, path)
    return path


def _check_exportable(u: Solution) -> None:
    if u.directions:
        raise ValueError("a derivative cannot be exported; export u itself.")
    if u.ansatz is not None:
        raise ValueError(NOT_A_NETWORK)


def arrays(u: Solution) -> dict[str, np.ndarray]:
    """W1, b1, W2, …; W is (out, in). With features (Periodic, Fourier) the inputs of W1 are the
    coordinates `kept`, counted from 0, and then sin(features_W x + features_b).
    """
    _check_exportable(u)
    named = {
        f"{name}{l}": a
        for l, pair in enumerate(u.weights, 1)
        for name, a in zip("Wb", pair, strict=True)
    }
    if u.embedding is not None:
        named["kept"] = np.array(u.embedding.unchanged, int)
        named["features_W"] = np.asarray(u.embedding.W)
        named["features_b"] = np.asarray(u.embedding.b)
    return named


def _to_npz(u: Solution, path: Path) -> None:
    body = io.BytesIO()
    np.savez(body, activation=u.sigma.name, names=np.array(u.names), **arrays(u))  # type: ignore[arg-type]
    write_whole(path, body.getvalue())


def _to_mat(u: Solution, path: Path) -> None:
    from scipy.io import savemat

    body = io.BytesIO()
    savemat(body, {"activation": u.sigma.name, "names": list(u.names)} | arrays(u))
    write_whole(path, body.getvalue())


def _built_in_activation(u: Solution) -> str:
    _check_exportable(u)
    if u.sigma.name not in ONNX_ACTIVATIONS:
        raise ValueError(
            f"the activation {u.sigma.name!r} is your own, and other formats do not know it; "
            "export to .npz or .mat."
        )
    return u.sigma.name


def to_onnx(u: Solution, path: str | Path) -> Path:
    """Write an ONNX model in double precision: "points" (n, coordinates) → "u" (n, outputs).

    Parameters
    ----------
    u : the solution.
    path : the file.
    """
    name = _built_in_activation(u)
    try:
        import onnx  # type: ignore[import-not-found]
        from onnx import TensorProto, helper, numpy_helper  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError(
            "ONNX needs the package onnx; install it with: pip install onnx"
        ) from None
    nodes = []
    current = "points"
    initial = [numpy_helper.from_array(np.asarray(a), label) for label, a in arrays(u).items()]
    if u.embedding is not None:
        nodes += [
            helper.make_node("Gemm", ["points", "features_W", "features_b"], ["a0"], transB=1),
            helper.make_node("Sin", ["a0"], ["z0"]),
            helper.make_node("Gather", ["points", "kept"], ["x0"], axis=1),
            helper.make_node("Concat", ["x0", "z0"], ["features"], axis=1),
        ]
        current = "features"
    for l in range(1, len(u.weights) + 1):
        last = l == len(u.weights)
        output = "u" if last else f"a{l}"
        nodes.append(helper.make_node("Gemm", [current, f"W{l}", f"b{l}"], [output], transB=1))
        if not last:
            nodes.append(helper.make_node(ONNX_ACTIVATIONS[name], [f"a{l}"], [f"z{l}"]))
            current = f"z{l}"

    def shape(label, width):
        return helper.make_tensor_value_info(label, TensorProto.DOUBLE, ["n", width])

    inputs = [shape("points", len(u.names))]
    outputs = [shape("u", len(u.weights[-1][1]))]
    graph = helper.make_graph(nodes, "sapm", inputs, outputs, initial)
    opset = helper.make_opsetid("", ONNX_OPSET)
    model = helper.make_model(graph, opset_imports=[opset], producer_name="sapm")
    model.ir_version = ONNX_IR_VERSION
    model.doc_string = "coordinates: " + ", ".join(u.names)
    onnx.checker.check_model(model)
    write_whole(Path(path), model.SerializeToString())
    return Path(path)


def to_torch(u: Solution) -> nn.Sequential:
    """A torch.nn.Sequential in double precision: points (n, coordinates) → (n, outputs). Features
    (Periodic, Fourier) are its first module.
    """
    name = _built_in_activation(u)
    try:
        import torch  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError("this needs PyTorch; install it with: pip install torch") from None

    class Sin(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x)

    class Features(torch.nn.Module):
        def __init__(self, kept, W, b):
            super().__init__()
            for label, a in (("kept", np.array(kept, int)), ("W", W), ("b", b)):
                self.register_buffer(label, torch.from_numpy(np.array(a)))

        def forward(self, x):
            return torch.cat([x[..., self.kept], torch.sin(x @ self.W.T + self.b)], dim=-1)

    sigma = {
        "relu": torch.nn.ReLU,
        "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid,
        "softplus": torch.nn.Softplus,
        "sin": Sin,
    }[name]
    layers: list[Any] = []
    for l, (W, _) in enumerate(u.weights):
        layers += [sigma()] if l else []
        layers.append(torch.nn.Linear(W.shape[1], W.shape[0], dtype=torch.float64))
    fill(layers[::2], u.weights)
    first = []
    if u.embedding is not None:
        first = [Features(u.embedding.unchanged, u.embedding.W, u.embedding.b)]
    return torch.nn.Sequential(*first, *layers)


def fill(layers: Sequence[nn.Linear], weights: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Give torch.nn.Linear layers these weights, in the precision and on the device they have.

    Parameters
    ----------
    layers : the layers.
    weights : (W, b) of each, W (out, in).
    """
    import torch  # type: ignore[import-not-found]

    with torch.no_grad():
        for layer, (W, b) in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(np.array(W)))
            layer.bias.copy_(torch.from_numpy(np.array(b)))


def _to_pt(u: Solution, path: Path) -> None:
    module = to_torch(u)
    import torch  # type: ignore[import-not-found]

    body = io.BytesIO()
    torch.save(module.state_dict(), body)
    write_whole(path, body.getvalue())


@dataclass(frozen=True)
class Format:
    """A file format: its name, and the function that writes it."""

    name: str
    write: Callable[[Solution, Path], object]


FORMATS = {
    ".onnx": Format("ONNX", to_onnx),
    ".pt": Format("torch weights", _to_pt),
    ".npz": Format("NumPy", _to_npz),
    ".mat": Format("MATLAB", _to_mat),
}

# ---------------------------------------------------------------- tables of points

LONGEST_LINE_CHARACTERS = 2**26  # of a CSV file
# of a CSV file with more columns, only the coordinates are copied to the output
MOST_COPIED_COLUMNS = 1000
MOST_LISTED_COLUMNS = 20  # in an error message
# Spreadsheets take a cell that begins like this for a formula
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


@dataclass(frozen=True)
class PointTable:
    """The contents of a CSV file with points.

    Parameters
    ----------
    lines : the line number of every point.
    points : (n, d) in the order of the coordinates.
    columns : (name, cells) of every column in the order of the file, numbers for coordinates and
        texts for others.
    """

    lines: list[int]
    points: np.ndarray
    columns: list[tuple[str, list]]


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file, none longer than the limit: a file without line ends would be read
    whole.
    """
    number = 0
    while line := file.readline(LONGEST_LINE_CHARACTERS):
        number += 1
        if len(line) == LONGEST_LINE_CHARACTERS and not line.endswith("\n"):
            raise ValueError(
                f"{shown_path(path)}, line {number} is longer than {LONGEST_LINE_CHARACTERS} "
                "characters; is it a CSV file?"
            )
        yield line


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank. A spreadsheet may write lines whose
    cells are all blank.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(_lines(file, path))
        try:
            for row in reader:
                if any(map(str.strip, row)):
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(
                f"{shown_path(path)}, line {reader.line_num} cannot be read as CSV: {error}; write "
                "numbers with commas."
            ) from None
        except UnicodeDecodeError:
            raise ValueError(
                f"{shown_path(path)} is not a text file in UTF-8; save it as CSV in UTF-8."
            ) from None


def _number(text: str) -> float:
    """A number as tables have it: Python would also take 1_000, and the digits of all scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _shortest(a: float) -> int | float:
    """5 for 5.0: the file most likely had it so."""
    return int(a) if a.is_integer() and abs(a) < 2**53 else a


def read_points(path: Path, names: Sequence[str]) -> PointTable:
    """Read the columns called `names` as numbers, and all others as texts.

    Parameters
    ----------
    path : a CSV file, whose first line names the columns.
    names : the coordinates.
    """
    rows = _read_csv(path)
    first = next(rows, None)
    if first is None:
        raise ValueError(
            f"{shown_path(path)} is empty; its first line must name the columns {', '.join(names)}."
        )
    head = [name.strip() for name in first[1]]
    where = [_column(path, head, name) for name in names]
    others: dict[int, list[str]] = {}
    if len(head) <= MOST_COPIED_COLUMNS:
        others = {k: [] for k in range(len(head)) if k not in where}
    else:
        warn(
            f"{shown_path(path)} has {len(head)} columns, more than {MOST_COPIED_COLUMNS}: only "
            "those of the coordinates are copied.",
        )
    lines = []
    values = array("d")
    for line, row in rows:
        if any(cell.strip() for cell in row[len(head) :]):
            raise ValueError(
                f"{shown_path(path)}, line {line} has {len(row)} cells, and the first line names "
                f"{len(head)} columns."
            )
        for name, k in zip(names, where, strict=True):
            values.append(_cell(row[k].strip() if k < len(row) else "", path, line, name))
        lines.append(line)
        for k, cells in others.items():
            cells.append(row[k] if k < len(row) else "")
    if not lines:
        raise ValueError(
            f"{shown_path(path)} names its columns and has no points; add a line with the numbers "
            "of every point."
        )
    x = np.frombuffer(values).reshape(len(lines), len(names))
    columns: dict[int, list] = {
        k: cells for k, cells in others.items() if head[k] or any(map(str.strip, cells))
    }
    columns |= {k: [_shortest(a) for a in x[:, i].tolist()] for i, k in enumerate(where)}
    return PointTable(lines, x, [(head[k], columns[k]) for k in sorted(columns)])


def _column(path: Path, head: list[str], name: str) -> int:
    """The place of a column in the first line."""
    forms = (name, _no_formula(name))  # as it is, and as our own tables have it
    places = [k for k, cell in enumerate(head) if cell in forms]
    if len(places) > 1:
        raise ValueError(
            f"{shown_path(path)} has {len(places)} columns called {brief(name)}; name each of "
            "them once."
        )
    if places:
        return places[0]
    if all(map(_is_number, head)):
        hint = " The first line must name the columns."
    elif len(head) == 1 and any(mark in head[0] for mark in ";\t"):
        hint = " Columns are separated by commas."
    else:
        hint = nearest(name, head)
    listed = shown(", ".join(head[:MOST_LISTED_COLUMNS]))
    raise ValueError(f"{shown_path(path)} has no column {brief(name)}; it has {listed}.{hint}")


def _cell(text: str, path: Path, line: int, name: str) -> float:
    """The number in a cell."""
    try:
        value = _number(text)
    except ValueError:
        value = None
    if value is None or not np.isfinite(value):
        what = "a number" if value is None else "finite"
        raise ValueError(
            f"{shown_path(path)}, line {line}, column {brief(name)}: {brief(text)} is not {what}."
        )
    return value


def _no_formula(cell: Any) -> Any:
    """A cell as it is written: a text that a spreadsheet would take for a formula gets an
    apostrophe before it. Numbers stay as they are.
    """
    formula = isinstance(cell, str) and FORMULA.match(cell) and not _is_number(cell)
    return f"'{cell}" if formula else cell


def csv_text(names: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table as CSV, in which no cell is a formula.

    Parameters
    ----------
    names : the names of the columns.
    rows : the cells of every row.
    """
    text = io.StringIO()
    names, *rows = [[_no_formula(cell) for cell in row] for row in (names, *rows)]
    # Python's writer does not quote a carriage return, and its reader takes one for a line end
    carriage_returns = any("\r" in str(cell) for row in (names, *rows) for cell in row)
    quoting = csv.QUOTE_ALL if carriage_returns else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows([names, *rows])
    return text.getvalue()


def evaluate_csv(u: Solution, path: Path) -> tuple[list[str], list[tuple]]:
    """(column names, rows): the columns of the file, and the values of u at its points.

    Parameters
    ----------
    u : the solution.
    path : a CSV file with the coordinates as columns.
    """
    if not path.is_file():
        what = "is not a file on disk" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{shown_path(path)} {what}; give a CSV file with the columns {', '.join(u.names)}."
        )
    table = read_points(path, u.names)
    values = u(table.points).reshape(len(table.points), -1)
    outside = u.outside(table.points)
    if outside.any():
        warn(
            f"{outside.sum()} of {len(outside)} points are outside of the domain (the first in "
            f"line {table.lines[outside.argmax()]}); nothing is known of u there.",
        )
    bad = ~np.isfinite(values).all(1)
    if bad.any():
        raise ValueError(
            f"{shown_path(path)}, line {table.lines[bad.argmax()]}: the network is not finite "
            "there; the point is far out of its range."
        )
    columns = list(table.columns)
    for name, output in zip(_output_names(u, values.shape[1]), values.T, strict=True):
        used = {other for other, _ in columns}
        while name in used:
            name += "_network"
        columns.append((name, output.tolist()))
    cells = (column for _, column in columns)
    return [name for name, _ in columns], list(zip(*cells, strict=True))


def _output_names(u: Solution, outputs: int) -> list[str]:
    if outputs == 1:
        return ["u" if "u" not in u.names else "output"]
    return list(u.fields) or [f"u{k}" for k in range(1, outputs + 1)]
