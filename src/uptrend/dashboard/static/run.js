"use strict";
// One run: its head with trend, held-out change and first finding; curves; config.
const AXES = {
  step: "step",
  rollouts: "rollouts sampled",
  time: "seconds since the first step"
};

// Choices that plots share; each is kept in the address.
U.controls = (view, update, {x, fold, metrics, params, added}) => {
  const smooth = h("input", {
    type: "range",
    min: 0,
    max: 50,
    value: view.smooth,
    "aria-label": "Smoothing",
    oninput: () => {
      view.smooth = +smooth.value;
      U.keep({smooth: view.smooth || "0"});
      update();
    }
  });
  const log = h("button", {
    "aria-pressed": String(view.log),
    onclick: () => {
      view.log = !view.log;
      log.setAttribute("aria-pressed", view.log);
      U.keep({log: view.log ? "1" : ""});
      update();
    }
  },
    "Log scale");
  const axis = h("select", {
    "aria-label": "Horizontal axis",
    onchange: () => {
      view.x = axis.value;
      U.keep({x: view.x, first: "", last: ""});
      U.show();
    }
  },
    Object.entries(AXES).map(([key, title]) => h("option", {value: key}, `by ${title}`)));
  axis.value = view.x;
  const seeds = h("button", {
    "aria-pressed": String(view.fold),
    onclick: () => {
      view.fold = !view.fold;
      seeds.setAttribute("aria-pressed", view.fold);
      U.keep({fold: view.fold ? "1" : ""});
      update();
    }
  },
    "Fold seeds");
  const adding = h("select", {
    "aria-label": "Add a plot",
    onchange: () => {
      const list = [...(params.add || "").split(",").filter(Boolean), adding.value];
      U.keep({add: [...new Set(list)].join(",")});
      U.show();
    }
  },
    h("option", {value: ""}, "Add a plot …"),
    (metrics || [])
      .map((section) =>
             h("optgroup", {label: section.title}, section.metrics.map((one) => h("option", {value: one.key, title: one.meaning}, one.key)))));
  return h("div.toolbar", x ? axis : null, h("label.row.small.soft", "Smoothing", smooth), log, fold ? seeds : null, adding,
    params.first || params.add ? h("button", {
      onclick: () => {
        U.keep({first: "", last: "", add: ""});
        U.show();
      }
    },
                                  "Reset")
                              : null,
    h("span.soft.small", "Drag to zoom, double-click to reset."));
};

// Evaluations on an axis of the curves, and their intervals as a plot takes them.
U.evalAxis = (evals, curves, axis) =>
  evals.map(({step}) => axis === "step" || step === 0 ? step : curves[axis]?.[Math.max(0, curves.step.findLastIndex((s) => s <= step))] ?? 0);
U.evalErrors = (evals) =>
  evals.every((e) => (e.low ?? null) !== null) ? {above: evals.map((e) => e.high - e.accuracy), below: evals.map((e) => e.accuracy - e.low)} : null;

