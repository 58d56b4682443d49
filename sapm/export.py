"""A trained network in other formats: ONNX, torch, NumPy, MATLAB; and its values at points from a CSV file."""

from __future__ import annotations

import csv
import io
import warnings
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sapm import store
from sapm.names import brief, nearest, shown

FORMATS = {".onnx": "ONNX", ".pt": "torch weights", ".npz": "NumPy", ".mat": "MATLAB"}
ONNX_NAME = {"relu": "Relu", "sin": "Sin", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus"}


def check_ending(path: Path) -> None:
    if path.suffix not in FORMATS:
        known = ", ".join(f"{end} ({name})" for end, name in FORMATS.items())
        raise ValueError(f"{path.name} has no ending that is known; use {known}.")


def export(u: Any, path: str | Path) -> Path:
    """Write the network by the ending of the file's name."""
    path = Path(path)
    check_ending(path)
    {".onnx": to_onnx, ".pt": _to_pt, ".npz": _to_npz, ".mat": _to_mat}[path.suffix](u, path)
    return path


NOT_A_NETWORK = (
    "a solution with hard conditions cannot be exported: its network, u.weights, is only a factor of it; `sapm predict` with "
    "--problem gives its values."
)


def _exportable(u: Any) -> None:
    if u.directions:
        raise ValueError("a derivative cannot be exported; export u itself.")
    if u.ansatz is not None:
        raise ValueError(NOT_A_NETWORK)


def arrays(u: Any) -> dict[str, np.ndarray]:
    """W1, b1, W2, …; W is (out, in). With features (Periodic, Fourier) the inputs of W1 are the coordinates `kept`, counted from
    0, and then sin(features_W x + features_b)."""
    _exportable(u)
    found = {f"{name}{l}": a for l, pair in enumerate(u.weights, 1) for name, a in zip("Wb", pair, strict=True)}
    if (e := u.embedding) is not None:
        found |= {"kept": np.array(e.kept, int), "features_W": np.asarray(e.W), "features_b": np.asarray(e.b)}
    return found


def _to_npz(u: Any, path: Path) -> None:
    body = io.BytesIO()
    np.savez(body, activation=u.sigma.name, names=np.array(u.names), **arrays(u))  # type: ignore[arg-type]
    store.write_whole(path, body.getvalue())


def _to_mat(u: Any, path: Path) -> None:
    from scipy.io import savemat

    body = io.BytesIO()
    savemat(body, {"activation": u.sigma.name, "names": list(u.names)} | arrays(u))
    store.write_whole(path, body.getvalue())


def _built_in(u: Any) -> str:
    _exportable(u)
    if u.sigma.name not in ONNX_NAME:
        raise ValueError(
            f"the activation {u.sigma.name!r} is your own, and other formats do not know it; export to .npz or .mat."
        )
    return u.sigma.name


def to_onnx(u: Any, path: str | Path) -> Path:
    """A double-precision model: input "points" (n, coordinates), output "u" (n, outputs)."""
    name = _built_in(u)
    try:
        import onnx  # type: ignore[import-not-found]
        from onnx import TensorProto, helper, numpy_helper  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError("ONNX needs the package onnx; install it with: pip install onnx") from None
    nodes, current = [], "points"
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
        nodes.append(helper.make_node("Gemm", [current, f"W{l}", f"b{l}"], ["u" if last else f"a{l}"], transB=1))
        if not last:
            nodes.append(helper.make_node(ONNX_NAME[name], [f"a{l}"], [f"z{l}"]))
            current = f"z{l}"
    shape = lambda label, width: helper.make_tensor_value_info(label, TensorProto.DOUBLE, ["n", width])  # noqa: E731
    inputs, outputs = [shape("points", len(u.names))], [shape("u", len(u.weights[-1][1]))]
    graph = helper.make_graph(nodes, "sapm", inputs, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="sapm")
    model.ir_version = 8  # that of opset 17: what is not newer than needed is read everywhere
    model.doc_string = "coordinates: " + ", ".join(u.names)
    onnx.checker.check_model(model)
    store.write_whole(Path(path), model.SerializeToString())
    return Path(path)


def to_torch(u: Any) -> Any:
    """A torch.nn.Sequential in double precision: points (n, coordinates) → (n, outputs). Features are its first module."""
    name = _built_in(u)
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
    first = [] if u.embedding is None else [Features(u.embedding.kept, u.embedding.W, u.embedding.b)]
    return torch.nn.Sequential(*first, *layers)


def fill(layers: list, weights: list) -> None:
    """Give torch.nn.Linear layers these weights, in whatever precision and on whatever device they are."""
    import torch  # type: ignore[import-not-found]

    with torch.no_grad():
        for layer, (W, b) in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(np.array(W)))
            layer.bias.copy_(torch.from_numpy(np.array(b)))


def _to_pt(u: Any, path: Path) -> None:
    module = to_torch(u)
    import torch  # type: ignore[import-not-found]

    body = io.BytesIO()
    torch.save(module.state_dict(), body)
    store.write_whole(path, body.getvalue())


