"""The taskset `mlgym`: problems in MLGym's format, those that come with Uptrend or those of a
checkout, and their examples.
"""

import asyncio
import hashlib
import os
import random
import re
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from uptrend.records import ConfigError, Message, Task, TasksetError
from uptrend.sandbox import Bounds, find_sandbox
from uptrend.tasks.taskset import Script, add_note
from uptrend.tasksets.mlgym.play import COMMAND_TOOL, Arena, DenseParts, ResearchPlay, Scheme
from uptrend.tasksets.mlgym.problem import Problem, load_problem, names
from uptrend.tasksets.mlgym.scoring import SubmissionScorer

# Seeds below it are to train on; those from it on are held out.
FIRST_HELDOUT_SEED = 1_000_000
# Bytes of an evaluator's output that its score is looked for in.
SCORER_OUTPUT_BYTES = 1 << 16
# A line between two turns of a scripted player's file.
TURN_SEPARATOR = "\n%%\n"

SYSTEM_PROMPT = """You solve a machine-learning task in a shell. Each turn you give one command and read its output.
open <path> [<line>], goto <line>, scroll_down, scroll_up, create <path>: show and make files
search_dir <term> [<folder>], search_file <term> [<file>], find_file <name> [<folder>]: search
edit <first>:<last>, new lines, end_of_edit: replace these lines of the open file
insert <line>, new lines, end_of_insert: add lines after that one
validate: score the submission so far; submit: end with it
Anything else is bash. A command takes at most {seconds:g} seconds; there is no network."""  # noqa: E501 (words that models were trained with)


@dataclass(frozen=True, kw_only=True)
class MlGymOptions:
    """Options of `mlgym`."""

    problems: tuple[str, ...] = ()
    """MLGym tasks by name (the YAML file's, without its ending); empty for all."""
    folder: str = ""
    """A MLGym checkout; empty for the four tasks that come with Uptrend."""
    examples: Annotated[int, Ge(0)] = 0
    """Examples per task to train on; 0 for as many as tasks.train asks for."""
    scheme: Scheme = "final"
    """What the reward pays for: final, validation-change, validate-required, code-quality or
    graded.
    """
    dense: DenseParts = field(default_factory=DenseParts)
    """Weights of parts beside the scheme's own reward."""
    keep: Literal["best", "last"] = "best"
    """Submission that counts: the last, or the one that validated best."""
    sandbox: Literal["auto", "bubblewrap", "podman", "docker", "process"] = "auto"
    """Back end: auto, bubblewrap, podman, docker, or process (which is no sandbox)."""
    turns: Annotated[int, Ge(0)] = 0
    """Turns after which the work is submitted; replies say how many are left. 0 for
    sampling.max_turns, which replies do not mention.
    """
    seconds: float = 30.0
    """Seconds that one command may take, if the task's training_timeout is not shorter."""
    memory: int = 1024
    """Megabytes of memory of one workspace."""
    output: Annotated[int, Ge(200)] = 2000
    """Bytes of a command's output in the reply to the agent."""
    window: Annotated[int, Ge(10)] = 100
    """Lines of a file that the editor shows."""
    workers: Annotated[int, Ge(0)] = 0
    """Commands that run at once; 0 for one per core."""
    tool_calls: bool = False
    """Let the model give commands as tool calls; otherwise they are text, in a ``` block or
    bare.
    """
    trust: bool = False
    """Score submissions that are models, which run beside the evaluator and could forge their
    score.
    """

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.memory < 64:
            raise ConfigError(
                "seconds should be above 0, and memory at least 64 megabytes.", is_of_field=True
            )


