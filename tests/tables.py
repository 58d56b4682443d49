"""Tables of calls that are refused. One test runs a whole table and lists every row that is wrong."""

import re

MESSAGE_CHARACTERS = 300


def complaint(call, kinds, pattern: str, *arguments) -> str:
    """What is wrong with how `call(*arguments)` is refused, or "".

    Right is: an error of exactly one of `kinds`, on one line of less than MESSAGE_CHARACTERS,
    without notes, in which the regular expression `pattern` is found.
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    try:
        call(*arguments)
    except Exception as error:
        message = str(error)
        if type(error) not in kinds:
            return f"raised {type(error).__name__}: {message}"
        if not re.search(pattern, message):
            return f"said {message!r} and not {pattern!r}"
        if "\n" in message or len(message) >= MESSAGE_CHARACTERS:
            return f"is not one short line: {message!r}"
        if getattr(error, "__notes__", []):
            return f"has notes: {error.__notes__}"
        return ""
    return "was accepted"


def all_refused(table, *arguments) -> None:
    """Every row (call, kinds, pattern) of `table`, which maps names to rows, is refused as it says."""
    wrong = {name: complaint(*row, *arguments) for name, row in table.items()}
    wrong = [f"{name}: {why}" for name, why in wrong.items() if why]
    assert not wrong, f"{len(wrong)} of {len(table)} rows:\n" + "\n".join(wrong)
