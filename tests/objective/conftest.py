"""These tests call the engine itself, which works in 64 bits."""

import pytest


@pytest.fixture(autouse=True)
def engine(double_precision):
    pass
