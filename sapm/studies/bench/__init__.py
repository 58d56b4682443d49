"""The benchmark: every method on the same data, with the same training time.

`run` fills a folder with cells (one training each), `write` makes a page of one or several folders.
"""

from sapm.studies.bench.page import write as write
from sapm.studies.bench.runner import run as run
