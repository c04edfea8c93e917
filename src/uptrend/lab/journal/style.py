"""How the journal's page looks: light and dark, on a wall, on a telephone and on paper."""

from html import escape

LIGHT = """
  --paper: #fff; --card: #fff; --ink: #1b1f24; --soft: #5a636e; --line: #dfe3e8; --wash: #f5f6f8; --link: #1d5fa8;
  --validated: #1a7f4b; --invalidated: #b3403a; --inconclusive: #8a6100; --testing: #1d5fa8; --pending: #5a636e;
  --a0: #4a4f57; --a1: #2463a8; --a2: #d1662b; --a3: #2f8f5b; --a4: #8a4fa3; --a5: #b3902a;
"""
DARK = """
  --paper: #14171b; --card: #1a1e23; --ink: #e6e9ed; --soft: #9aa4b0; --line: #30363e; --wash: #20252b; --link: #7db3f0;
  --validated: #5cc98f; --invalidated: #f0857d; --inconclusive: #e0b14a; --testing: #7db3f0; --pending: #9aa4b0;
  --a0: #aab2bc; --a1: #6aa9ee; --a2: #f0935c; --a3: #5cc98f; --a4: #c490dd; --a5: #dcbb57;
"""

STYLE = (
    ":root { color-scheme: light dark;" + LIGHT + "}\n"
    "@media (prefers-color-scheme: dark) { :root {" + DARK + "} }\n"
    """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { font: 16px/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--paper);
  max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3, h4, h5, h6 { line-height: 1.25; text-wrap: balance; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); margin: .15rem 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.35rem; margin: 3.2rem 0 1rem; padding-top: 1rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.2rem; margin: .35rem 0 .5rem; } h4 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .6rem 0; } a { color: var(--link); text-underline-offset: .15em; }
.prose, .sentence, .lede { max-width: 46rem; } .soft, .kicker { color: var(--soft); }
.kicker { font-size: .85rem; font-weight: 600; letter-spacing: .06em; text-transform: uppercase; margin: 0; }
.sentence { font-size: 1.08rem; }
code, pre { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; background: var(--wash); padding: .08em .3em; border-radius: 3px; }
pre { background: var(--wash); padding: .7rem .9rem; border-radius: 6px; overflow-x: auto; } pre code { padding: 0; }
blockquote { margin: .8rem 0; padding: .1rem 1rem; border-left: 3px solid var(--line); color: var(--soft); }
.tally { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: 1.2rem 0 0; padding: 0; list-style: none; }
.tally b { font-size: 1.5rem; font-weight: 650; margin-right: .3rem; font-variant-numeric: tabular-nums; }
.chip { display: inline-block; padding: .05rem .6rem; border-radius: 99px; font-size: .82rem; font-weight: 600;
  border: 1px solid currentColor; white-space: nowrap; }
.validated { color: var(--validated); } .invalidated { color: var(--invalidated); } .pending { color: var(--pending); }
.inconclusive { color: var(--inconclusive); } .testing { color: var(--testing); }
.scroll { overflow-x: auto; margin: .6rem 0; } .scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom; }
th, td { padding: .38rem .7rem .38rem 0; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
.scroll td { white-space: nowrap; } .scroll td.long { white-space: normal; min-width: 7rem; }
.prose h2, .prose h3 { font-size: 1.08rem; margin: 1.5rem 0 .4rem; padding: 0; border: 0; }
.prose > :first-child { margin-top: .3rem; }
.prose table { display: block; overflow-x: auto; }
.ledger td { vertical-align: middle; } .ledger td:nth-child(3) { white-space: nowrap; }
 .ledger .what { width: 44%; } .ledger .where { width: 26%; min-width: 9rem; }
.ledger .what a { color: inherit; text-decoration: none; } .ledger .what a:hover { text-decoration: underline; }
.id { font: 600 .8rem/1 ui-monospace, Menlo, Consolas, monospace; color: var(--soft); margin-right: .5rem; }
li > p { margin: 0 0 .3rem; }
.legend-line { font-size: .82rem; color: var(--soft); margin: .5rem 0 0; }
article { border: 1px solid var(--line); border-radius: 10px; background: var(--card); padding: 1.1rem 1.4rem 1.2rem;
  margin: 1.6rem 0; scroll-margin-top: 1rem; }
article > header { display: flex; flex-wrap: wrap; align-items: center; gap: .3rem .7rem; }
.note { margin: .7rem 0; padding: .5rem .9rem; border-left: 4px solid var(--inconclusive); background: var(--wash);
  border-radius: 0 6px 6px 0; max-width: 46rem; }
.note.void { border-left-color: var(--invalidated); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18.5rem), 1fr)); gap: 1.2rem 1.6rem;
  margin: 1.1rem 0 .4rem; }
figure { margin: 0; max-width: 27rem; min-width: 0; }
figcaption { font-size: .88rem; font-weight: 600; margin-bottom: .2rem; }
figcaption span { font-weight: 400; color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .2rem 0 0; padding: 0; list-style: none;
  font-size: .88rem; }
.legend i { display: inline-block; width: 1.3rem; height: 0; border-top: 3px solid var(--c); margin-right: .4rem;
  vertical-align: .25em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
details { margin: .7rem 0 0; border-top: 1px solid var(--line); padding-top: .6rem; }
summary { cursor: pointer; font-weight: 600; font-size: .95rem; } summary .soft { font-weight: 400; }
details.entry { border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem; }
details.entry h3 { display: none; }
svg { display: block; overflow: visible; } .chart { width: 100%; height: auto; }
.a0 { --c: var(--a0); } .a1 { --c: var(--a1); } .a2 { --c: var(--a2); } .a3 { --c: var(--a3); }
.a4 { --c: var(--a4); } .a5 { --c: var(--a5); }
svg text { font-size: 11.5px; fill: var(--soft); paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
 svg text.arm { fill: var(--ink); font-weight: 600; font-size: 12px; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; fill: none; }
polyline { fill: none; stroke: var(--c); stroke-linejoin: round; } .seed { stroke-width: 1; opacity: .3; }
.mean { stroke-width: 2.6; stroke-linecap: round; }
.bar { stroke: var(--c, currentColor); stroke-width: 3; fill: none; } .effect { fill: var(--c, currentColor); }
.dot { fill: var(--c); opacity: .45; }
.zero { stroke: var(--ink); stroke-width: 1; } .least { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 3; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: .88rem; }
@media (max-width: 44rem) {
  body { padding: 1.4rem 1rem 3rem; } article { padding: .9rem 1rem 1rem; margin-inline: -.35rem; }
  .ledger thead { position: absolute; left: -99rem; }
  .ledger tr { display: grid; grid-template-columns: 1fr auto; gap: .2rem .8rem; padding: .7rem 0;
    border-bottom: 1px solid var(--line); }
  .ledger td { border: 0; padding: 0; width: auto !important; } .ledger .what, .ledger .where { grid-column: 1 / -1; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
}
@media print {
  :root { color-scheme: light;"""
    + LIGHT
    + """}
  body { max-width: none; padding: 0; font-size: 10.5pt; } article { border: 0; padding: 0; background: none; }
  figure, tr, .note { break-inside: avoid; } h2, h3, h4, figcaption { break-after: avoid; } a { color: inherit; }
  table { font-size: 8.5pt; }
  .scroll { overflow: visible; } .scroll td { white-space: normal; } details > summary { list-style: none; }
  details::details-content { content-visibility: visible; }
  .panels { grid-template-columns: repeat(3, 1fr); }
}
"""
)


def shell(title: str, style: str, body: str) -> str:
    """Return a whole HTML document: no script, no font, no network."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
