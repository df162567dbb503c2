"""Text of strangers in a line of ours: it begins no line, moves no cursor, turns nothing round."""

import re

#: What ends a line anywhere: also Unicode's separators, which terminals and editors may obey.
_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")
#: Control characters, overrides of the direction of writing, halves of characters.
_MOVING = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """The text as one line."""
    return still(_BREAKS.sub(" ", text))


def still(text: str) -> str:
    """The text with its lines as they are, where lines do no harm."""
    return _MOVING.sub("\N{REPLACEMENT CHARACTER}", text)
