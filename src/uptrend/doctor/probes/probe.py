"""A probe: one function that takes the bench and yields its figure, then its findings.

    @probe("leak", finds=["data.leak"])
    def leak(bench: Bench) -> Answer:
        '''Compare held-out tasks with all training tasks.'''
        yield "3 of 50 held-out tasks occur in training"
        summary = "Held-out tasks are trained on."
        yield bench.finding("data.leak", CRITICAL, summary, "for example '2 + 2'", 0.06)

A new probe is such a function in the module of its topic; `PROBES` collects them from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from uptrend.doctor.probes.bench import Bench
from uptrend.records import Finding, Role
from uptrend.tasks.functions import without_remote

# An exception may quote a whole prompt; this much of it tells what failed.
MAX_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one kind, as text, for a printout in colors."""

    text: str
    role: Role
    trained: bool
    attended: bool


Printout = tuple[Piece, ...]
# A probe yields its figure, in one or more parts; its findings; and rollouts to print.
Answer = Iterator[str | Finding | Printout]


class NotApplicableError(Exception):
    """Raised by a probe that has nothing to look at."""


def require(condition: object, reason: str) -> None:
    """Skip the probe unless the condition holds."""
    if not condition:
        raise NotApplicableError(reason)


@dataclass(frozen=True)
class Result:
    """Outcome of one probe."""

    name: str
    figure: str = ""  # one line with the number that decides
    findings: tuple[Finding, ...] = ()
    printout: tuple[Printout, ...] = ()
    skipped: str = ""  # reason why the probe does not apply; empty if it ran
    error: str = ""  # the exception that ended the probe, in one line; empty if none did
    seconds: float = 0.0
    source: str = ""  # label of the one of several sources that was probed

    @property
    def ok(self) -> bool:
        """True if the probe ran to its end and reports nothing worse than a note."""
        return not self.error and all(finding.severity == "note" for finding in self.findings)


@dataclass(frozen=True)
class Need:
    """Condition without which a probe has nothing to look at."""

    is_met: Callable[[Bench], object]
    reason: str  # shown where the condition does not hold


NEEDS_SAMPLES = Need(
    lambda bench: any(rollout.sampled_tokens for rollout in bench.rollouts), "nothing was sampled"
)
NEEDS_SCORES = Need(
    lambda bench: any(rollout.reward is not None for rollout in bench.played),
    "no rollout could be scored",
)
NEEDS_TOOLS = Need(lambda bench: bench.tools, "no tools")
NEEDS_KL_PENALTY = Need(
    lambda bench: bench.config.learning.kl.beta, "no KL penalty: learning.kl.beta = 0"
)


@dataclass(frozen=True)
class Probe:
    """One controlled experiment on the bench."""

    name: str
    about: str  # first line of the function's docstring
    function: Callable[[Bench], Answer]
    finds: frozenset[str]  # ids of the causes that it can report
    need: Need | None
    cheap: bool  # `uptrend train` runs it before the first step
    full: bool  # runs only with --full
    by_source: bool  # about tasks and rewards: each of several sources is probed alone

    def run(self, bench: Bench) -> Result:
        """Run the experiment; return a skipped result if something that it needs is missing."""
        try:
            # A probe may play hundreds of rollouts that nobody trains on, and so may what it needs.
            with without_remote():
                if self.need is not None:
                    require(self.need.is_met(bench), self.need.reason)
                parts = list(self.function(bench))
        except NotApplicableError as error:
            return Result(self.name, skipped=str(error))
        except Exception as error:
            # A probe that fails must not cost the results of the others.
            return Result(self.name, error=_in_one_line(error))

        figure = ""
        findings = list[Finding]()
        printouts = list[Printout]()
        for part in parts:
            if isinstance(part, str):
                figure += part
            elif isinstance(part, Finding):
                undeclared = f"{self.name} reports {part.id}, which it does not declare"
                assert part.id in self.finds, undeclared
                findings.append(part)
            else:
                printouts.append(part)
        return Result(self.name, figure, tuple(findings), tuple(printouts))


def _in_one_line(error: Exception) -> str:
    """Return an exception's type, and its message in one short line if it has one."""
    type_name = type(error).__name__
    message = " ".join(str(error).split())
    if not message:
        return type_name
    return f"{type_name}: {message[:MAX_ERROR_CHARACTERS]}"


def probe(
    name: str,
    *,
    finds: Sequence[str],
    need: Need | None = None,
    cheap: bool = True,
    full: bool = False,
    by_source: bool = False,
) -> Callable[[Callable[[Bench], Answer]], Probe]:
    """Declare a function as a probe; the docstring's first line says what it does."""

    def declare(function: Callable[[Bench], Answer]) -> Probe:
        about = (function.__doc__ or "").partition("\n")[0]
        return Probe(name, about, function, frozenset(finds), need, cheap, full, by_source)

    return declare
