"""Golden scripts of the agreement: who says what when which votes arrive (testdata/*.txt)."""

from pathlib import Path

import pytest
from tests import golden
from tests.agreement.world import World, letter, step_of

from holdout.agreement.codec import BOTTOM
from holdout.agreement.events import TimerKind

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("agreement*.txt"))


class Stage:
    """Runs the commands of one script, one after the other, on one world."""

    def __init__(self):
        self.world: World | None = None

    def run(self, case: golden.Case) -> str:
        if case.command == "world":
            self.world = World(
                int(case.options["n"]),
                tuple(ord(c) - ord("a") for c in case.options.get("liars", "")),
                seed=int(case.options.get("seed", "0")),
            )
            self.world.settle()
        world = self.world
        assert world is not None
        world.log.clear()
        for line in case.lines:
            self.do(world, line.split())
        return "\n".join(world.log) or "nothing"

    def do(self, world: World, words: list[str]) -> None:  # noqa: C901  # One case a command.
        receivers: list[int] = []
        if "to" in words:
            cut = words.index("to")
            receivers = [ord(c) - ord("a") for c in "".join(words[cut + 1 :])]
            words = words[:cut]
        match words:
            case ["learn"]:
                world.learn()
            case ["deliver", *what]:
                world.deliver(" ".join(what) or "*", receivers or list(world.players))
            case ["lose", *what]:
                world.deliver(" ".join(what) or "*", receivers or list(world.players), drop=True)
            case ["fire", kind, who]:
                for worker in who:
                    world.fire(ord(worker) - ord("a"), TimerKind[kind])
            case ["crash", who]:
                for worker in who:
                    world.crash(ord(worker) - ord("a"))
            case [liar, "votes", step, name, "in", period]:
                value = BOTTOM if name == "nothing" else world.value(name)
                data = world.forge_vote(ord(liar) - ord("a"), int(period), step_of(step), value)
                world.hand(ord(liar) - ord("a"), data, receivers)
            case [liar, "gathers", step, name, "in", period]:
                value = BOTTOM if name == "nothing" else world.value(name)
                data = world.forge_bundle(int(period), step_of(step), value)
                world.hand(ord(liar) - ord("a"), data, receivers)
            case [liar, "ballots", count]:
                data = world.forge_ballot(ord(liar) - ord("a"), int(count))
                world.hand(ord(liar) - ord("a"), data, receivers)
            case [liar, "updates", value]:
                data = world.forge_update(ord(liar) - ord("a"), float(value))
                world.hand(ord(liar) - ord("a"), data, receivers)
            case [liar, "leads", name, "in", period]:
                data = world.forge_lead(ord(liar) - ord("a"), int(period), world.value(name))
                world.hand(ord(liar) - ord("a"), data, receivers)
            case ["state"]:
                for worker, player in world.players.items():
                    world.log.append(
                        f"{letter(worker)} round {player.round} period {player.period}"
                        f" phase {player.phase}"
                    )
            case _:
                raise AssertionError(f"no such command: {' '.join(words)}")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_says_what_it_said(path, request):
    golden.check(path, Stage().run, rewrite=request.config.getoption("--rewrite"))
