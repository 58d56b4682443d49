"""Every method side by side: same data, same clock. `run` fills a folder with cells, `write` makes a page of one or several."""

from sapm.bench.page import write as write
from sapm.bench.runner import run as run
