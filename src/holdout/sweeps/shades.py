"""The colours of a heat map: red where a rule has collapsed, blue where it stands.

The colour-blind can tell the ends apart, and the middle is lightest. Words stand in black or white,
whichever reads better: on any colour one of the two has a contrast above 4.5 to 1.
"""

import itertools

STOPS = (
    (0.00, (158, 32, 46)),
    (0.20, (214, 92, 62)),
    (0.40, (246, 167, 105)),
    (0.58, (253, 222, 170)),
    (0.72, (233, 240, 236)),
    (0.84, (164, 205, 226)),
    (0.93, (92, 152, 199)),
    (1.00, (42, 96, 158)),
)
"""Shares of the scale; more of it tells good from better than bad from worse."""
BLACK, WHITE = "#000000", "#ffffff"


def shade(share: float) -> str:
    """The colour at a share of the scale.

    >>> shade(0.0), shade(1.0), shade(2.0)
    ('#9e202e', '#2a609e', '#2a609e')
    """
    share = min(1.0, max(0.0, share))
    for (low, before), (high, after) in itertools.pairwise(STOPS):
        if share <= high:
            part = (share - low) / (high - low)
            mixed = [round(a + part * (b - a)) for a, b in zip(before, after, strict=True)]
            return "#" + "".join(f"{channel:02x}" for channel in mixed)
    raise AssertionError(share)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour.

    >>> ink_on("#ffffff"), ink_on("#2a609e")
    ('#000000', '#ffffff')
    """
    return max((BLACK, WHITE), key=lambda ink: contrast(ink, colour))


def contrast(first: str, second: str) -> float:
    """The contrast of two colours by WCAG, from 1 to 21."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    low, power = 0.03928, 2.4
    linear = [c / 12.92 if c <= low else ((c + 0.055) / 1.055) ** power for c in channels]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
