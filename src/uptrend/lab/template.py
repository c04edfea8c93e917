"""What a new lab's pages say before anybody has written on them."""

README = """\
# {name}

{problem}

The whole question: [00-problem-statement.md](00-problem-statement.md). \
Every experiment: [01-experiments-log.md](01-experiments-log.md).

## Status

⏳ pending, 🧪 testing, ✅ validated, ❌ invalidated, 🤔 inconclusive.

## Roadmap

## Protocol

1. **Write it down first.** `uptrend lab new` makes a file under `hypotheses/`: the claim, the arms, the metric, the
   smallest effect that matters, and what would prove it wrong. All of it is hashed before the first step; a change
   afterwards voids the verdict.
2. **Change one thing.** An arm differs from the control in what the claim is about, and in nothing else.
3. **Run it.** `uptrend lab run hNN` runs every arm with the same seeds on the same held-out tasks. One seed says
   something about two models, never about a setting.
4. **Let the machine judge.** Validated, invalidated or inconclusive, with the seeds that are still needed.
5. **Keep the negatives.** An invalidated hypothesis is a result; it stays in the table and in the log.

Text between `<!-- uptrend:… -->` marks is the machine's, as are `status` and `confidence` of a hypothesis.
The rest is yours: it is never rewritten.
"""

PROBLEM = """\
# Problem statement

## Overview

{problem}

## Setup

*Model, tasks, reward, trainer, machine.*

## Current behavior

### What works

### The problem

## Baseline

*What the model scores before training, on the same held-out tasks.*

## What was tried

## Key observations

## Success criteria

1. Held-out accuracy ends above the baseline, over several seeds.
2. The improvement is there again when the experiment is repeated.
3. We can say why the fix works.

## Next steps

*Test one hypothesis at a time, the likeliest first: see the README's roadmap.*
"""

LOG = """\
# Experiments log

Every experiment, newest last: what was run, what came out, and the verdict first.
"""

NO_PROBLEM = "*What does not happen that should? Say it with its figures.*"


def pages(name: str, problem: str) -> dict[str, str]:
    """A new lab's pages by file name."""
    return {
        "README.md": readme(name, problem),
        "00-problem-statement.md": PROBLEM.format(problem=problem.strip() or NO_PROBLEM),
        "01-experiments-log.md": LOG,
    }


def readme(name: str, problem: str) -> str:
    """The first page."""
    return README.format(name=name, problem=problem.strip() or NO_PROBLEM)
