"""Draw the figures of docs/paper.md from docs/results: small pictures beside the numbers.

Usage: python tools/paper_figures.py
"""

import io
from collections.abc import Iterator, Mapping, Sequence

from paper_experiments import PAPER, VOTES
from paper_results import FOLDER, Measured, read
from PIL import Image

from holdout.experiments.curves import Curve, Round, group
from holdout.experiments.figures import panels_png
from holdout.results import write_atomic

WIDTH_PIXELS = 1400
COLOURS = 255
METHOD = Image.Quantize.FASTOCTREE

# The titles of `holdout reproduce`; in the second and third panel other rules are the same.
MNIST = (
    ("nobody lies", {"mnist-left": PAPER}),
    (
        "33 % lie, all copies must pass",
        {"mnist-left": ("mean",), "mnist-right": PAPER},
    ),
    (
        "33 % lie, any copy suffices",
        {"mnist-left": ("mean",), "mnist-right": PAPER[: -len(VOTES)], "mnist-any": VOTES},
    ),
)


def main() -> None:
    """Draw what there are results for."""
    if results := read("mnist"):
        panels = [(title, curves(results, parts)) for title, parts in MNIST]
        write_atomic(FOLDER / "mnist.png", small(panels_png(panels)))


def curves(results: Mapping[str, Measured], parts: Mapping[str, Sequence[str]]) -> list[Curve]:
    """The curves of some rules of some experiments, thinned as they were published."""
    return group(list(_rounds(results, parts)))


def _rounds(results: Mapping[str, Measured], parts: Mapping[str, Sequence[str]]) -> Iterator[Round]:
    for name, rules in parts.items():
        for strand in results[name].strands if name in results else []:
            if strand.rule not in rules:
                continue
            key = {"rule": strand.rule, "attack": strand.attack, "seed": strand.seed}
            for number, accuracy in strand.curve:
                yield {**key, "round": number, "accuracy": accuracy}


def small(png: bytes) -> bytes:
    """The picture at a page's width, with few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    height = round(picture.height * WIDTH_PIXELS / picture.width)
    reduced = picture.resize((WIDTH_PIXELS, height), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    reduced.quantize(COLOURS, METHOD).save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    main()
