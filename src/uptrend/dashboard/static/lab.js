"use strict";
// Journals: what is to be tested, and a hypothesis with its arms, effects and verdict.
const verdict = (status, outcome = status) =>
  h("span", {class: `badge ${{validated: "good", invalidated: "note", inconclusive: "warning"}[status] || "note"}`}, outcome);

U.pages.labs = async () => {
  const {labs} = await U.api("labs");
  if (labs.length === 1) {
    history.replaceState(null, "", U.link("lab", {lab: labs[0].id}));
    return U.pages.lab({lab: labs[0].id});
  }
  return {
    title: "Lab",
    el: [
      h("h1", "Journals"),
      labs.length ? U.table(["journal", "path"],
                      labs.map((lab) => [h("a", {href: U.link("lab", {lab: lab.id})}, U.name(lab.name)), h("span.soft", U.name(lab.path))]))
                  : U.state("No journal in these folders.", h("br"), h("code", "uptrend lab init debug && uptrend serve runs debug"))
    ]
  };
};

// An interval on a line, in units of the smallest effect that matters.
const strip = (ends) => {
  if (!ends?.length || ends.some((end) => end === null)) return null;
  const reach = 3, at = (value) => 60 + (54 * Math.max(-reach, Math.min(reach, value))) / reach, [low, effect, high] = ends;
  return h("svg", {
    width: 120,
    height: 20,
    role: "img",
    "aria-label": `effect ${effect.toFixed(2)} times the smallest that matters, from ${low.toFixed(2)} to ${high.toFixed(2)}`
  },
    h("line", {x1: 60, x2: 60, y1: 2, y2: 18, stroke: "currentColor"}),
    h("line", {x1: at(1), x2: at(1), y1: 2, y2: 18, stroke: "currentColor", "stroke-dasharray": "3 3", opacity: 0.6}),
    h("line", {x1: at(low), x2: at(high), y1: 10, y2: 10, stroke: "currentColor", "stroke-width": 2.5}),
    h("circle", {cx: at(effect), cy: 10, r: 4, fill: "currentColor"}));
};

U.pages.lab = async ({lab}) => {
  const told = await U.api("lab", {lab});
  const link = (id) => h("a", {href: U.link("hypothesis", {lab, id})}, id.toUpperCase());
  const counts = {};
  told.hypotheses.forEach((one) => { counts[one.status] = (counts[one.status] || 0) + 1; });
  const rows = told.hypotheses.map((one) => [link(one.id),
                                     h("div", h("a", {href: U.link("hypothesis", {lab, id: one.id})}, h("b", U.name(one.named))),
                                       h("div.small.soft", ...U.say(one.trouble || one.sentence || one.explains))),
                                     verdict(one.status, one.outcome), one.confidence || "–", strip(one.ends) || "", one.priority]);
  const named = (id) => U.name(told.hypotheses.find((one) => one.id === id).named);
  const roadmap = told.phases.map((phase) => h("section", h("h3", phase.title), h("ol", phase.ids.map((id) => h("li", link(id), " ", named(id))))));
  return {
    title: told.title,
    el: [
      U.crumbs(h("a", {href: U.link("labs")}, "Journals"), U.name(lab)), h("h1", U.name(told.title)),
      h("p", Object.entries(counts).map(([status, count]) => [verdict(status), ` ${count}  `])), told.broken.map((reason) => U.error(reason)),
      U.table(["", "hypothesis", "status", "confidence", "effect", "priority"], rows, {csv: "hypotheses"}),
      h("p.small.soft", "Effect: dot and 95% interval; the solid line is no effect, the dashed one the smallest that matters."),
      roadmap.length ? [U.title("Roadmap"), roadmap] : null,
      h("details", {open: told.hypotheses.length === 0}, h("summary", "The question"), h("div.prose", U.prose(told.problem)))
    ]
  };
};

