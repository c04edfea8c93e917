"""The whole lab as one page that needs nothing else: no script, no font, no network, no run directories."""

from collections.abc import Sequence
from html import escape

from uptrend.lab.journal.article import article, chip, explains
from uptrend.lab.journal.chapter import Chapter, chapters
from uptrend.lab.journal.ledger import ledger
from uptrend.lab.journal.log import IMPORTED, Logged, pieces
from uptrend.lab.journal.prose import opening, plain_title, to_html, without_title
from uptrend.lab.journal.style import STYLE, shell
from uptrend.lab.journal.tables import METHODS
from uptrend.lab.notebook import PROBLEM, README, Notebook
from uptrend.lab.order import in_order
from uptrend.lab.overview import OPEN, PHASES
from uptrend.records import Status

DECIDED = (Status.VALIDATED, Status.INVALIDATED, Status.INCONCLUSIVE, Status.TESTING, Status.PENDING)


def page(notebook: Notebook) -> str:
    """The lab's question, what is known, what is to be tested, every hypothesis, and the log."""
    told, logged = chapters(notebook), pieces(notebook.log)
    title = plain_title(notebook.text(README)) or notebook.folder.absolute().name
    body = [
        _header(title, told),
        _question(notebook.text(PROBLEM)),
        ledger(told),
        _roadmap(told),
        '<section><h2 id="hypotheses">Hypotheses</h2>' if told else "",
        f'<p class="legend-line">{METHODS}</p>' if any(chapter.verdict for chapter in told) else "",
        *(article(chapter) for chapter in told),
        "</section>" if told else "",
        _log(logged),
        _imported(notebook, logged),
        "<footer>Made by <code>uptrend lab report --html</code> from the lab's own files. Seeds are the unit of "
        "inference; intervals are over seeds, paired between arms. Effects are as measured: arm less control.</footer>",
    ]
    return shell(f"{title}: lab journal", STYLE, "\n".join(part for part in body if part))


def _header(title: str, told: Sequence[Chapter]) -> str:
    counts = {status: sum(chapter.h.status is status for chapter in told) for status in DECIDED}
    runs = len({run.folder for chapter in told for run in chapter.runs if run.folder})
    dates = sorted(chapter.entry.date for chapter in told if chapter.entry)
    items = [f'<li class="{status}"><b>{count}</b>{status}</li>' for status, count in counts.items() if count]
    items += [f'<li><b>{runs}</b><span class="soft">runs</span></li>'] if runs else []
    last = f" · last verdict {escape(dates[-1].partition('T')[0])}" if dates else ""
    return (
        f'<header><p class="kicker">Lab journal{last}</p><h1>{escape(title)}</h1>'
        f'<ul class="tally">{"".join(items)}</ul></header>'
    )


def _question(text: str) -> str:
    if not text.strip():
        return ""
    first, rest = opening(without_title(text))
    more = f"<details><summary>The whole problem statement</summary>{to_html(rest)}</details>" if rest else ""
    return f'<section><h2 id="question">The question</h2><div class="lede">{to_html(first)}</div>{more}</section>'


def _roadmap(told: Sequence[Chapter]) -> str:
    """What is still open, by priority and in the order in which it can be tested."""
    is_open = [chapter.h for chapter in told if chapter.h.status in OPEN]
    parts = list[str]()
    for priority, phase in PHASES.items():
        of_phase = in_order([h for h in is_open if h.priority is priority])
        steps = "".join(
            f'<li><a href="#{escape(h.id)}">{escape(h.id.upper())}: {escape(h.title)}</a> {chip(h.status)}'
            f"{explains(h)}</li>"
            for h in of_phase
        )
        parts += [f"<h3>{phase}</h3><ol>{steps}</ol>"] if of_phase else []
    if told and not parts:
        parts = ['<p class="soft">Every hypothesis is decided.</p>']
    return f'<section><h2 id="roadmap">Roadmap</h2>{"".join(parts)}</section>' if parts else ""


def _log(logged: Sequence[Logged]) -> str:
    """Entries of the machine's fold; what people wrote between them stands."""
    shown = "".join(_piece(piece) for piece in logged if not piece.is_imported)
    return f'<section><h2 id="log">Experiments log</h2>{shown}</section>' if shown else ""


def _piece(piece: Logged) -> str:
    if not piece.name:
        return to_html(without_title(piece.text))
    head, _, rest = piece.text.partition("\n")
    return _folded(head.lstrip("# "), to_html(rest))


def _imported(notebook: Notebook, logged: Sequence[Logged]) -> str:
    """What other journals brought: reports, of which nothing was run here."""
    shown = [_piece(piece) for piece in logged if piece.is_imported]
    for path in sorted((notebook.folder / IMPORTED).glob("*.md")):
        text = path.read_text(encoding="utf-8", errors="replace")
        shown.append(_folded(plain_title(text) or path.stem, to_html(text, place=IMPORTED)))
    lead = '<p class="soft">Reported elsewhere; nothing of it was run here.</p>'
    return f'<section><h2 id="imported">Imported history</h2>{lead}{"".join(shown)}</section>' if shown else ""


def _folded(head: str, inner: str) -> str:
    return f'<details class="entry"><summary>{escape(head)}</summary>{inner}</details>'