LINE = 2**26  # characters of a line of a CSV file, at most
COLUMNS = 1000  # of a CSV file, at most, for those that are not coordinates to be kept


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Its lines, none of them longer than a line may be: a file without any would be read whole."""
    number = 0
    while line := file.readline(LINE):
        number += 1
        if len(line) == LINE and not line.endswith("\n"):
            raise ValueError(f"{path}, line {number} is longer than {LINE} characters; is it a CSV file?")
        yield line


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank, one after the other; cells of a spreadsheet may all be blank."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(_lines(file, path))
        try:
            for row in reader:
                if any(map(str.strip, row)):
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.line_num} cannot be read as CSV: {error}; write numbers with commas."
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file in UTF-8; save it as CSV in UTF-8.") from None


def _number(text: str) -> float:
    """As tables have numbers: Python's own would also take 1_000, and the digits of all scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _plain(a: float) -> int | float:
    """5 rather than 5.0: a whole number is written as it was, most likely, in the file."""
    return int(a) if a.is_integer() and abs(a) < 2**53 else a


def _points(path: Path, names: Sequence[str]) -> tuple[list[int], np.ndarray, list[tuple[str, list]]]:
    """(line numbers, points, all columns): the points are numbers in the columns with these names, and other cells are texts. Of
    a file with very many columns only the points are kept."""
    rows = _read_csv(path)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty; its first line must name the columns {', '.join(names)}.")
    head = [name.strip() for name in first[1]]
    for name in names:
        if name not in head:
            apart = len(head) == 1 and any(mark in head[0] for mark in ";\t")
            how = " Columns are separated by commas." if apart else nearest(name, head)
            how = " The first line must name the columns." if all(map(_is_number, head)) else how
            raise ValueError(f"{path} has no column {brief(name)}; it has {shown(', '.join(head[:20]))}.{how}")
        if head.count(name) > 1:
            raise ValueError(f"{path} has {head.count(name)} columns called {brief(name)}; name each of them once.")
    where, lines, found = [head.index(name) for name in names], [], array("d")
    texts: dict[int, list[str]] = {k: [] for k in range(len(head)) if k not in where} if len(head) <= COLUMNS else {}
    if len(head) > COLUMNS:
        warnings.warn(f"{path} has {len(head)} columns; of more than {COLUMNS}, only the points are kept.", stacklevel=3)
    for line, row in rows:
        if any(cell.strip() for cell in row[len(head) :]):
            raise ValueError(f"{path}, line {line} has {len(row)} cells, and the first line names {len(head)} columns.")
        for name, k in zip(names, where, strict=True):
            text = row[k].strip() if k < len(row) else ""
            try:
                found.append(_number(text))
            except ValueError:
                raise ValueError(f"{path}, line {line}, column {brief(name)}: {brief(text)} is not a number.") from None
            if not np.isfinite(found[-1]):
                raise ValueError(f"{path}, line {line}, column {brief(name)}: {brief(text)} is not finite.")
        lines.append(line)
        for k, column in texts.items():
            column.append(row[k] if k < len(row) else "")
    if not lines:
        raise ValueError(f"{path} names its columns and has no points; add a line with the numbers of every point.")
    x = np.frombuffer(found).reshape(len(lines), len(names))
    columns: dict[int, list] = {k: cells for k, cells in texts.items() if head[k] or any(map(str.strip, cells))}
    columns |= {k: [_plain(a) for a in x[:, i].tolist()] for i, k in enumerate(where)}
    return lines, x, [(head[k], columns[k]) for k in sorted(columns)]


def written(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table as CSV: names may have commas in them."""
    text = io.StringIO()
    broken = any("\r" in str(cell) for row in (head, *rows) for cell in row)  # which the writer takes for no end of a line
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if broken else csv.QUOTE_MINIMAL).writerows([head, *rows])
    return text.getvalue()


def evaluate_csv(u: Any, path: Path) -> tuple[list[str], list[tuple]]:
    """(column names, rows): those of the file, and the best network's outputs at its points."""
    if not path.is_file():
        what = "is not a file on disk" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {what}; give a CSV file with the columns {', '.join(u.names)}.")
    lines, x, columns = _points(path, u.names)
    values = u(x).reshape(len(x), -1)
    outside = u.outside(x)
    if outside.any():
        where = f"the first in line {lines[outside.argmax()]}"
        warnings.warn(
            f"{outside.sum()} of {len(x)} points are outside of the domain ({where}); nothing is known of u there.", stacklevel=2
        )
    bad = ~np.isfinite(values).all(1)
    if bad.any():
        raise ValueError(
            f"{path}, line {lines[bad.argmax()]}: the network is not finite there; the point is far out of its range."
        )
    single = "u" if "u" not in u.names else "output"
    outputs = [single] if values.shape[1] == 1 else list(u.fields) or [f"u{k}" for k in range(1, values.shape[1] + 1)]
    for name, each in zip(outputs, values.T, strict=True):
        taken = {other for other, _ in columns}
        while name in taken:
            name += "_network"
        columns.append((name, each.tolist()))
    return [name for name, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))