U.pages.hypothesis = async ({lab, id}) => {
  const told = await U.api("hypothesis", {lab, id});
  const board = U.board(), found = told.verdict, plots = h("div.plots");
  const points = told.is_share ? (value) => 100 * value : (value) => value;
  if (found?.effects.length) {
    const arms = found.effects.map((one) => one.arm);
    plots.append(
      U.plot({plots: [], hover: () => {}, zoom: () => {}}, () => ({
         title: `Effect on ${told.metric_name} against the control`,
         xTitle: told.is_share ? "points" : told.metric_name,
         lines: found.effects.flatMap(
           (one, row) => [{name: one.arm, place: one.color, x: one.ends.map((end) => end === null ? null : points(end)), y: [row, row]},
             {name: one.arm, place: one.color, x: [points(one.effect)], y: [row], dots: true},
             {name: `${one.arm}, by seed`, place: one.color, x: one.seeds.map(points), y: one.seeds.map(() => row + 0.22), only: true}]),
         markers: [
           {x: 0, kind: "control"}, {x: points(found.smallest), kind: "resumed", label: "smallest that matters"},
           ...(found.either ? [{x: -points(found.smallest), kind: "resumed"}] : [])
         ],
         y: {tickvals: arms.map((_, i) => i), ticktext: arms.map((arm) => plain(arm)), range: [-0.6, arms.length - 0.3], showgrid: false},
         effects: true
       }),
         {id: "effects", name: "Effects", keys: false})
        .el);
  }
  for (const curve of told.curves) {
    plots.append(
      U.plot(board, () => ({
         title: curve.title,
         unit: curve.is_share ? "share" : "",
         lines: curve.arms.flatMap((arm) => {
           const tables = arm.seeds.map((line) => new Map(line)),
                 steps = [...tables[0].keys()].filter((step) => tables.every((table) => table.has(step)));
           const mean = steps.map((step) => tables.reduce((sum, table) => sum + table.get(step), 0) / tables.length);
           return [
             ...arm.seeds.map(
               (line, i) => ({name: `${arm.arm} ${i}`, place: arm.color, thin: true, x: line.map(([x]) => x), y: line.map(([, y]) => y)})),
             {
               name: `${arm.arm} (${U.plural(arm.seeds.length, "seed")})`,
               place: arm.color,
               x: steps,
               y: mean,
               smooth: curve.title.startsWith("Held-out") ? 0 : Math.floor(steps.length / 15)
             }
           ];
         })
       }),
         {id: curve.title, name: curve.title, keys: true})
        .el);
  }
  U.redraw.push(() => [...plots.children].forEach((el) => el.plot.update()));
  const criteria = [
    ["metric", told.metric_name], ["claimed", `${told.direction}, by ${told.smallest_told} or more`], ["validated if", h("code", told.validated_if)],
    ["invalidated if", h("code", told.invalidated_if)], ["seeds", told.seeds.join(", ")], ["alpha", told.alpha], ["method", told.method],
    ["stops early", told.stops_early ? "when the confidence sequence is clear" : "no"]
  ];
  const decided = found &&
    h("div.card", h("p", h("b", ...U.say(found.sentence))), h("p.small.soft", "Because: ", ...U.say(found.because)),
      found.caveats.map((line) => h("p.small", ...U.say(line))));
  const linked = (cell, link) => link ? h("a", {href: U.link("run", {run: link})}, U.name(cell)) : U.name(cell);
  const runs = told.runs?.rows.map((row, i) => row.map((cell, j) => linked(cell, j === row.length - 1 && told.runs.links[i])));
  const hash = found?.specification ? [": ", h("code", found.specification.slice(0, 16))] : "";
  return {
    title: told.title,
    el: [
      U.crumbs(h("a", {href: U.link("labs")}, "Journals"), h("a", {href: U.link("lab", {lab})}, U.name(lab)), id.toUpperCase()),
      h("div.row", h("h1", U.name(told.named)), verdict(told.status, told.outcome), told.confidence ? h("span.soft", `${told.confidence} confidence`) : null),
      told.trouble ? U.error(told.trouble) : null, decided || h("p.soft", "No verdict yet: ", h("code", `uptrend lab run ${id} --dir LAB`)),
      plots.childNodes.length ? plots : null, U.title("Arms"),
      U.table(["arm", "config"], told.arms.map((arm) => [U.name(arm.name), h("code", ...U.say(arm.changes))])),
      U.title("How the verdict is computed"), h("p.soft.small", "Fixed and hashed before the first step", hash, "."),
      U.table(["", ""], criteria, {class: "facts"}),
      found?.table ? U.table(found.table[0], found.table[1].map((row) => row.map((cell) => U.name(cell))), {csv: "effects"}) : null,
      found?.command ? [h("p.label", `${found.date}, ${found.machine}`), U.command(found.command)] : null,
      runs ? [U.title("Runs"), U.table(told.runs.head, runs, {csv: "runs"})] : null, h("div.prose", U.prose(told.prose))
    ],
    after: () => U.drawn(board)
  };
};
