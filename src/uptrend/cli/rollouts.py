"""`uptrend rollouts`: play recorded rollouts again, write them as Markdown; and one rollout as a
person reads it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.cli.console import AsJson, RunArgument, make_app, open_run, print_json
from uptrend.config.load import nearest
from uptrend.policy.known import tokenizer_of
from uptrend.present.formatting import NO_VALUE, duration, markdown_table, number, plural, visible
from uptrend.present.terminal import columns, terminal
from uptrend.records import RecordError, Role, Run, rollouts_of
from uptrend.records.files import explain_disk_errors
from uptrend.records.schema import TOKEN_COLUMNS
from uptrend.records.table import RecordedRollout, RolloutGroup, RolloutTable, Row

app = make_app("Play recorded rollouts again; write them as Markdown.")
Decode = Callable[[Sequence[int]], str]
ROLE_COLORS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
TOKEN_COLORS = {Role.PROMPT: "cyan", Role.MODEL: "green", Role.TOOL: "yellow"}
IDS = 12
"""Token ids of a span that are printed where there is no tokenizer."""
LINES = 12
CHARACTERS = 1000
"""Size to which a terminal cuts a message that the model did not write."""
Heldout = Annotated[
    bool, typer.Option("--heldout", help="Rollouts of the evaluation after a step.")
]


@app.command("verify")
def verify_rollouts(
    run: RunArgument,
    rollout: Annotated[
        str, typer.Option(help="Rollout, group or step to play again: STEP/GROUP/INDEX.")
    ] = "",
    step: Annotated[
        int | None, typer.Option(min=0, help="Play all rollouts of this step again.")
    ] = None,
    heldout: Heldout = False,
    as_json: AsJson = False,
) -> None:
    """Play recorded rollouts again, without a model.

    \b
    uptrend rollouts verify quickstart --rollout 12/3/5
    uptrend rollouts verify quickstart --step 12 --json
    uptrend rollouts verify quickstart --step 20 --heldout

    Tasks are opened as the run did, with its options and seeds, and hear what its model said. Their
    answers and rewards are compared with the record; exit code 1 if something differs.
    """
    from uptrend.runner.rollouts import repeat_rollouts

    opened = open_run(run)
    if (step is None) == (not rollout) or (heldout and rollout):
        raise RecordError(
            "Name what to play again: --rollout STEP/GROUP/INDEX, or --step STEP (with --heldout or"
            " not)."
        )
    if heldout:
        recorded = rollouts_of(opened.eval_rollouts(step or 0))
    else:
        table, groups, place = find_rollouts(opened, rollout or str(step))
        chosen = (
            [n for group in groups for n in group.rollout_by_index.values()]
            if place is None
            else [place]
        )
        every = rollouts_of(table.table)
        recorded = [every[n] for n in sorted(chosen)]
    repeated = repeat_rollouts(opened, recorded, heldout)
    differing = [one for one in repeated if one.differences]
    if as_json:
        print_json(
            {
                "run": str(opened.path),
                "same": not differing,
                "rollouts": [
                    {
                        "step": one.recorded.step,
                        "group": one.recorded.group,
                        "index": one.recorded.index,
                        "turns": sum(m.role == "assistant" for m in one.again.messages),
                        "same": not one.differences,
                        "reward": None if one.again.reward is None else one.again.reward.total,
                        "differences": [asdict(difference) for difference in one.differences],
                    }
                    for one in repeated
                ],
            }
        )
    else:
        console = terminal()
        for one in differing:
            console.print(Text(f"{one.recorded.name} differs", "bold red"))
            for difference in one.differences[:1]:  # what follows the first one may follow from it
                for label, text in (("recorded", difference.recorded), ("now", difference.now)):
                    console.print(
                        Text.assemble(
                            (f"{difference.where}, {label}: ", "bold"), _cut(str(text), "--json")
                        )
                    )
        console.print(
            f"{len(repeated) - len(differing)} of {plural(len(repeated), 'rollout')} came out the"
            " same."
        )
    raise typer.Exit(1 if differing else 0)


@app.command("write")
def write_rollouts(
    run: RunArgument,
    to: Annotated[Path, typer.Option(help="Folder to make.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only this step. Default: all.")] = None,
    heldout: Heldout = False,
    as_json: AsJson = False,
) -> None:
    """Write rollouts as readable Markdown files.

    \b
    uptrend rollouts write quickstart --to readable
    uptrend rollouts write quickstart --to heldout --step 20 --heldout

    Each rollout becomes STEP-GROUP-INDEX.md; index.md and index.json list them all.
    """
    opened = open_run(run)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RecordError(
            f"{to} exists and is not an empty folder: nothing is overwritten. Choose another --to."
        )
    steps = [line["step"] for line in opened.eval_lines] if heldout else opened.rollout_steps
    if not steps:
        raise RecordError(f"{opened.path} has no rollouts{' of evaluations' if heldout else ''}.")
    index = list[Row]()
    stems = Counter[str]()
    with explain_disk_errors(to):
        for one in steps if step is None else [step]:
            table = RolloutTable(
                one, opened.eval_rollouts(one) if heldout else opened.rollouts(one)
            )
            to.mkdir(parents=True, exist_ok=True)
            for place in range(len(table)):
                rollout = table.rollout(place)
                index.append(_index_line(rollout, stems))
                (to / index[-1]["file"]).write_text("".join(_markdown(rollout)), encoding="utf-8")
        headings = ("task", "reward", "ended", "turns", "commands", "seconds")
        cells = [
            (f"[{facts['rollout']}]({facts['file']})", *(_cell(facts, key) for key in headings))
            for facts in index
        ]
        title = f"# Rollouts of {opened.name}\n\n"
        (to / "index.md").write_text(
            title + markdown_table(("rollout", *headings), cells) + "\n", encoding="utf-8"
        )
        (to / "index.json").write_text(
            json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    if as_json:
        print_json({"folder": str(to), "rollouts": len(index)})
    else:
        typer.echo(f"Wrote {plural(len(index), 'rollout')}, index.md and index.json to {to}")


def find_rollouts(run: Run, named: str) -> tuple[RolloutTable, list[RolloutGroup], int | None]:
    """Return a step's rollouts, and the groups that STEP or STEP/GROUP names; for STEP/GROUP/INDEX
    also its place.
    """
    step, _, rest = named.partition("/")
    if not step.isdigit():
        raise RecordError(
            f"--rollout {named}: it should be STEP, STEP/GROUP or STEP/GROUP/INDEX, such as 12/3/5."
        )
    table = RolloutTable(int(step), run.rollouts(int(step)))
    by_name = {str(group.number): group for group in table.groups} | {
        group.name: group for group in table.groups
    }
    # Imported runs name groups freely, also with slashes.
    match = None if rest in by_name else re.fullmatch(r"(.+)/(\d+)", rest)
    name, index = match.groups() if match else (rest, None)
    if rest and name not in by_name:
        numbers = [group.number for group in table.groups] or [0]
        there = (
            nearest(name, by_name)
            or f" It has {len(table.groups)}: {min(numbers)} to {max(numbers)}."
        )
        raise RecordError(f"Step {step} of {run.path} has no group {name}.{there}")
    if index is None:
        return table, [by_name[name]] if rest else table.groups, None
    places = by_name[name].rollout_by_index
    if int(index) not in places:
        its = f"Its rollouts are {min(places)} to {max(places)}."
        raise RecordError(
            f"Step {step} of {run.path} has no rollout {index} in group {name}. {its}"
        )
    return table, [by_name[name]], places[int(index)]


def _index_line(rollout: RecordedRollout, stems: Counter[str]) -> Row:
    """Return a rollout's line of the index; `stems` counts file names, as an evaluation may play a
    task often.
    """
    facts = rollout.facts
    group = str(facts["group"])
    step = f"{facts['step']:06d}"
    stem = f"{group if step in group else f'{step}-{group}'}-{facts['index'] or 0:02d}"
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)  # imported runs name groups freely
    stems[stem] += 1
    return {
        "rollout": rollout.name,
        "file": f"{stem}{f'-{stems[stem]}' if stems[stem] > 1 else ''}.md",
        **{
            key: facts[key]
            for key in ("task", "family", "reward", "correct", "ended", "error", "seconds")
        },
        "turns": len(rollout.turns),
        "commands": len(facts.get("commands") or ()),
    }


def _cell(facts: Row, key: str) -> str:
    if key == "task":
        return f"{facts['family']} {facts['task']}"
    return str(facts[key]) if key == "ended" else number(facts[key])


def _markdown(rollout: RecordedRollout) -> Iterator[str]:
    error = rollout.facts["error"]
    failed = [f"error: {error}"] if error else []
    yield f"# {rollout.name}\n\n{_bullets([*_headline(rollout.facts), *failed])}"
    for message in rollout.prompt:
        yield f"\n## {message['role']}\n{_fenced(_whole(message))}"
    for at, turn in enumerate(rollout.turns):
        yield f"\n## Turn {at}\n{_fenced(_whole(turn.message))}"
        for reply in turn.replies:
            yield f"\n{reply['role']}:\n{_fenced(_whole(reply))}"
        for command in turn.commands:
            unseen = _unseen(command, turn.message)
            yield f"{_fenced(unseen) if unseen else ''}\n{_ran(command)}\n"
    yield f"\n## Reward\n\n{_bullets(_reward(rollout.facts))}"


def _bullets(facts: Sequence[str]) -> str:
    return "".join(f"- {visible(' '.join(fact.split()))}\n" for fact in facts)


def _fenced(text: str) -> str:
    """Return a block of Markdown that ends nowhere in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"\n{fence}text\n{visible(text)}\n{fence}\n"


