"""The nearest right name for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word, choices: Iterable[str]) -> str:
    """ " Did you mean …?", or nothing."""
    close = get_close_matches(str(word), [str(c) for c in choices], 1, 0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
