"""Damage a model file: its bytes or its header. `leaves` changes its content."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Draw = np.random.Generator


def taken_apart(body: bytes) -> tuple[dict, bytes]:
    """(header, payload) of a safetensors file."""
    n = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + n]), body[8 + n :]


def together(header: Any, payload: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


# ---------------------------------------------------------------- bytes


def _place(draw: Draw, body: bytes) -> int:
    """Anywhere; one time in three in the header or at its ends."""
    n = 8 + int.from_bytes(body[:8], "little")
    return (
        int(draw.integers(min(n + 16, len(body))))
        if draw.random() < 1 / 3
        else int(draw.integers(len(body)))
    )


def flip(draw: Draw, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(1 if draw.random() < 0.7 else int(draw.integers(2, 100))):
        changed[_place(draw, body)] ^= 1 << int(draw.integers(8))
    return bytes(changed)


def cut(draw: Draw, body: bytes) -> bytes:
    return body[: _place(draw, body)]


def append(draw: Draw, body: bytes) -> bytes:
    return body + draw.bytes(int(draw.choice([1, 2, 7, 8, 64, 4096])))


def blank(draw: Draw, body: bytes) -> bytes:
    at = _place(draw, body)
    length = int(draw.choice([1, 8, 64, 4096]))
    fill = bytes([int(draw.choice([0, 255, 32]))])
    return body[:at] + fill * min(length, len(body) - at) + body[at + length :]


def shuffle(draw: Draw, body: bytes) -> bytes:
    a, b = sorted(_place(draw, body) for _ in range(2))
    return [body[b:] + body[:b], body[:a] + body[b:], body[:b] + body[a:], b"\xef\xbb\xbf" + body][
        int(draw.integers(4))
    ]


def length(draw: Draw, body: bytes) -> bytes:
    """Another length of the header: none, a byte more, more than the file, 2⁶³ and beyond."""
    n = int.from_bytes(body[:8], "little")
    wrong = draw.choice(
        np.array(
            [
                0,
                1,
                n - 8,
                n - 1,
                n + 1,
                n + 8,
                len(body),
                10**8,
                2**31,
                2**40,
                2**63 - 1,
                2**63,
                2**64 - 1,
            ],
            object,
        )
    )
    return int(wrong).to_bytes(8, "little") + body[8:]


BYTES = {f.__name__: f for f in (flip, cut, append, blank, shuffle, length)}


# ---------------------------------------------------------------- the header, its checksum left as
# it was


def _tensor(draw: Draw, header: dict) -> str:
    return str(draw.choice([name for name in header if name != "__metadata__"]))


def _edit(draw: Draw, header: dict, payload: bytes) -> bytes:
    name = _tensor(draw, header)
    entry = header[name]
    meta = header["__metadata__"]
    begin, end = entry["data_offsets"]
    other = header[_tensor(draw, header)]
    edits: list[Callable[[], Any]] = [
        lambda: entry.update(
            dtype=str(
                draw.choice(["F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X", ""])
            )
        ),
        lambda: entry.update(shape=list(reversed(entry["shape"]))),
        lambda: entry.update(shape=[*entry["shape"], 1]),
        lambda: entry.update(shape=[2**62, 4]),
        lambda: entry.update(shape=[-1]),
        lambda: entry.update(shape=[0, 2**40]),
        lambda: entry.update(shape="many"),
        lambda: entry.update(data_offsets=[begin, end + 8]),
        lambda: entry.update(data_offsets=[end, begin]),
        lambda: entry.update(data_offsets=list(other["data_offsets"])),
        lambda: entry.update(data_offsets=[2**63, 2**64]),
        lambda: entry.update(data_offsets=[0]),
        lambda: header.pop(name),
        lambda: header.update({f"{name}-": header.pop(name)}),
        lambda: header.update(extra={"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}),
        lambda: header.update(extra=3),
        lambda: meta.update(
            version=str(
                draw.choice(["2", "99", "10000000000", "-1", "1.0", "", "²", "١", "9" * 5000, " 1"])
            )
        ),
        lambda: meta.update(format=str(draw.choice(["pt", "", "Sapm"]))),
        lambda: meta.pop(str(draw.choice(["sha256", "about", "version", "format"]))),
        lambda: meta.update(sha256=str(draw.choice(["", "0" * 64, "x"]))),
        lambda: meta.update(about=meta["about"][: int(draw.integers(len(meta["about"])))]),
        lambda: meta.update(
            about=str(draw.choice(["", "null", "[]", "{}", "[" * 10**5, "NaN", '"a"', "\ud800"]))
        ),
        lambda: meta.update(version=1),
        lambda: header.update(__metadata__=[]),
        lambda: header.pop("__metadata__"),
    ]
    edits[int(draw.integers(len(edits)))]()
    return together(header, payload)


def header(draw: Draw, body: bytes) -> bytes:
    """An edit of the header, or another text in its place."""
    found, payload = taken_apart(body)
    if draw.random() < 0.85:
        return _edit(draw, found, payload)
    texts = [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{" * 10**5,
        b'{"a":' * 10**4,
        b"\xff" * 100,
        b" " * 2**20,
        json.dumps(found).encode("utf-16"),
    ]
    return together(texts[int(draw.integers(len(texts)))], payload)


def rewritten(draw: Draw, body: bytes) -> bytes:
    """The same header in other words (the order of its entries, spaces, one entry more beside the
    checksum): no damage at all.
    """
    found, payload = taken_apart(body)
    names = list(found)
    draw.shuffle(names)
    found = {name: found[name] for name in names}
    found["__metadata__"] = dict(reversed(found["__metadata__"].items())) | (
        {"note": "<b>"} if draw.random() < 0.5 else {}
    )
    return together(json.dumps(found, indent=int(draw.integers(0, 3))).encode(), payload)


# ---------------------------------------------------------------- other formats


class Evil:
    """Unpickled, it writes a file."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self):
        return exec, (f"open({self.marker!r}, 'w').close()",)


def others(marker: str) -> dict[str, bytes]:
    """Files of other formats; what unpickles them writes the marker."""
    npy = io.BytesIO()
    npz = io.BytesIO()
    zipped = io.BytesIO()
    packed = pickle.dumps(Evil(marker))
    np.save(npy, np.array([Evil(marker)], object), allow_pickle=True)
    np.savez(npz, W1=np.ones(3), o=np.array([Evil(marker)], object))
    with zipfile.ZipFile(zipped, "w") as z:
        z.writestr("archive/data.pkl", packed)
        z.writestr("../../out", "out of the folder")
    return {
        "pickle": packed,
        "npy": npy.getvalue(),
        "npz": npz.getvalue(),
        "torch": zipped.getvalue(),
        "gzip": zlib.compress(packed),
        "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(100),
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(200),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(200),
        "python": f"open({marker!r}, 'w').close()\n".encode() * 4,
        "html": b"<!doctype html><title>404</title>",
        "csv": b"x,y\n1,2\n" * 30,
        "json": b'{"format": "sapm", "version": "1"}',
        "text": "Größe\r\n".encode("utf-16"),
        "empty": b"",
        "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    }