U.head = (told, here) => {
  const {row, report} = told;
  const causes = report?.findings.length;
  return [
    U.answers ? null : U.crumbs(h("a", {href: U.link("runs")}, "Runs"), U.name(row.id)),
    h("div.row", h("h1", U.name(row.name)), U.status(row),
      row.step === undefined ? null : h("span.soft", `step ${U.number(row.step)}${row.steps ? ` of ${U.number(row.steps)}` : ""}`),
      row.per_step ? h("span.soft", `${U.duration(row.per_step)} per step`) : null,
      row.model ? h("span.soft", {title: row.model}, U.name(String(row.model).split("/").at(-1))) : null,
      row.taskset ? h("span.soft", U.name(row.taskset)) : null, row.trainer !== "uptrend" && row.trainer ? U.badge("note", row.trainer) : null),
    U.tabs(row.id, here, {findings: causes})
  ];
};
const MARKED_CAUSES = new Set(["finding", "withdrawn", "probed"]);
const TREND = new Map([["learning", "Learning"], ["flat", "Flat"], ["falling", "Falling"], ["too-short", "Too short to tell"]]);
U.dated = (step) => (step ?? null) === null ? null : step > 0 ? `After step ${U.number(step)}` : "Before the first step";
U.trend = (report) => {
  const kind = TREND.get(report.trend) || report.trend || "Not judged";
  const qualified = report.headline && report.headline !== report.trend;  // held-out scores or findings disagree
  return [
    h("div", {class: `trend ${qualified && report.trend === "learning" ? "too-short" : report.trend}`},
      qualified ? report.headline[0].toUpperCase() + report.headline.slice(1) : kind),
    h("p.small", ...U.say(report.sentence)), h("p.small.soft", U.dated(report.step))
  ];
};
U.cards = (told) => {
  const {row, report} = told;
  const [before, after] = [scored(row.before), scored(row.after)];
  const heldout = report?.held_out, share = after?.show === U.percent, told_as = (value) => U.change(value, share);
  const change =
    heldout?.interval ? `${told_as(heldout.effect)}${share ? " points" : ""} (${told_as(heldout.interval[0])} to ${told_as(heldout.interval[1])})` : null;
  const interval = (one) => one && (one.low ?? null) !== null ? `${(100 * one.low).toFixed(1)}–${(100 * one.high).toFixed(1)}%` : "";
  const first = report?.findings[0];
  const card = (label, ...inside) => h("section.card", h("div.label", label), inside);
  const ends =
    [interval(row.before), interval(row.after)].filter(Boolean).join(" → ") + (row.after?.tasks ? `, ${U.plural(row.after.tasks, "task")}` : "");
  const shown = (one) => one ? one.show(one.value) : "–";
  const scores = before || after
    ? [h("div.big.nowrap", shown(before), " → ", shown(after)), h("p.small.soft", ends), change ? h("p.small", `Change ${change}`) : null]
    : h("p.soft", "Nothing was held out.");
  const page = first && U.link("findings", {run: row.id, finding: first.id});
  const finding = first ? [
    h("div.row", U.badge(first.severity, first.severity), h("a", {href: page}, h("b", first.id)), h("span.soft.small", `${first.confidence} confidence`)),
    h("p.small", ...U.say(first.summary)), first.fix ? h("p.small", h("b", "Fix: "), ...U.say(first.fix.sentence)) : null,
    first.settings.length === 1 ? U.command(first.settings[0].line) : null
  ] : h("p", !report ? "…" : report.trend === "learning" ? U.badge("good", "Nothing to fix") : "Nothing was found.");
  const stopped = told.stopped ? h("p.small", h("b", `Stopped by ${told.stopped.by}: `), ...U.say(told.stopped.why)) : null;
  return h("div.cards", card("Trend of the training reward", report ? U.trend(report) : h("p.soft", "The doctor is looking at it …"), stopped),
    card("Held-out before → after", scores), card("First finding", finding));
};

