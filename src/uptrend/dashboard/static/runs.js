"use strict";
// The table of runs, and several runs side by side.
const scored = (heldout) => heldout && (heldout.accuracy ?? null) !== null ? {value: heldout.accuracy, show: U.percent}
  : heldout && (heldout.reward ?? null) !== null                        ? {value: heldout.reward, show: U.number}
                                                                  : null;
U.heldOut = (row) => {
  const [before, after] = [scored(row.before), scored(row.after)];
  if (!before && !after) return null;
  const last = row.after || row.before;
  const ends = (last.low ?? null) === null ? null : h("div.soft.small", `${(100 * last.low).toFixed(1)}–${(100 * last.high).toFixed(1)}%`);
  return h("div.nowrap", before ? before.show(before.value) : "–", after ? ` → ${after.show(after.value)}` : "", ends);
};
U.counts = (counts) => counts &&
  ["critical", "warning", "note"]
    .filter((kind) => counts[kind])
    .map((kind) => h("span", {class: `badge ${kind}`, title: U.plural(counts[kind], kind)}, counts[kind], h("span.sr", ` ${kind}`)));
const column = (title, cell, more) => ({title, cell, ...more}), NUM = {
  num: true
},
      OFF = {
        off: true
      };
const COLUMNS = {
  status: column("Status", (row) => U.status(row)),
  taskset: column("Task", (row) => row.taskset && U.name(row.taskset)),
  model: column("Model", (row) => row.model && U.name(String(row.model).split("/").at(-1))),
  step: column("Step",
    (row) => row.step === undefined ? null : h("span", U.number(row.step), row.steps ? h("span.soft", ` / ${U.number(row.steps)}`) : ""), NUM),
  after: column("Held-out before → after", (row) => U.heldOut(row)),
  reward:
    column("Reward", (row) => row.sparkline && h("span.row.nowrap", {style: {"flex-wrap": "nowrap"}}, U.spark(row.sparkline), U.number(row.reward))),
  findings: column("Findings", (row) => row.findings && [U.counts(row.findings), row.finding ? h("div.small.soft", U.name(row.finding)) : null,
    row.of_step !== null && row.of_step < row.step ? h("div.small.soft", U.dated(row.of_step)) : null]),
  updated: column("Age", (row) => row.updated && h("span", {title: new Date(1000 * row.updated).toLocaleString()}, U.age(row.updated)), NUM),
  seconds: column("Duration", (row) => row.seconds && U.duration(row.seconds), NUM),
  trainer: column("Trainer", (row) => row.trainer && U.name(row.trainer), OFF),
  trend: column("Trend", (row) => row.headline, OFF),
  per_step: column("Per step", (row) => row.per_step && U.duration(row.per_step), {...NUM, ...OFF}),
  seed: column("Seed", (row) => row.seed ?? null, {...NUM, ...OFF})
};
const DEFAULT = Object.keys(COLUMNS).filter((key) => !COLUMNS[key].off);
const LIMIT = 100;