class MlGym:
    """Machine-learning tasks by one command per turn in a sandbox, scored from outside; MLGym's
    format.
    """

    name: ClassVar[str] = "mlgym"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = MlGymOptions
    # Plays of a kind in a probe: each takes a second or more.
    MAX_PROBE_PLAYS: ClassVar[int] = 2
    # Tasks that `validate` plays: with all players, each takes 10 to 20 seconds on two cores.
    MAX_VALIDATED_TASKS: ClassVar[int] = 4
    SAMPLING_LIMITS: ClassVar[dict[str, int]] = {
        "max_tokens": 256,
        "max_turns": 10,
        "context": 4096,
    }
    chat: bool | None = True

    def __init__(self, options: MlGymOptions, seed: int) -> None:
        self.options = options
        self.seed = seed
        self.notes: list[str] = []
        self.problems: dict[str, Problem] = {}
        for name in options.problems or names(options.folder):
            problem = load_problem(name, options.folder)
            self.problems[problem.name] = problem
        for problem in self.problems.values():
            for note in problem.notes:
                add_note(self.notes, note)
            if problem.kind == "model" and not options.trust:
                raise TasksetError(
                    f"{problem.name} submits a model, which runs beside its evaluator and could"
                    " forge its score. Set trust = true if you accept that, or leave the task out."
                )
        # Without a generator, all examples are one task.
        self.repeated = frozenset(
            name for name, problem in self.problems.items() if problem.generator is None
        )
        if self.repeated:
            repeated = ", ".join(sorted(self.repeated))
            add_note(
                self.notes,
                f"examples of {repeated} repeat one task, to train on and held out alike",
            )
        self._arenas: dict[str, Arena] = {}
        # Shared by all problems.
        self._slots = asyncio.Semaphore(options.workers or os.cpu_count() or 1)

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        if self.options.examples:
            count = min(count, self.options.examples * len(self.problems))
        tasks = self._examples(count + len(exclude), heldout=False)
        return [task for task in tasks if task.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        return self._examples(count, heldout=True)

    def _examples(self, count: int, heldout: bool) -> list[Task]:
        """Return `count` examples, evenly over the problems and shuffled; no seed occurs twice."""
        rng = random.Random(f"{self.name}-{self.seed}-{heldout}")
        n_seeds = -(-count // len(self.problems))  # rounded up
        first_seed = FIRST_HELDOUT_SEED if heldout else 0
        tasks = []
        for seed in rng.sample(range(FIRST_HELDOUT_SEED), n_seeds):
            for problem in self.problems.values():
                tasks.append(self._task(problem, first_seed + seed, heldout))
        tasks = tasks[:count]
        rng.shuffle(tasks)
        return tasks

    def _task(self, problem: Problem, seed: int, heldout: bool) -> Task:
        seconds = min(self.options.seconds, problem.timeout)
        if problem.generator:
            data_set = f"\n\nData set: {problem.name}-{seed}"
            task_id = ""  # the messages' own
        else:
            # All examples have the same messages, so they need ids of their own.
            data_set = ""
            task_id = hashlib.sha256(f"{problem.name}{seed}".encode()).hexdigest()[:16]
        messages = (
            Message("system", SYSTEM_PROMPT.format(seconds=seconds)),
            Message("user", f"{problem.title}\n{problem.description}{data_set}\nbash-$"),
        )
        data = {"task": problem.name, "seed": seed, "heldout": heldout}
        return Task(messages, "", problem.name, data=data, id=task_id)

    def check_machine(self) -> None:
        """Raise where the sandbox does not work here."""
        find_sandbox(self.options.sandbox)

    def open(self, task: Task, seed: int) -> ResearchPlay:  # noqa: ARG002 (nothing is left to chance)
        """Begin a rollout; its sandbox is opened by its first command."""
        options = self.options
        return ResearchPlay(
            task,
            self._arena(task.family),
            scheme=options.scheme,
            dense=options.dense,
            keep=options.keep,
            window=options.window,
            turn_limit=options.turns,
            tools=(COMMAND_TOOL,) if options.tool_calls else (),
        )

    def _arena(self, name: str) -> Arena:
        if name not in self._arenas:
            options = self.options
            problem = self.problems[name]
            sandbox = find_sandbox(options.sandbox)
            bounds = Bounds(
                seconds=options.seconds, memory=options.memory << 20, output=options.output
            )
            scorer_bounds = replace(bounds, seconds=problem.timeout, output=SCORER_OUTPUT_BYTES)
            scorer = SubmissionScorer(problem, sandbox, scorer_bounds, options.trust)
            self._arenas[name] = Arena(problem, sandbox, scorer, bounds, self._slots)
        return self._arenas[name]

    def players(self, task: Task, kind: str) -> "list[Player]":
        """Return the scripted players of a kind: expert, weak or cheat."""
        folder = self.problems[task.family].players
        if folder is None:
            return []
        return [player for player in read_players(folder) if player.kind == kind]

    def gold(self, task: Task) -> Script:
        """Return the expert, which reaches par."""
        for player in self.players(task, "expert"):
            return player.play(task.data["seed"])
        raise TasksetError(f"{task.family} has no scripted expert.")

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Yield weaker players."""
        return (player.play(task.data["seed"]) for player in self.players(task, "weak"))

    def cheaters(self, task: Task) -> Iterable[Script]:
        """Yield players that aim at the score instead of the task."""
        return (player.play(task.data["seed"]) for player in self.players(task, "cheat"))

    def demonstrations(self, task: Task, count: int) -> list[Callable[[], Script]]:
        """Return scripts of mixed quality to imitate, drawn by the example: mostly weak, now and
        then the expert.
        """
        seed = task.data["seed"]
        pool = [*self.players(task, "weak"), *self.players(task, "expert")]
        players = random.Random(seed).choices(pool, k=count)
        return [partial(player.play, seed + n) for n, player in enumerate(players)]

    def proof(self) -> "MlGym":
        """Return the same tasks under a reward whose maximum the expert reaches."""
        return self._with(scheme="final", dense=DenseParts())

    def variants(self) -> "dict[str, Callable[[], MlGym]]":
        """Return a maker of the same tasks: under `graded`, for one, weaker players reach the
        maximum too.
        """
        return {self.options.scheme: self._with}

    def _with(self, **changes: Any) -> "MlGym":
        other = copy(self)
        other.options = replace(self.options, **changes)
        other._arenas = {}
        return other


# Scripted players: text files with one command per turn.
#
# A file is named KIND-NAME.txt, with KIND one of expert, weak and cheat; a line `%%` separates its
# turns. `{{a|b|c}}` stands for one of the choices, drawn by the example's seed: the same one
# wherever a file repeats the list.

PLAYER_KINDS = ("expert", "weak", "cheat")
CHOICE_PATTERN = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


@dataclass(frozen=True)
class Player:
    """A scripted player."""

    kind: str  # expert, weak or cheat
    name: str
    text: str

    def turns(self, seed: int) -> list[str]:
        """Return its commands for an example."""
        rng = random.Random(f"{self.name}-{seed}")
        choices: dict[str, str] = {}

        def choose(match: re.Match[str]) -> str:
            # Drawn even if it is not used: the draws are part of the players' known results.
            choice = rng.choice(match[1].split("|"))
            return choices.setdefault(match[1], choice)

        text = CHOICE_PATTERN.sub(choose, self.text)
        return [turn.strip("\n") for turn in text.split(TURN_SEPARATOR)]

    def play(self, seed: int) -> Script:
        """Yield one command after the other, whatever the replies."""
        for turn in self.turns(seed):
            yield Message("assistant", turn)


@cache
def read_players(folder: Path) -> tuple[Player, ...]:
    """Read a problem's players, sorted by name."""
    players = []
    for path in sorted(folder.glob("*.txt")):
        if not path.is_file():
            continue
        kind, dash, name = path.stem.partition("-")
        if kind not in PLAYER_KINDS or not dash:
            raise TasksetError(
                f"{path}: a player's file is named expert-, weak- or cheat-NAME.txt."
            )
        players.append(Player(kind, name, path.read_text(encoding="utf-8").strip("\n")))
    return tuple(players)