def print_rollout(
    console: Console, rollout: RecordedRollout, decode: Decode | None, full: bool
) -> None:
    """Print a rollout: prompt, turns with their commands, reward, tokens; what the model read is
    cut unless `full`.
    """
    facts = rollout.facts
    console.print(Text.assemble((rollout.name, "bold"), "  ", "  ".join(_headline(facts))))
    if facts["error"]:
        console.print(Text(f"error: {visible(facts['error'])}", "red"))
    if not facts.get("commands"):
        console.print("  ".join(_reward(facts)))
    for message in rollout.prompt:
        _print_message(console, message, full)
    for at, turn in enumerate(rollout.turns):
        _print_message(
            console, turn.message, full=True, who=f"turn {at}, " if len(rollout.turns) > 1 else ""
        )
        for reply in turn.replies:
            _print_message(console, reply, full)
        for command in turn.commands:
            if unseen := _unseen(command, turn.message):
                console.print(Text(visible(unseen)) if full else _cut(unseen), style="dim")
            console.print(Text(_ran(command), "dim"))
    if facts.get("commands"):
        console.print(Text("\n" + "  ".join(_reward(facts)), "bold"))
        if not full:
            return
    for sequence in rollout.sequences:
        console.print()
        console.print(_spans_table(sequence, decode))
    if decode is None:
        console.print(
            "Tokens are ids: neither the run's checkpoints nor its model here have a tokenizer.",
            style="dim",
        )


