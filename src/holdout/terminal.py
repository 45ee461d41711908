"""What a person sees in the terminal: a progress bar while it runs, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from holdout import interrupts
from holdout.metrics import ACCURACY, metric_of

if TYPE_CHECKING:
    # Only for their names: the simulator of the protocol shows its progress without torch.
    from holdout.experiments.curves import TableRow
    from holdout.experiments.reproduce import Figure
    from holdout.experiments.runner import Progress as RoundProgress
    from holdout.experiments.runner import Watch
    from holdout.rounds import RoundRecord
    from holdout.sweeps.runner import SweepResult
    from holdout.sweeps.workforce import SweepProgress

WIDE = 110
"""With at least this many columns there is room for a bar and for the time that has passed."""

LINES = 20
"""How many lines show the progress of a batch where there is no terminal."""


@contextmanager
def watching() -> Iterator[Callable[[str], Watch]]:
    """Show a bar meanwhile, or plain lines if standard error is not a terminal.

    Gives a function that makes the watch of one run; the text given starts each of its lines.
    """
    # Standard error, so that standard output holds the result alone.
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda start: _until_asked(_print_lines(start))
        return
    bar = _bar(console)
    with bar:
        task = bar.add_task("checking the config, loading the data", total=None)
        yield lambda start: _until_asked(_bar_watch(start, bar, task))


def _until_asked(watch: Watch) -> Watch:
    """The watch, which also stops the run if Ctrl-C was pressed and got lost."""

    def watch_and_stop(progress: RoundProgress) -> None:
        watch(progress)
        interrupts.raise_if_asked()

    return watch_and_stop


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show the progress of a batch; gives a function to be told (done, total, violations)."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def line(done: int, total: int, broken: int) -> None:
            if done * LINES // total > (done - 1) * LINES // total:
                share = 100 * done / total
                text = f"{share:3.0f} %  {done} of {total} {what}, violations: {broken}"
                print(text, file=sys.stderr, flush=True)

        yield line
        return
    bar = _bar(console)
    with bar:
        task = bar.add_task(what, total=None)

        def move(done: int, total: int, broken: int) -> None:
            bar.update(
                task,
                description=f"{done} of {total} {what}, violations: {broken}",
                completed=done,
                total=total,
            )

        yield move


@contextmanager
def sweeping() -> Iterator[Callable[[SweepProgress], None]]:
    """Show the progress of a sweep; gives a function to be told of it."""
    console = Console(stderr=True)
    shown = {"done": -1}

    def line(progress: SweepProgress) -> None:
        if progress.done != shown["done"]:
            shown["done"] = progress.done
            share = 100 * progress.done / progress.total
            print(f"{share:3.0f} %  {progress}", file=sys.stderr, flush=True)
        interrupts.raise_if_asked()

    if not console.is_terminal:
        yield line
        return
    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=description),
        BarColumn(bar_width=20),
        console=console,
        transient=True,
        expand=True,
    )
    with bar:
        task = bar.add_task("checking the sweep, loading the data", total=None)

        def move(progress: SweepProgress) -> None:
            bar.update(
                task, description=str(progress), completed=progress.done, total=progress.total
            )
            interrupts.raise_if_asked()

        yield move


def print_sweep(result: SweepResult) -> None:
    """Print what each rule's worst attack leaves, and where the page is."""
    cells = result.cells
    measure = cells.file.settings.measure
    title = f"Test {cells.metric.name} ({measure}) under the worst attack ({cells.file.name})"
    table = Table(title=title, title_justify="left")
    table.add_column("rule")
    for place in cells.places:
        table.add_column(cells.place_label(place) or "worst", justify="right")
    for contender in cells.contenders:
        texts = []
        for place in cells.places:
            spread = (cell := cells.cell(contender, place)).value(measure)
            worst = cell.worst(measure)
            if spread is None or worst is None:
                texts.append("infeasible" if cell.problem else "missing")
            else:
                texts.append(f"{cells.metric.text(spread.mean)} {worst.label}".strip())
        table.add_row(cells.name(contender), *texts)
    Console(markup=False, emoji=False).print(table)
    if result.failed:
        count = len(result.failed)
        print(f"{count} curve{'s' * (count != 1)} failed: {result.folder / 'failed.json'}")
    print(f"page: {result.folder / 'sweep.html'}")


def _bar(console: Console) -> Progress:
    # Where there is little room, the description is cut, not the time that is left.
    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    wide = [BarColumn(), TimeElapsedColumn()] if console.width >= WIDE else []
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=description),
        *wide,
        TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
        TextColumn("left:", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        console=console,
        transient=True,
        expand=True,
    )


def _bar_watch(start: str, bar: Progress, task: TaskID) -> Watch:
    shown = {"curve": "", "measured": ""}

    def watch(progress: RoundProgress) -> None:
        record = progress.record
        curve = _curve(progress)
        if curve != shown["curve"]:
            shown.update(curve=curve, measured="")
        if record.is_evaluated:
            shown["measured"] = f", {_measured(record)}"
        bar.update(
            task,
            description=f"round {record.round}{shown['measured']}, {start}{curve}",
            completed=progress.rounds_done,
            total=progress.rounds_total,
        )

    return watch


def _print_lines(start: str) -> Watch:
    def watch(progress: RoundProgress) -> None:
        record = progress.record
        if record.is_evaluated:
            share = 100 * progress.rounds_done / progress.rounds_total
            print(
                f"{share:3.0f} %  {start}{_curve(progress)}: "
                f"round {record.round}, {_measured(record)}",
                file=sys.stderr,
                flush=True,
            )

    return watch


def _measured(record: RoundRecord) -> str:
    metric = metric_of([record.as_dict()])
    value = getattr(record, metric.key)
    return f"{metric.name} {'-' if value is None else metric.text(value)}"


def _curve(progress: RoundProgress) -> str:
    record = progress.record
    return f"{record.rule} ({record.attack}, seed {record.seed})"


def print_table(rows: Sequence[TableRow], title: str, *, so_far: bool = False) -> None:
    """Print where each curve ends or, in an unfinished run, where it stands."""
    when = "so far" if so_far else "at the end"
    name = rows[0].metric.name if rows else ACCURACY.name
    table = Table(title=f"Test {name} {when} ({title})", title_justify="left")
    # What is too long for a narrow terminal is folded: a number cut short would be another one.
    table.add_column("rule", overflow="fold")
    for column in ("without attack", "under attack", "drop"):
        table.add_column(column, justify="right", overflow="fold")
    success = any(row.attack_success is not None for row in rows)
    if success:
        table.add_column("success", justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row.cells(), *([row.success_text()] if success else []))
    # A rule's name is the user's: no part of it is markup.
    Console(markup=False, emoji=False).print(table)


def print_figure(figure: Figure, *, so_far: bool = False) -> None:
    """Print the table of each panel, and where the figure is."""
    for title, rows in figure.tables:
        print_table(rows, title, so_far=so_far)
    print(f"figure: {figure.path}")
