"""Format numbers, durations and foreign text for people."""

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


#: Seconds of a unit.
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def si(value: float | None, unit: str = "") -> str:
    """``1.23 MB``, a share (of unit 1) without one; n/a for None."""
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
    """``0:42`` or ``1:02:03``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def length_s(text: str) -> float | None:
    """Seconds of ``330``, ``330s``, ``5m``, ``1.5h`` or ``30d``; None for what is none of these."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def rate(value: float | None) -> str:
    """A throughput: thousands separated, or three digits when small."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