def _print_message(console: Console, message: Row, full: bool, who: str = "") -> None:
    role = (f"\n{who}{message['role']}: ", f"bold {ROLE_COLORS.get(message['role'], '')}")
    content = message["content"] or ""
    text = Text.assemble(role, visible(content) if full else _cut(content))
    text.append(f"\ncalls {visible(message['calls'])}" if message["calls"] else "", "yellow")
    console.print(
        text.append(f"\n{visible(message['problem'])}" if message["problem"] else "", "red")
    )


def _cut(text: str, option: str = "--full") -> Text:
    kept = "\n".join(text[:CHARACTERS].split("\n")[:LINES])
    rest = len(text) - len(kept)
    more = f"\n… {plural(rest, 'more character')}: {option} shows all" if rest > 0 else ""
    return Text(visible(kept)).append(more, "dim")


def _headline(facts: Row) -> list[str]:
    """Return facts about a rollout in words."""
    words = [f"task {facts['task']}", f"family {facts['family']}", f"ended {facts['ended']}"]
    if facts["seconds"] is not None:
        words.append(duration(facts["seconds"]))
    if facts.get("commands"):
        words.append(plural(len(facts["commands"]), "command"))
    if facts.get("sandbox_failures"):
        words.append(plural(facts["sandbox_failures"], "sandbox failure"))
    if facts["kept"] is False:
        words.append("not learned from: its group was dead and another was sampled")
    return words


