"""Draw the figures of docs/paper.md and docs/results from the published results.

Usage: python tools/paper_figures.py
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from matplotlib.figure import Figure
from paper_cells import Results, published, seeds_text, strands
from paper_experiments import AUTHORS_RULES, EXPERIMENTS, GAMMAS, PAPER, VOTES, names_of
from paper_results import FOLDER, Strand, read
from PIL import Image

from holdout.experiments.curves import CurveResult, Round, group, name_of
from holdout.experiments.figures import panels_png
from holdout.experiments.reproduce import FIGURES
from holdout.results import write_atomic

WIDTH_PIXELS = 1800
COLOURS = 255
METHOD = Image.Quantize.FASTOCTREE
OTHERS = PAPER[: -len(VOTES)]

Parts = Mapping[str, Sequence[str]]

# For each panel of `holdout reproduce`: the experiments, and which of their rules.
PANELS: Mapping[str, Sequence[Parts]] = MappingProxyType(
    {
        "mnist": (
            {"mnist-left": PAPER},
            {"mnist-left": ("mean",), "mnist-right": PAPER},
            {"mnist-left": ("mean",), "mnist-right": OTHERS, "mnist-any": VOTES},
            {"mnist-authors-none": ("mean",), "mnist-authors": AUTHORS_RULES},
        ),
        "cifar10": (
            {"cifar10-none": ("mean",), "cifar10-all": PAPER},
            {"cifar10-none": ("mean",), "cifar10-all": OTHERS, "cifar10-any": VOTES},
            {"cifar10-authors-none": ("mean",), "cifar10-authors": AUTHORS_RULES},
        ),
    }
)


def main() -> None:
    """Draw every figure whose results are published."""
    for name, parts in PANELS.items():
        if results := read(name):
            titled = [
                (f"{panel.title}\n({_run(results, part)})", curves(results, part))
                for panel, part in zip(FIGURES[name], parts, strict=True)
            ]
            write_atomic(FOLDER / f"{name}.png", small(panels_png(titled)))
    if results := read("mnist-passing"):
        write_atomic(FOLDER / "mnist-passing.png", small(passing(results)))


def curves(results: Results, parts: Parts) -> list[CurveResult]:
    """The curves of a panel, with the points that were published."""
    return group(list(_rounds(results, parts)))


def _run(results: Results, parts: Parts) -> str:
    """A panel's number of seeds, and m_c where it is not that of `holdout reproduce`."""
    counts = {
        len(drawn)
        for name, rules in parts.items()
        for rule in rules
        if (drawn := _drawn(results, name, rule))
    }
    seeds = seeds_text(counts)
    samples = [
        f", m_c = {setting.removeprefix('vote.samples=')}"
        for setting in EXPERIMENTS[list(parts)[-1]].settings
        if setting.startswith("vote.samples=")
    ]
    return f"{seeds} seed{'' if seeds == '1' else 's'}{''.join(samples)}"


def _drawn(results: Results, name: str, rule: str) -> list[Strand]:
    """The finished strands of a curve, or all if none is: a mix would bend the mean half-way."""
    return strands(results, name, rule) or published(results, name, rule)


def _rounds(results: Results, parts: Parts) -> Iterator[Round]:
    for name, rules in parts.items():
        for rule in rules:
            drawn = _drawn(results, name, rule)
            numbers = sorted({number for strand in drawn for number, _ in strand.curve})
            for strand in drawn:
                yield from _points(strand, numbers)


def _points(strand: Strand, numbers: Sequence[int]) -> Iterator[Round]:
    """A seed's accuracies; one that diverged keeps its last while the others go on."""
    key = {"rule": strand.rule, "attack": strand.attack, "seed": strand.seed}
    for number, accuracy in strand.curve:
        yield {**key, "round": number, "accuracy": accuracy}
    if strand.outcome == "diverged":
        for number in numbers:
            if number > strand.rounds:
                yield {**key, "round": number, "accuracy": strand.final_accuracy}


def passing(results: Results) -> bytes:
    """Final accuracy by γ_max, passing and sign, a panel for each vote."""
    figure = Figure(figsize=(9, 3.4), dpi=200, layout="constrained")
    panels = figure.subplots(1, len(VOTES), sharey=True)
    for axes, rule in zip(panels, VOTES, strict=True):
        for which, style in (("any", "-"), ("all", "--")):
            for sign, words, colour in (("plus", "+", "#0072B2"), ("minus", "-", "#D55E00")):
                found = {
                    gamma: [100 * strand.final_accuracy for strand in drawn]
                    for gamma in GAMMAS
                    if (drawn := strands(results, f"passing-{which}-{gamma}-{sign}", rule))
                }
                axes.plot(
                    list(found),
                    [fmean(values) for values in found.values()],
                    style,
                    color=colour,
                    marker="o",
                    markersize=4,
                    label=f"{which} cop{'y' if which == 'any' else 'ies'}, μ {words} γσ",
                )
                low, high = map(min, found.values()), map(max, found.values())
                axes.fill_between(
                    list(found), list(low), list(high), color=colour, alpha=0.12, linewidth=0
                )
        axes.set(xscale="log", xlabel="γ_max", title=name_of(rule), ylim=(0, 100))
        axes.set_xticks(GAMMAS, [str(gamma) for gamma in GAMMAS])
        axes.minorticks_off()
        axes.grid(color="#E4E7EB", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    names = names_of("mnist-passing")
    counts = {len(strands(results, name, rule)) for name in names for rule in VOTES}
    run = f"seeds: {seeds_text(counts)}; {EXPERIMENTS[names[0]].rounds} rounds"
    figure.suptitle(f"{run}; band: lowest to highest", fontsize=9)
    panels[0].set_ylabel("final test accuracy (%)")
    panels[-1].legend(loc="lower left", fontsize=8, handlelength=3.5)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def small(png: bytes) -> bytes:
    """The picture scaled to a page's width, with few colours, to keep the file small."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    height = round(picture.height * WIDTH_PIXELS / picture.width)
    reduced = picture.resize((WIDTH_PIXELS, height), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    reduced.quantize(COLOURS, METHOD).save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    main()
