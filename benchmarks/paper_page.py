"""Write docs/results.md and its figures from the stored rows of full-scale reproductions.

    sapm reproduce function_1d --out full                # full scale; may be resumed
    python benchmarks/paper_page.py full                 # take the rows of a folder, then write
    python benchmarks/paper_page.py                      # write from the stored rows

The rows are in benchmarks/results/paper.json.xz: the `cell.json` of every run, with the curves of
its losses. A row replaces the stored one of the same experiment, size, model and variant.
"""

import json
import lzma
import sys
from pathlib import Path

from sapm.catalogue import PAPER
from sapm.studies import gallery
from sapm.studies.reproduce import MODELS, Row, all_cells, plan

HERE = Path(__file__).resolve().parent
STORED = HERE / "results" / "paper.json.xz"
DOCS = HERE.parent / "docs"
PAGE = DOCS / "results.md"


def read() -> list[Row]:
    """The stored rows."""
    return json.loads(lzma.decompress(STORED.read_bytes())) if STORED.exists() else []


def key(row: Row) -> tuple:
    """What a row is a run of."""
    return row["experiment"], *row["size"], row["model"], row["variant"]


def collect(folders: list[Path]) -> list[Row]:
    """The stored rows with those of these folders, in the order of the whole plan; stored again."""
    rows = {key(row): row for row in read()}
    cells = all_cells(plan(list(PAPER), MODELS, None, False))
    planned = {(c.experiment, *c.size, c.model, c.variant): c for c in cells}
    for folder in folders:
        for file in sorted(folder.rglob("cell.json")):
            row = json.loads(file.read_text())
            cell = planned.get(key(row))
            if cell is None or row["settings"] != json.loads(json.dumps(cell.settings)):
                raise ValueError(f"{file} is not a run of the full-scale plan; leave it out.")
            rows[key(row)] = row
    ordered = [rows[k] for k in planned if k in rows]
    STORED.write_bytes(lzma.compress(json.dumps(ordered, ensure_ascii=False).encode()))
    return ordered


def page(rows: list[Row]) -> str:
    """The page in Markdown."""
    captions = {label: caption for label, (_, caption) in gallery.pictures(rows).items()}
    introduction = gallery.lead(rows, False)
    introduction[2:2] = gallery.missing(rows)
    return gallery.markdown(gallery.tables(rows, False), captions, introduction)


def main(folders: list[str]) -> None:
    rows = collect([Path(name) for name in folders]) if folders else read()
    PAGE.write_text(page(rows))
    for label, (figure, _) in gallery.pictures(rows).items():
        gallery.save_picture(figure, DOCS / "figures" / f"{label}.svg")
    print(f"{len(rows)} rows; written: {PAGE} and its figures")


if __name__ == "__main__":
    main(sys.argv[1:])