U.pages.run = async (params, current) => {
  const run = params.run;
  const view = {smooth: +(params.smooth ?? -1), log: params.log === "1", x: params.x || "step"};
  const added = (params.add || "").split(",").filter(Boolean);
  const range = params.first !== undefined && params.first !== "" ? [+params.first, +params.last] : null;
  const ask = (told) => U.api("curves", {
    run,
    keys: added.length ? [...new Set([...told.panels.flatMap((p) => p.keys), ...added])].join(",") : "",
    ...(range && view.x === "step" ? {first: Math.max(0, Math.floor(range[0])), last: Math.ceil(range[1])} : {})
  });
  let [told, curves] = await Promise.all([U.api("run", {run}), added.length ? null : ask({}).catch(() => null)]);
  if (told.error) return {title: told.row.name, el: [h("h1", U.name(told.row.name)), U.error(told.error), h("p.soft", ...U.say(told.row.path))]};
  curves ||= await ask(told);
  if (view.smooth < 0) view.smooth = Math.min(50, Math.floor(curves.step.length / 15));
  const board = U.board((zoomed) => {
    const before = params.first;
    Object.assign(params, {first: zoomed ? Math.round(zoomed[0]) : "", last: zoomed ? Math.round(zoomed[1]) : ""});
    U.keep({first: params.first, last: params.last});
    if (view.x === "step" && (curves.thinned || before)) U.show();  // closer steps are there to be had
  });
  board.range = range;
  const markers = () => view.x !== "step" ? [] : told.markers.map((marker) => ({...marker, x: marker.step}));
  const lines = (panel) => {
    if (panel.kind === "held-out") {
      const evals = told.evals.filter((e) => (e.accuracy ?? null) !== null), x = U.evalAxis(evals, curves, view.x);
      const sets = [...new Set(evals.flatMap((e) => Object.keys(e.sets || {})))];
      const further = sets.map((name, i) => ({name, place: i + 1, dots: true, x, y: evals.map((e) => e.sets?.[name]?.accuracy ?? null)}));
      return [{name: "held-out", x, y: evals.map((e) => e.accuracy), dots: true, errors: U.evalErrors(evals)}, ...further];
    }
    const known = panel.keys.filter((key) => curves.curves[key]), short = U.shortNames(known);
    const lines = known.map((key, place) => {
      const {mean, low, high} = curves.curves[key], isPart = panel.id === "reward" && place > 0;
      const name = isPart ? key.split("/")[2] : panel.id === "reward" ? "reward" : short[place];
      return {
        name,
        place,
        low,
        high,
        x: curves[view.x] || curves.step,
        y: mean,
        light: isPart,
        dash: U.dash(place),
        smooth: panel.kind === "stack" ? 0 : view.smooth
      };
    });
    const whole = panel.id === "dead" && known.length > 1 && curves.curves[panel.total]?.mean;
    if (whole) {  // groups whose rewards agree at neither end
      const rest = whole.map((all, i) => all === null ? null : Math.max(0, all - lines.reduce((sum, line) => sum + (line.y[i] || 0), 0)));
      lines.push({name: "between", x: lines[0].x, y: rest, place: 2});
    }
    return lines;
  };
  const plots = h("div.plots");
  const share = (key) => told.metrics.some((section) => section.metrics.some((one) => one.key === key && one.unit === "share"));
  const panels = [...told.panels, ...added.map((key) => ({id: key, title: key, keys: [key], kind: "lines", unit: share(key) ? "share" : ""}))];
  for (const panel of panels) {
    const bounds = () => panel.id === "reward" && told.bounds && !view.log ? told.bounds.filter((bound) => bound !== null) : [];
    const about = {title: panel.title, unit: panel.unit, stack: panel.kind === "stack", xTitle: AXES[view.x]};
    const make = () => ({...about, log: view.log && panel.kind !== "held-out", lines: lines(panel), markers: markers(), bounds: bounds()});
    plots.append(U.plot(board, make, {id: panel.id, name: panel.title}).el);
  }
  const head = h("div"), cards = h("div"), kinds = h("p.soft.small");
  // A cause that the report no longer has is a word, not a link to where it would stand.
  const cause = (m) => {
    const name = `${m.id || m.kind}${m.kind === "withdrawn" ? " withdrawn" : ""}`;
    const stands = told.report?.findings.some((one) => one.id === m.id);
    return stands ? h("a", {href: U.link("findings", {run, finding: m.id})}, name) : name;
  };
  const frame = () => {
    U.put(head, U.head(told, "run"));
    U.put(cards, U.cards(told));
    const seen = panels.length ? told.markers : [];
    U.put(kinds, seen.length ? "Dotted lines: " : "",
      ...seen.slice(0, 12).flatMap(
        (m, i) => [i ? ", " : "",
          MARKED_CAUSES.has(m.kind) ? cause(m) : m.kind,
          ` at ${U.number(m.step)}`]),
      told.markers.length > 12 ? ` and ${told.markers.length - 12} more` : "", seen.length ? "." : "");
  };
  frame();
  const update = () => Promise.all(board.plots.map((plot) => plot.update()));
  U.redraw.push(update);
  U.live(run, async () => {
    [told, curves] = await Promise.all([U.api("run", {run}), ask(told)]);
    if (!current() || told.error) return;
    if (told.panels.length !== panels.length - added.length) return U.show();  // a first step, or a first evaluation
    frame();
    await update();
    document.body.dataset.step = told.row.step;
  });
  document.body.dataset.step = told.row.step;
  return {
    title: told.row.name,
    el: [
      head, cards, panels.length ? U.controls(view, update, {x: Boolean(curves.time), metrics: told.metrics, params}) : null,
      panels.length ? plots : U.state("No step was recorded yet."), kinds,
      told.notes.length ? h("details", h("summary", "Notes on how it was read"), h("ul", told.notes.map((note) => h("li", ...U.say(note))))) : null
    ],
    after: () => U.drawn(board)
  };
};

U.pages.config = async ({run, all}) => {
  const told = await U.api("run", {run});
  if (told.error) throw new Error(told.error);
  const differing = told.settings.filter((one) => "default" in one);
  const rows = (all || !differing.length ? told.settings : differing)
                 .map((one) => [h("code", ...U.say(one.key)), h("code", ...U.say(U.setting(one.value))),
                        "default" in one ? h("code.soft", ...U.say(U.setting(one.default))) : ""]);
  const facts = Object.entries(told.info).flatMap(([key, value]) => value && typeof value === "object"
      ? Object.entries(value).filter(([, v]) => v !== null && typeof v !== "object").map(([name, v]) => [`${key}.${name}`, v])
      : value === null ? []
                       : [[key, value]]);
  return {
    title: `Config of ${told.row.name}`,
    el: [
      U.head(told, "config"),
      h("div.row", h("h2", all || !differing.length ? "All of the config" : "What differs from the default"),
        differing.length
          ? h("a", {href: U.link("config", {run, all: all ? "" : "1"})}, all ? "only what differs" : `all ${told.settings.length} keys`)
          : null),
      U.table(["key", "value", "default"], rows, {csv: "config"}), U.title("Where and with what"),
      U.table(["", ""],
        [["path", h("code", ...U.say(told.row.path))], ...facts.map(([key, value]) => [h("code", ...U.say(key)), U.name(String(value))])],
        {class: "facts"})
    ]
  };
};