def _reward(facts: Row) -> list[str]:
    """Return the reward with its parts, and the gold answer."""
    reward = ["no reward"]
    if facts["reward"] is not None:
        mark = {True: " correct", False: " wrong", None: ""}[facts["correct"]]
        bounds = f"{number(facts['reward_low'])} to {number(facts['reward_high'])}"
        reward = [f"reward {number(facts['reward'])}{mark} of {bounds}"]
        for part in facts["parts"] or ():
            weight = f" × {number(part['weight'])}" if part["weight"] != 1 else ""
            reward.append(f"{part['name']} {number(part['value'])}{weight}")
    return [*reward, *([f"gold answer {facts['answer']!r}"] if facts["answer"] else [])]


def _unseen(command: Row, message: Row) -> str:
    """Return a command that can't be read in the message which gave it, and output that answers no
    message.
    """
    given = (
        ""
        if command["command"].strip() in (message["content"] or "")
        else f"$ {command['command']}"
    )
    return "\n".join(filter(None, (given, command.get("said"))))


def _ran(command: Row) -> str:
    """Return how a command ended."""
    ends = [duration(command["seconds"]), f"exit {command['code']}"]
    ends += [f"stopped by {command['stopped']}"] if command["stopped"] else []
    ends += [f"score {number(command['score'])}"] if command["score"] is not None else []
    ends += ["error"] if command["error"] else []
    return ", ".join(ends)


def _whole(message: Row) -> str:
    return "\n".join(
        str(text)
        for text in (message["content"] or "", message["calls"], message["problem"])
        if text
    )


def decoder_of(run: Run) -> Decode | None:
    """Return the decoder of the run's tokens; None where there is no tokenizer."""
    tokenizer = tokenizer_of(run)
    return tokenizer and (lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))


def _spans_table(sequence: Row, decode: Decode | None) -> Table:
    """Make one line per span of tokens with the same turn, role, trained or not, attended or not,
    and advantage.
    """
    tokens = {name: sequence[name] or [None] * len(sequence["ids"] or ()) for name in TOKEN_COLUMNS}
    trained = [None if weight is None else weight != 0 for weight in tokens["weights"]]
    kinds = zip(
        tokens["turns"],
        tokens["roles"],
        trained,
        tokens["attended"],
        tokens["advantages"],
        strict=True,
    )
    marks: dict[bool | None, str | Text] = {None: NO_VALUE, True: "yes", False: Text("no", "dim")}
    sights = {**marks, False: Text("hidden", "red")}
    rows: list[list[str | Text]] = []
    for (turn, role, is_trained, attended, advantage), span in groupby(
        enumerate(kinds), key=lambda pair: pair[1]
    ):
        places = [place for place, _ in span]
        ids = [tokens["ids"][place] for place in places]
        means = []
        for name in ("sampler", "learner"):
            known = [tokens[name][place] for place in places if tokens[name][place] is not None]
            means.append(number(sum(known) / len(known) if known else None))
        text = (
            decode(ids)
            if decode
            else " ".join(map(str, ids[:IDS])) + (" …" if len(ids) > IDS else "")
        )
        color = TOKEN_COLORS.get(role, "")
        who = Text(NO_VALUE if role is None else Role(role).name.lower(), color)
        figures = (marks[is_trained], sights[attended], number(advantage), *means)
        rows.append([number(turn), who, str(len(places)), *figures, Text(visible(text), color)])
    headings = (
        "turn",
        "role",
        "tokens",
        "trained",
        "attended",
        "advantage",
        "sampler",
        "learner",
        "text",
    )
    return columns(*headings, rows=rows, wraps="text")
