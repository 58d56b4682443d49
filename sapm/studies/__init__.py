"""Studies built on the library: a demonstration, the paper's tables, a benchmark."""
