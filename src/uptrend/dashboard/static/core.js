"use strict";
// What all pages share: elements from values (never from HTML), answers of the server, addresses, figures as people
// read them, and live updates. Every text of a run reaches the page through `h`, as a text node in which marks that
// would reorder a line are shown.
const U = {
  pages: {},
  answers: null,
  picked: new Set(),
  redraw: []
};

// Attributes that people read.
const SPOKEN = new Set(["title", "aria-label", "placeholder", "data-label"]);
// h("span.soft.small", { title }, ...children): tag and classes, attributes where there are any, then what it holds.
U.h = (name, attrs, ...children) => {
  const [tag, ...classes] = name.split(".");
  const svg = ["svg", "path", "circle", "line", "text"].includes(tag);
  const el = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  const isAttrs = attrs?.constructor === Object;
  if (!isAttrs) children.unshift(attrs);
  for (const [key, value] of Object.entries(isAttrs ? attrs : {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on"))
      el.addEventListener(key.slice(2), value);
    else if (key === "style")
      for (const [rule, set] of Object.entries(value)) el.style.setProperty(rule, set);
    else
      el.setAttribute(key, value === true ? "" : SPOKEN.has(key) ? U.visible(value) : value);
  }
  const put = (child) => {
    if (child === null || child === undefined || child === false) return;
    if (Array.isArray(child))
      child.forEach(put);
    else if (child instanceof Node)
      el.append(child);
    else
      el.append(...(svg ? [U.visible(child)] : U.say(child)));
  };
  children.forEach(put);
  return el;
};
const h = U.h;
// Replace what an element holds; lists in lists are laid flat, and what is not there is left out.
U.put = (el, ...children) => {
  const shown = children.flat(9).filter((child) => child !== null && child !== undefined && child !== false);
  el.replaceChildren(...shown.flatMap((child) => child instanceof Node ? [child] : U.say(child)));
  return el;
};

// Characters that a reader can't see or that reorder what follows are shown by their number.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udfff]/g;
const codeOf = (mark) => mark.codePointAt(0) === 0x1b ? "ESC" : "U+" + mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
// A text for where no element can be: titles of windows, attributes, drawings.
U.visible = (text) => String(text ?? "").replace(HIDDEN, (mark) => `⟨${codeOf(mark)}⟩`);
U.say = (text) => {
  const parts = [];
  let at = 0;
  text = String(text ?? "");
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    parts.push(h("span.ctl", codeOf(found[0])));
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts;
};
U.name = (text) => h("bdi", ...U.say(text));

// People's Markdown, which the server sent as a tree of known tags.
U.prose = (nodes) => (nodes || []).map((node) => {
  if (typeof node === "string") return U.say(node);
  const [tag, attrs, ...children] = node;
  const safe = attrs.href && /^https?:/i.test(attrs.href) ? {href: attrs.href, rel: "noreferrer noopener", target: "_blank"} : {};
  return h(tag, safe, ...U.prose(children));
});

// ---- figures
const MINUS = (text) => text.replace(/-/g, "−");
U.number = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return MINUS(value.toLocaleString("en-US"));
  if (size >= 1000 && size < 1e6) return MINUS(Math.round(value).toLocaleString("en-US"));
  return MINUS(size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(+value.toPrecision(3)));
};
U.percent = (share, digits = 1) => share === null || share === undefined ? "–" : MINUS((100 * share).toFixed(digits)) + "%";
U.change = (value, share) => {
  const text = share ? MINUS((100 * value).toFixed(1)) : U.number(value);
  return value > 0 ? "+" + text : text;
};
U.duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return seconds.toFixed(1) + " s";
  if (seconds < 59.5) return Math.round(seconds) + " s";
  const [count, unit, rest] = seconds < 3600 ? [Math.round(seconds), "min", "s"] : [Math.round(seconds / 60), "h", "min"];
  return `${Math.floor(count / 60).toLocaleString("en-US")} ${unit}` + (count % 60 ? ` ${count % 60} ${rest}` : "");
};
U.age = (moment) => {
  if (!moment) return "–";
  const passed = Date.now() / 1000 - moment;
  if (passed < 60) return "now";
  const [size, unit] = passed < 3600 ? [60, "min"] : passed < 86400 ? [3600, "h"] : [86400, "d"];
  return `${Math.floor(passed / size)} ${unit} ago`;
};
// Least and greatest of many numbers; a spread of them into a call would overflow it.
U.range = (values) => values.reduce(([low, high], v) => v === null ? [low, high] : [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
// Names of metrics that are read together, without the words that they share.
U.shortNames = (keys) => {
  const parts = keys.map((key) => key.split("/"));
  if (keys.length < 2) return keys;
  while (parts.every((one) => one.length > 1 && one[0] === parts[0][0])) parts.forEach((one) => one.shift());
  while (parts.every((one) => one.length > 1 && one.at(-1) === parts[0].at(-1))) parts.forEach((one) => one.pop());
  return parts.map((one) => one.join("/"));
};
U.plural = (count, noun) => `${U.number(count)} ${noun}${count === 1 ? "" : "s"}`;
U.setting = (value) => value === null || value === undefined ? "none"
  : typeof value === "string"                                ? value
  : typeof value === "number"                                ? String(+value.toPrecision(6))
                                                             : JSON.stringify(value);
U.badge = (kind, text) => h("span", {class: `badge ${kind}`}, text);
U.status = (row) => h("span", {class: `status ${row.status}`}, row.status);

// ---- addresses
U.route = () => {
  const [, name, query] = /^#\/([a-z]*)(?:\?(.*))?$/.exec(location.hash) || [null, "", ""];
  return {name: name || U.home || "runs", params: Object.fromEntries(new URLSearchParams(query || ""))};
};
U.link = (name, params) => {
  const kept = Object.entries(params || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const query = new URLSearchParams(kept).toString().replace(/%2F/g, "/").replace(/%2C/g, ",");
  return `#/${name}${query ? "?" + query : ""}`;
};
U.go = (name, params) => { location.hash = U.link(name, params).slice(1); };
// Keep a choice in the address without drawing the page again.
U.keep = (changes) => {
  const {name, params} = U.route();
  Object.assign(params, changes);
  history.replaceState(null, "", U.link(name, params));
  return params;
};

// ---- answers
U.api = async (path, params) => {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  if (U.answers) return U.offline(path, Object.fromEntries(query));
  const asked = U.abort;
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`, {signal: asked?.signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `uptrend serve` still running?");
  }
  const answer = await response.json().catch(() => ({error: `The server answered with ${response.status}.`}));
  if (!response.ok) throw new Error(answer.error || `The server answered with ${response.status}.`);
  return answer;
};
// The answers of an exported file; curves are kept whole, and a part is cut out of them here.
U.offline = (path, query) => {
  const ask = (q) => U.answers[`${path}?${new URLSearchParams(q)}`];
  if (path === "status") return {indexing: false, exported: true, counts: {}};
  const found = ask(query);
  if (found) return found;
  if (path === "curves") {
    const all = ask({run: query.run});
    const keys = query.keys ? query.keys.split(",") : Object.keys(all.curves);
    return {...all, curves: Object.fromEntries(keys.filter((key) => all.curves[key]).map((key) => [key, all.curves[key]]))};
  }
  if (path === "rollouts") {
    const rows = U.answers.rollouts.filter((row) => Boolean(row.heldout) === (query.heldout === "true") && (!query.step || row.step === +query.step) &&
        (!query.task || row.task === query.task) && (!query.group || row.group === query.group) && (!query.ended || row.ended === query.ended) &&
        (!query.correct || Boolean(row.correct) === (query.correct === "true")) && (!query.low || row.reward >= +query.low) &&
        (!query.high || row.reward <= +query.high) && (!query.tool || row.tools.split(",").includes(query.tool)) &&
        (!query.text || `${row.question} ${row.text}`.toLowerCase().includes(query.text.toLowerCase())));
    const key = (query.sort || "step").replace("-", "");
    if (key !== "step") rows.sort((a, b) => ((a[key] ?? 0) - (b[key] ?? 0)) * (query.sort.startsWith("-") ? -1 : 1));
    return {rollouts: rows, total: rows.length, indexed: 1, steps: 1, next: null};
  }
  if (path === "rollout") {  // with other limits than it was kept with
    const kept = ask({run: query.run, heldout: query.heldout, step: query.step, group: query.group, index: query.index, nth: query.nth || 0});
    if (kept) return kept;
  }
  throw new Error("This file does not hold that. `uptrend serve` shows all of the run.");
};

// ---- live: one stream per page, closed while nobody looks; browsers allow few.
U.live = (run, changed) => {
  if (U.answers) return;
  let stream = null;
  let waiting = false;
  const heard = async () => {
    if (waiting) return;
    waiting = true;
    await new Promise((done) => setTimeout(done, 150));
    waiting = false;
    if (stream) await changed();
  };
  const open = () => {
    stream = new EventSource(run ? `/api/live?run=${encodeURIComponent(run)}` : "/api/live");
    stream.onmessage = heard;
    // Refused, not lost: a server that was started anew has another token, and the page says so.
    stream.onerror = () => stream?.readyState === EventSource.CLOSED ? U.show() : U.lost(true);
    stream.onopen = () => {
      if (U.lost(false)) U.show();
    };
  };
  const shut = () => {
    stream?.close();
    stream = null;
  };
  const turn = () => {
    if (document.hidden)
      shut();
    else if (!stream) {
      open();
      heard();
    }
  };
  document.addEventListener("visibilitychange", turn);
  open();
  U.leave(() => {
    shut();
    document.removeEventListener("visibilitychange", turn);
  });
};
// Tell that the server is gone, or take it back; true where it was gone until now.
U.lost = (gone) => {
  const known = document.getElementById("lost");
  if (gone && !known) document.body.append(h("div", {id: "lost", role: "status"}, "The server does not answer. Waiting for it …"));
  if (!gone) known?.remove();
  return Boolean(known);
};
U.leaving = [];
U.leave = (undo) => U.leaving.push(undo);

// ---- parts of pages
U.state = (...words) => h("div.state", ...words);
U.error = (error) => h("div.error", {role: "alert"}, h("b", "This could not be shown. "), ...U.say(error.message || error));
U.copy = (text) => h("button.small", {
  title: "Copy",
  onclick: async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // no clipboard over plain HTTP to another machine
      const area = h("textarea.sr");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  }
},
  "Copy");
U.command = (text) => h("div.command", h("code", ...U.say(text)), U.copy(text));
// A table of cells; with `csv`, a name for its file, it can be saved.
U.table = (head, rows, {csv, ...attrs} = {}) => {
  const body = h("tbody", rows.map((row) => h("tr", row.map((cell) => h("td", cell))))),
        text = (row) => [...row.children].map((cell) => cell.textContent);
  const save = () => U.save(`${csv}.csv`, U.csv([head.map((name) => name.textContent ?? name), ...[...body.children].map(text)]));
  return h("div.scroll", csv ? h("button.plain.save", {onclick: save, "aria-label": `Save ${csv} as CSV`}, "CSV") : null,
    h("table", attrs, h("thead", h("tr", head.map((name) => h("th", {scope: "col"}, name)))), body));
};
U.save = (name, text, type = "text/csv") => {
  const url = text.startsWith?.("data:") ? text : URL.createObjectURL(new Blob([text], {type}));
  h("a", {href: url, download: name}).click();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 1000);
};
// A cell that a spreadsheet would take for a formula begins with a quote.
U.csv = (rows) => rows
                    .map((row) => row
                           .map((cell) => {
                             let text = cell === null || cell === undefined ? "" : String(cell);
                             // Of a path of this machine, its last name: others, who get the file, have other folders.
                             if (/^(\/|[A-Za-z]:\\)[^\s<>]*[/\\][^\s<>]+$/.test(text)) text = "…/" + text.split(/[/\\]/).filter(Boolean).at(-1);
                             if (typeof cell === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(+text)) text = "'" + text;
                             return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, "\"\"")}"` : text;
                           })
                           .join(","))
                    .join("\r\n") +
  "\r\n";
U.tip = (event, text) => {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = U.visible(text);
  const box = event.target.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(innerWidth - tip.offsetWidth - 4, box.left)) + "px";
  tip.style.top = (box.bottom + tip.offsetHeight + 8 > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6) + "px";
};
U.spark = (values) => {
  const [wide, high] = [96, 24];
  if (!values || values.length < 2) return null;
  const [low, top] = U.range(values);
  const span = top - low || 1;
  const at = values.map((v, i) => [2 + (i * (wide - 4)) / (values.length - 1), high - 3 - ((v - low) / span) * (high - 6)]);
  const path = "M" + at.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  return h("svg.spark", {width: wide, height: high, role: "img", "aria-label": `reward from ${U.number(values[0])} to ${U.number(values.at(-1))}`},
    h("path", {d: path}), h("circle", {cx: at.at(-1)[0], cy: at.at(-1)[1], r: 2}));
};
U.title = (text) => h("h2.part", text);
U.tabs = (run, here, counts) => h("nav.tabs", {"aria-label": "Run"}, [
  ["run", "Curves"], ["findings", "Findings" + (counts?.findings ? ` (${counts.findings})` : "")], ["rollouts", "Rollouts"], ["config", "Config"]
].map(([name, title]) => h("a", {href: U.link(name, {run}), "aria-current": name === here ? "page" : null}, title)));
U.crumbs = (...parts) => h("div.crumbs", parts.flatMap((part, i) => i ? [" / ", part] : [part]));
