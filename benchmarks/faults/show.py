"""One case as a person sees it: what the probes said before training, and what the doctor says of
the run.
"""

import json
from pathlib import Path

from rich.console import Console

from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.report import print_report
from uptrend.records import Run, view_of


def show(folder: Path) -> None:
    """Print it."""
    told = json.loads((folder / "preflight.json").read_text())
    print(f"== {folder.name}: before training ({told['seconds']:g} s of probes)")
    for finding in (f for f in told["findings"] if not f.get("symptom_of")):
        print(f"{finding['severity']:8} {finding['id']}: {finding['summary']}")
        for symptom in finding["explains"]:
            print(f"         explains {symptom if isinstance(symptom, str) else symptom['id']}")
    if not told["findings"]:
        print("nothing found")
    print(f"== the run ({folder / 'run'})")
    print_report(diagnose(view_of(Run(folder / "run"))), Console(highlight=False))
