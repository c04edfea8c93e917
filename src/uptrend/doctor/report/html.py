"""The report as one page that needs nothing else: no script, no font, no network."""

from collections.abc import Sequence
from html import escape

from uptrend.doctor.report.picture import picture
from uptrend.doctor.report.sections import HEADLINES, changes, decides, evidence, held_out, symptoms, title
from uptrend.doctor.report.shell import shell
from uptrend.records import Finding, Report

STYLE = """
:root { color-scheme: light dark; --line: #8884; --critical: #c62828; --warning: #b26a00; --note: #0277bd; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.1rem; font-weight: 600; overflow-wrap: anywhere; }
.trend { font-size: 1.6rem; font-weight: 700; margin: .2rem 0; }
.learning { color: #2e7d32; } .flat, .falling { color: var(--critical); } .too-short { color: var(--warning); }
article { border: 1px solid var(--line); border-left: 5px solid var(--note); border-radius: 6px; padding: .6rem 1rem;
  margin: 1rem 0; }
article.critical { border-left-color: var(--critical); } article.warning { border-left-color: var(--warning); }
h2 { font-size: 1.05rem; margin: .2rem 0; } h2 small { font-weight: 400; opacity: .7; }
ul { margin: .3rem 0; padding-left: 1.2rem; } code { font-size: .9em; overflow-wrap: anywhere; }
details { margin: .3rem 0; } summary { cursor: pointer; } .dim { opacity: .7; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
section + section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: .5rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; opacity: .7; }
td { border-top: 1px solid var(--line); padding: .2rem .4rem; vertical-align: top; overflow-wrap: anywhere; }
"""


def to_html(reports: Sequence[Report]) -> str:
    """A page with a section a run."""
    body = "\n".join(_report(report) for report in reports)
    names = ", ".join(report.name or report.source for report in reports)
    return shell(f"Uptrend doctor: {names}", STYLE, body)


def _report(report: Report) -> str:
    trend = report.trend
    return "\n".join(
        [
            f"<section><h1>{escape(title(report))}</h1>",
            f'<p class="trend {trend.kind}">{escape(HEADLINES[trend.kind])}</p>',
            f"<p>{escape(trend.sentence)} {escape(held_out(report))}</p>",
            picture(report.curve),
            _items([f"read: {note}" for note in report.notes], "dim"),
            *(_finding(place, finding, report.trainer) for place, finding in enumerate(report.findings, 1)),
            "" if report.findings else "<p>Nothing was found.</p>",
            _rest(report),
            "</section>",
        ]
    )


def _finding(place: int, finding: Finding, whose: str) -> str:
    fixes = [f"{trainer}: {line}" for trainer, line in changes(finding.fix, whose, only=True)]
    return "\n".join(
        [
            f'<article class="{finding.severity}" id="{escape(finding.id)}">',
            f"<h2>{place}. {escape(finding.id)} <small>{_sure(finding)}</small></h2>",
            f"<p>{escape(finding.summary)}</p>",
            _items(evidence(finding)),
            f"<p>Explains: {escape(symptoms(finding))}</p>" if finding.explains else "",
            f"<p><b>Fix.</b> {escape(finding.fix.sentence)}</p>" if finding.fix else "",
            _items(fixes, code=True),
            _more(finding, whose),
            "</article>",
        ]
    )


def _sure(finding: Finding) -> str:
    return f"{finding.severity}, {finding.confidence} confidence"


def _more(finding: Finding, whose: str) -> str:
    rivals = [f"{rival.id}: {rival.tells_apart}" for rival in finding.rivals]
    return (
        "<details><summary>What else it could be, and what decides</summary>"
        + _items(rivals)
        + f"<p>{escape(decides(finding.experiment, whose))}</p>"
        + f'<p class="dim">{escape(finding.page)}</p></details>'
    )


def _rest(report: Report) -> str:
    rows = "".join(f"<tr><td>{escape(c.id)}</td><td>{escape(c.needs)}</td></tr>" for c in report.cannot_tell)
    lacking = f"<details><summary>Cannot tell: {len(report.cannot_tell)}</summary><table>{rows}</table></details>"
    unknown = f'<p class="dim">Columns not known: {escape(", ".join(report.unknown))}</p>'
    return (lacking if report.cannot_tell else "") + (unknown if report.unknown else "")


def _items(items: Sequence[str], style: str = "", code: bool = False) -> str:
    if not items:
        return ""
    wrap = ("<code>", "</code>") if code else ("", "")
    listed = "".join(f"<li>{wrap[0]}{escape(item)}{wrap[1]}</li>" for item in items)
    return f'<ul class="{style}">{listed}</ul>' if style else f"<ul>{listed}</ul>"
