"""Write the inventory of features: verbs with flags, config keys, metrics, causes, formats, public names.

    python scripts/inventory.py            compare with tests/data/inventory.json; exit code 1 where it differs
    python scripts/inventory.py --write    write it anew

A rename or removal shows up as a difference; CHANGELOG lists every one. The file also keeps the branch coverage of
the test suite, as `make coverage` prints it: `python scripts/inventory.py --write --coverage 93.1`.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

import uptrend
from uptrend.bridge.importers.detect import READERS
from uptrend.cli.main import VERBS
from uptrend.config import Config, to_table
from uptrend.config.schema import Lora
from uptrend.config.tables import flatten
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.policy.known import KNOWN
from uptrend.records.metrics import sections
from uptrend.tasks.registry import BUILT_IN, find

ROOT = Path(__file__).parent.parent
FILE = ROOT / "tests" / "data" / "inventory.json"


def take() -> dict[str, Any]:
    """Collect the inventory from the installed package."""
    from uptrend.algo import ESTIMATORS, LOSSES
    from uptrend.doctor.probes import PROBES

    lora = {f"model.lora.{key}": None for key in vars(Lora())}
    return {
        "verbs": dict(sorted(_verbs())),
        "config": sorted({**flatten(to_table(Config())), **lora}.keys() - {"model.lora"}),
        "tasksets": {name: sorted(f.name for f in fields(find(name).Options)) for name in sorted(BUILT_IN)},
        "metrics": _metrics(),
        "causes": sorted(CATALOGUE),
        "probes": sorted(PROBES),
        "formats": sorted(reader.__name__.removeprefix("read_") for reader in READERS),
        "losses": sorted(LOSSES),
        "kl estimators": sorted(ESTIMATORS),
        "models": sorted(KNOWN),
        "public": sorted(uptrend.__all__),
    }


def _verbs() -> Iterator[tuple[str, list[str]]]:
    """Every command with its arguments and flags."""
    for name, (module, attribute, _) in VERBS.items():
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(name)(found)
            found = single
        yield from _commands(name, typer.main.get_command(found))


def _commands(name: str, command: Any) -> Iterator[tuple[str, list[str]]]:
    subcommands = getattr(command, "commands", None) or getattr(command, "list_commands", lambda _: [])(None)
    if not subcommands:
        yield name, sorted(flag for p in command.params for flag in (p.opts + p.secondary_opts) if flag != "--help")
        return
    context = typer.Context(command, resilient_parsing=True)
    for each in subcommands:
        yield from _commands(f"{name} {each}", command.get_command(context, each))


def _metrics() -> list[str]:
    return sorted(
        f"{'' if section.file == 'metrics.jsonl' else 'evals: '}`{metric.key}`"
        for section in sections()
        for metric in section.metrics
    )


def main() -> None:
    """Write the inventory, or compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tests/data/inventory.json")
    parser.add_argument("--coverage", type=float, help="branch coverage of the test suite, in percent")
    asked = parser.parse_args()
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    coverage = kept.get("coverage") if asked.coverage is None else asked.coverage
    now = take() | {"coverage": coverage}
    if asked.write:
        FILE.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    differs = [key for key in {**now, **kept} if now.get(key) != kept.get(key)]
    for key in differs:
        before, after = (set(map(str, x.get(key) or [])) for x in (kept, now))
        print(f"{key}: gone {sorted(before - after)}, new {sorted(after - before)}")
    sys.exit(bool(differs))


if __name__ == "__main__":
    main()
