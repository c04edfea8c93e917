"""A probe: one function that takes the bench and yields its figure, then what it found.

    @probe("leak", finds=["data.leak"])
    def leak(bench: Bench) -> Answer:
        '''Compare held-out tasks with all training tasks.'''
        yield "3 of 50 held-out tasks occur in training"
        yield bench.found("data.leak", CRITICAL, "Held-out tasks are trained on.", "for example '2 + 2'", 0.06)

A new probe is such a function in the module of its topic; `PROBES` collects them from there.
"""  # noqa: E501 (a table)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from uptrend.doctor.probes.bench import Bench
from uptrend.records import Basis, Finding, Role, Severity

SIGNAL = Basis.SIGNAL
SUSPICION = Basis.SUSPICION
CRITICAL = Severity.CRITICAL
WARNING = Severity.WARNING
NOTE = Severity.NOTE


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one kind, as text, for a printout in colors."""

    text: str
    role: Role
    trained: bool
    attended: bool


Printout = tuple[Piece, ...]
# the figure, in one or more parts; findings; rollouts to show
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
    skipped: str = ""  # reason why the probe does not apply; empty where it does
    error: str = ""  # the exception that ended the probe, in one line; empty where it went through
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True where the probe went through and found nothing worse than a note."""
        return not self.error and all(finding.severity == "note" for finding in self.findings)


# A condition without which several probes have nothing to look at, and the reason to give.
Need = tuple[Callable[[Bench], object], str]
SAMPLED: Need = (lambda bench: any(r.sampled_tokens for r in bench.rollouts), "nothing was sampled")
SCORED: Need = (
    lambda bench: any(r.reward is not None for r in bench.played),
    "no rollout could be scored",
)
TOOLS: Need = (lambda bench: bench.tools, "no tools")
PENALTY: Need = (lambda bench: bench.config.learning.kl.beta, "no KL penalty: learning.kl.beta = 0")


@dataclass(frozen=True)
class Probe:
    """One question to the bench."""

    name: str
    about: str  # first line of the function's docstring
    ask: Callable[[Bench], Answer]
    finds: frozenset[str]  # ids of the causes that it can report
    need: Need | None
    cheap: bool  # `uptrend train` asks it before the first step
    full: bool  # asked only with --full

    def run(self, bench: Bench) -> Result:
        """Ask, unless something that the probe needs is missing."""
        try:
            if self.need is not None:
                require(self.need[0](bench), self.need[1])
            told = list(self.ask(bench))
        except NotApplicableError as error:
            return Result(self.name, skipped=str(error))
        except (
            Exception
        ) as error:  # one question that can't be answered must not cost the answers to the others
            said = " ".join(str(error).split())[:300]
            return Result(
                self.name, error=f"{type(error).__name__}: {said}" if said else type(error).__name__
            )
        findings = tuple(part for part in told if isinstance(part, Finding))
        assert self.finds.issuperset(f.id for f in findings), (
            f"{self.name} reports a cause that it does not declare"
        )
        figure = "".join(part for part in told if isinstance(part, str))
        return Result(
            self.name, figure, findings, tuple(part for part in told if isinstance(part, tuple))
        )


def probe(
    name: str,
    *,
    finds: Sequence[str],
    need: Need | None = None,
    cheap: bool = True,
    full: bool = False,
) -> Callable[[Callable[[Bench], Answer]], Probe]:
    """Declare a function as a probe; the docstring's first line says what it does."""
    return lambda ask: Probe(
        name, (ask.__doc__ or "").partition("\n")[0], ask, frozenset(finds), need, cheap, full
    )