U.pages.runs = async (params) => {
  const view = {
    filter: params.filter || "",
    sort: params.sort || "-updated",
    group: params.group || "",
    columns: params.columns ? params.columns.split(",") : DEFAULT
  };
  let [rows, total, keys, at] = [[], 0, [], -1];
  const body = h("tbody"), head = h("tr"), told = h("span.soft.small", {role: "status"}), more = h("div");
  const bar = h("div.progress", h("i"));
  const compare = h("button.primary", {onclick: () => U.go("compare", {runs: [...U.picked].join(",")})});
  const search = h("input", {
    type: "search",
    placeholder: "Filter: tiny  learning.lr>1e-5  status=running",
    "aria-label": "Filter runs",
    value: view.filter,
    list: "config-keys",
    oninput: () => {
      clearTimeout(search.timer);
      search.timer = setTimeout(() => {
        view.filter = search.value;
        U.keep({filter: view.filter});
        load();
      }, 150);
    }
  });
  (params.picked || "").split(",").filter(Boolean).forEach((id) => U.picked.add(id));
  const pick = () => {
    if (U.route().name === "runs") U.keep({picked: [...U.picked].join(",")});
    compare.textContent = `Compare ${U.picked.size}`;
    compare.classList.toggle("hidden", U.picked.size < 2);
    U.bar();
  };
  const cell = (row, key) => {
    const column = COLUMNS[key];
    const made = column                                               ? column.cell(row)
      : row.config?.[key] === null || row.config?.[key] === undefined ? null
                                                                      : U.name(U.setting(row.config[key]));
    return h("td", {class: column?.num ? "num" : "", "data-label": key === "after" ? "Held-out" : column?.title || key}, made);
  };
  const line = (row) => {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Pick ${row.name}`,
      onchange: () => {
        U.picked[box.checked ? "add" : "delete"](row.id);
        pick();
      }
    });
    box.checked = U.picked.has(row.id);
    return h("tr", {"data-id": row.id}, h("td.pick", row.status === "unreadable" ? null : box),
      h("td.name", h("a", {href: U.link("run", {run: row.id})}, U.name(row.name)),
        row.error ? h("div.small", {style: {color: "var(--bad)"}}, ...U.say(row.error)) : h("div.path", U.name(row.id))),
      view.columns.map((key) => cell(row, key)));
  };
  const draw = () => {
    head.replaceChildren(h("th", h("span.sr", "Pick")), ...["name", ...view.columns].map((key) => {
      const sorted = view.sort.replace("-", "") === key ? (view.sort.startsWith("-") ? "descending" : "ascending") : null;
      return h("th", {scope: "col", class: COLUMNS[key]?.num ? "num" : "", "aria-sort": sorted},
        h("button", {
          onclick: () => {
            view.sort = sorted === "descending" ? key : `-${key}`;
            U.keep({sort: view.sort});
            load();
          }
        },
          COLUMNS[key]?.title || (key === "name" ? "Run" : key), sorted ? (sorted === "ascending" ? " ↑" : " ↓") : ""));
    }));
    let last;
    U.put(body, rows.flatMap((row) => {
      const made = [line(row)];
      if (view.group && row.group !== last)
        made.unshift(h("tr.group", h("td", {colspan: view.columns.length + 2}, `${view.group} = `, U.name(U.setting(row.group)))));
      last = row.group;
      return made;
    }));
    more.replaceChildren(rows.length < total ? h("button", {onclick: () => load(rows.length + 4 * LIMIT)}, `Show more of ${U.number(total)}`) : "");
    if (!rows.length)
      more.replaceChildren(view.filter
          ? U.state("No run meets this filter.")
          : U.state("No runs yet.", h("br"), h("code", "uptrend train recipes/quickstart.toml"), h("br"), "They appear here as soon as they begin."));
    mark(at);
  };
  let wanted = LIMIT;
  const load = async (limit = wanted) => {
    wanted = limit;
    const extra = view.columns.filter((key) => !COLUMNS[key]).join(",");
    const query = {filter: view.filter, sort: view.sort, group: view.group, columns: extra, limit};
    const [answer, status] = await Promise.all([U.api("runs", query), U.api("status")]).catch((error) => [error, null]);
    if (!status && (!answer.message || answer.message.startsWith("The server") || answer.name === "AbortError")) throw answer;
    if (!status) {  // a mistake in the filter: what was there stays out of sight
      rows = [];
      draw();
      U.put(more, U.state(...U.say(answer.message)));
      return;
    }
    [rows, total, keys] = [answer.rows, answer.total, answer.keys];
    const gone = status.folders?.filter((folder) => !folder.exists).map((folder) => folder.path);
    told.textContent = (status.total > 1 ? `Reading ${status.done} of ${status.total} … `
                           : status.indexing ? "Reading … "
                                             : "") +
      U.plural(total, "run") + (gone?.length ? `; ${gone[0]} is not there yet` : "");
    bar.firstChild.style.width = status.total > 1 ? `${100 * status.done / status.total}%` : "0";
    draw();
  };
  const mark = (to) => {
    const lines = [...body.querySelectorAll("tr[data-id]")];
    at = Math.max(-1, Math.min(lines.length - 1, to));
    lines.forEach((one, i) => one.classList.toggle("current", i === at));
    lines[at]?.scrollIntoView({block: "nearest"});
    return lines[at];
  };
  U.keys = {
    "/": () => search.focus(),
    j: () => mark(at + 1),
    k: () => mark(Math.max(0, at - 1)),
    Enter: () => at >= 0 && U.go("run", {run: rows[at].id}),
    x: () => at >= 0 && mark(at).querySelector("input")?.click()
  };
  const shown = h("div"), chosen = (columns) => {
    view.columns = columns;
    U.keep({columns: String(columns) === String(DEFAULT) ? "" : columns.join(",")});
    menu();
    load();
  };
  const menu = () => shown.replaceChildren(...[...Object.keys(COLUMNS), ...view.columns.filter((key) => !COLUMNS[key])].map((key) => {
    const box =
      h("input", {type: "checkbox", onchange: () => chosen(box.checked ? [...view.columns, key] : view.columns.filter((one) => one !== key))});
    box.checked = view.columns.includes(key);
    return h("label", box, " ", COLUMNS[key]?.title || key);
  }),
    h("input", {
      list: "config-keys",
      placeholder: "Config key …",
      "aria-label": "Add a config key as column",
      onchange: (event) => keys.includes(event.target.value) && chosen([...view.columns, event.target.value])
    }));
  const group = h("select", {
    "aria-label": "Group by",
    onchange: () => {
      view.group = group.value;
      U.keep({group: view.group});
      load();
    }
  });
  const save = () => U.save("runs.csv", U.csv([
    ["run", ...view.columns],
    ...rows.map((row) => [row.id,
                  ...view.columns.map((key) => key === "after" ? scored(row.after)?.value
                      : key === "findings"                     ? row.findings && JSON.stringify(row.findings)
                      : COLUMNS[key]                           ? row[key]
                                                               : row.config?.[key])])
  ]));
  await load();
  menu();
  pick();
  group.append(
    ...["", "taskset", "model", "trainer", "status", ...keys].map((key) => h("option", {value: key}, key ? `Group by ${key}` : "No groups")));
  group.value = view.group;
  U.live(null, load);
  return {
    title: "Runs",
    el: [
      h("div.row", h("h1", "Runs"), told, h("span.grow"), compare),
      h("div.toolbar", search, group, h("details.menu-box", h("summary", "Columns"), shown), h("button", {onclick: save}, "CSV")), bar,
      h("datalist", {id: "config-keys"}, keys.map((key) => h("option", {value: key}))), h("div.scroll", h("table.runs", h("thead", head), body)), more
    ]
  };
};

U.pages.compare = async (params) => {
  const ids = (params.runs || "").split(",").filter(Boolean);
  if (!ids.length)
    return {
      title: "Compare",
      el: [h("h1", "Compare"), U.state("Pick runs in the table, then compare them.", h("br"), h("a", {href: U.link("runs")}, "To the runs"))]
    };
  const view = {x: params.x || "step", smooth: +(params.smooth ?? 0), log: params.log === "1", fold: params.fold === "1"};
  const told = await U.api("compare", {runs: ids.join(",")});
  const keys = [...new Set([...told.panels.map((panel) => panel.total || panel.keys[0] || ""), ...(params.add || "").split(",").filter(Boolean)])];
  const curves =
    Object.fromEntries(await Promise.all(told.ids.map(async (id) => [id, await U.api("curves", {run: id, keys: keys.filter(Boolean).join(",")})])));
  const named = Object.fromEntries(told.rows.map((row) => [row.id, row.name]));
  const twice = (name) => Object.values(named).filter((one) => one === name).length > 1;
  const label = (id) => twice(named[id]) ? id : named[id];
  const place = (id) => told.ids.indexOf(id);
  const board = U.board((range) => U.keep({first: range ? Math.round(range[0]) : "", last: range ? Math.round(range[1]) : ""}));
  if (params.first) board.range = [+params.first, +params.last];
  // Seeds of one config as their mean, between the least and the greatest; curves are read at the first one's points.
  const folded = (group, pairs) => {
    const [xs] = pairs[0], at = ([x, y], wanted) => {
      let i = 0;
      while (i < x.length - 1 && x[i + 1] <= wanted) i += 1;
      if (x[i] > wanted || wanted > x.at(-1)) return null;
      const t = i + 1 < x.length && x[i + 1] > x[i] ? (wanted - x[i]) / (x[i + 1] - x[i]) : 0;
      return y[i] === null || t === 0 ? y[i] : y[i + 1] === null ? y[i] : y[i] + t * (y[i + 1] - y[i]);
    };
    const rows = xs.map((x) => pairs.map((pair) => at(pair, x)).filter((y) => y !== null && y !== undefined));
    const of = (f) => rows.map((row) => row.length ? f(row) : null);
    return {x: xs, y: of((r) => r.reduce((a, b) => a + b, 0) / r.length), low: of((r) => Math.min(...r)), high: of((r) => Math.max(...r))};
  };
  const lines = (panel) => {
    const key = panel.total || panel.keys[0];
    const pair = (id) => {
      if (panel.kind === "held-out") {
        const evals = told.evals[id];
        return evals.length ? [U.evalAxis(evals, curves[id], view.x), evals.map((e) => e.accuracy), evals] : null;
      }
      const [curve, x] = [curves[id].curves[key], curves[id][view.x]];
      return curve && x ? [x, curve.mean, null, curve] : null;
    };
    const groups = view.fold ? told.seeds : told.ids.map((id) => [id]);
    return groups.flatMap((group) => {
      const pairs = group.map(pair).filter(Boolean);
      if (!pairs.length) return [];
      const style = {
        place: place(group[0]),
        dash: U.dash(place(group[0])),
        name: group.length > 1 ? `${label(group[0])} and ${group.length - 1} more` : label(group[0]),
        dots: panel.kind === "held-out"
      };
      const smooth = panel.kind === "held-out" ? 0 : view.smooth, few = told.ids.length < 4;
      if (pairs.length > 1) return [{...style, ...folded(group, pairs), smooth}];
      const [x, y, evals, curve] = pairs[0];
      return [{...style, x, y, smooth, errors: evals && few ? U.evalErrors(evals) : null, low: few ? curve?.low : null, high: curve?.high}];
    });
  };
  const plots = h("div.plots");
  const all = [...told.panels, ...(params.add || "").split(",").filter(Boolean).map((key) => ({id: key, title: key, keys: [key], kind: "lines"}))];
  for (const panel of all) {
    const few = panel.keys.length > 1 && !panel.total ? `${panel.title}: ${panel.keys[0].split("/").at(-1)}` : panel.title;
    const title = panel.kind === "held-out" && told.ids.length > 3 ? "Held-out accuracy" : few;
    plots.append(
      U.plot(board, () => ({title, unit: panel.unit, log: view.log, xTitle: AXES[view.x], lines: lines(panel)}), {id: panel.id, name: title}).el);
  }
  const update = () => Promise.all(board.plots.map((plot) => plot.update()));
  U.redraw.push(update);
  const sized = told.seeds.some((group) => group.length > 1);
  const legend = h("div.keys",
    told.rows.map((row) => h("span", {style: {color: U.color(Math.max(0, place(row.id)))}}, h("i"),
                    h("a", {href: U.link("run", {run: row.id})}, U.name(label(row.id))), row.error ? h("span.soft", ` ${row.error}`) : "")));
  const share = (value) => U.change(value, true);
  const paired = told.paired.filter((pair) => pair.tasks);
  const head = ["run", "difference", "interval", "tasks", "right in this run alone", "right in the first alone", "p (McNemar)"];
  const pairs = paired.map((pair) => [U.name(label(pair.b)), `${share(pair.effect)} points`,
                             `${share(pair.interval[0])} to ${share(pair.interval[1])}`, pair.tasks, pair.only_b, pair.only_a, U.number(pair.p)]);
  const changes = Object.entries(told.differences).map(([key, values]) => [h("code", key), ...values.map((value) => U.name(U.setting(value)))]);
  return {
    title: "Compare",
    el: [
      h("h1", `Compare ${U.plural(ids.length, "run")}`), legend, U.controls(view, update, {x: true, fold: sized, metrics: told.metrics, params}),
      plots, U.title("Held-out, task by task"), h("p.soft.small", "Each run against the first, with a 95% interval."),
      pairs.length ? [U.table(head, pairs, {csv: "held-out"}), h("p.soft.small", paired[0].caveat)]
                   : h("p.soft", "These runs share no held-out task."),
      U.title("Config that differs"),
      changes.length ? U.table(["key", ...told.ids.map((id) => U.name(label(id)))], changes, {csv: "config"})
                     : h("p.soft", "Nothing but name and seed.")
    ],
    after: () => U.drawn(board)
  };
};
