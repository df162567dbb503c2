"""Formatting of numbers, durations and untrusted text for people."""

import re

#: Characters that end a line. They include Unicode separators, because some terminals and editors
#: break lines there.
_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")
#: Control characters, marks that change the writing direction, and lone surrogates.
_MOVING = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Return the text as one line without control characters."""
    return still(_BREAKS.sub(" ", text))


def still(text: str) -> str:
    """Return the text with its line breaks but without control characters."""
    return _MOVING.sub("\N{REPLACEMENT CHARACTER}", text)


#: Seconds in each unit of time.
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def si(value: float | None, unit: str = "") -> str:
    """Return a number with its unit and an SI prefix, such as ``1.23 MB``, or ``n/a`` for None.

    The unit ``1`` means a ratio, which gets no prefix and no unit.
    """
    if value is None:
        return "n/a"
    if unit == "1":
        return f"{value:.3g}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Return a duration as ``0:42`` or ``1:02:03``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def length_s(text: str) -> float | None:
    """Parse a duration such as ``330``, ``330s``, ``5m``, ``1.5h`` or ``30d``.

    Return the duration in seconds, or None if the text is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def rate(value: float | None) -> str:
    """Return a throughput with separators of thousands, or with four digits if it is below 1000."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
