"use strict";
// The frame of all pages: the bar at the top, the way from an address to a page, theme and keys.
// The kept theme, or with a value the new one; a private window keeps none.
const kept = (theme) => {
  try {
    return theme ? localStorage.setItem("uptrend-theme", theme) : localStorage.getItem("uptrend-theme");
  } catch { return null; }
};
const setTheme = (theme) => { document.documentElement.dataset.theme = theme; };
setTheme(kept() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
const KEYS = [
  ["/", "go to the filter"], ["j k", "next and previous row"], ["Enter", "open the row"], ["x", "pick the row"], ["c", "compare what is picked"],
  ["[ ]", "previous and next step or rollout"], ["v", "conversation or tokens"], ["m", "next coloring of tokens"], ["r", "runs"], ["d", "doctor"],
  ["l", "lab"], ["t", "dark or light"], ["?", "this list"]
];
const help = h("dialog", {"aria-label": "Keys"}, h("h2", "Keys"),
  h("table", h("tbody", KEYS.map(([key, does]) => h("tr", h("td", key.split(" ").map((one) => [h("kbd", one), " "])), h("td", does))))),
  h("p", h("button", {onclick: () => help.close()}, "Close")));
document.body.append(help);

const header = document.getElementById("top");
const flip = () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  kept(document.documentElement.dataset.theme);
  U.redraw.forEach((draw) => draw());
};
const NAV = [["runs", "Runs"], ["compare", "Compare"], ["doctor", "Doctor"], ["labs", "Lab"], ["api", "API"]];
const PARENTS = new Map([["runs", ["run", "findings", "config", "rollouts", "rollout", "group"]], ["labs", ["lab", "hypothesis"]]]);
U.bar = () => {
  const here = U.route().name;
  const links = (U.answers ? [] : NAV).map(([name, title]) => {
    const picked = name === "compare" && U.picked.size, is = name === here || PARENTS.get(name)?.includes(here);
    return h("a", {href: U.link(name, picked ? {runs: [...U.picked].join(",")} : {}), "aria-current": is ? "page" : null}, title,
      picked ? ` (${picked})` : "");
  });
  const home = U.answers ? U.link("run", {run: U.answers.run}) : U.link("runs");
  U.put(header, h("a.brand", {href: home}, "Uptrend"), h("nav", {"aria-label": "Pages"}, links), h("span.grow"),
    h("button.plain", {onclick: flip, title: "Dark or light (t)", "aria-label": "Dark or light"}, "◐"),
    h("button.plain", {onclick: () => help.showModal(), title: "Keys (?)", "aria-label": "Keys"}, "?"));
};

let visit = 0;
U.show = async () => {
  const mine = ++visit;
  const {name, params} = U.route();
  document.body.dataset.ready = "";
  U.leaving.splice(0).forEach((undo) => undo());
  U.abort?.abort();
  U.abort = new AbortController();
  U.redraw = [];
  U.tip(null, "");
  U.keys = {};
  U.bar();
  const main = document.getElementById("main");
  const slow = setTimeout(() => {
    if (mine === visit) main.replaceChildren(U.state("Loading …"));
  }, 250);
  try {
    const page = U.pages[name];
    if (!page) throw new Error(`There is no page ${name}.`);
    const made = await page(params, () => mine === visit);
    clearTimeout(slow);
    if (mine !== visit) return;
    U.put(main, made.el || made);
    document.title = made.title ? `${U.visible(made.title)} · Uptrend` : "Uptrend";
    if (made.after) await made.after();
    if (mine === visit) document.body.dataset.ready = name;
  } catch (error) {
    clearTimeout(slow);
    if (error.name === "AbortError" || mine !== visit) return;
    U.put(main, U.error(error), h("p", h("button", {onclick: U.show}, "Try again")));
    document.title = "Uptrend";
    if (error.message.startsWith("The server does not answer")) setTimeout(() => mine === visit && U.show(), 3000);
    document.body.dataset.ready = "error";
  }
};
U.pages.api = async () => {
  const schema = U.answers ? {paths: {}} : await U.api("openapi.json");
  return {
    title: "API",
    el: [
      h("h1", "API"),
      h("p.soft", "The pages ask these questions; so can a program. JSON answers, ", h("a", {href: "/api/openapi.json"}, "OpenAPI description"), "."),
      ...Object.entries(schema.paths)
        .map(
          ([path, methods]) => Object.entries(methods).map(
            ([method, told]) => h("section.card", {style: {margin: "10px 0"}}, h("h3.code", `${method.toUpperCase()} ${path}`), h("p", told.summary),
              told.parameters?.length ? U.table(["parameter", "type", "default", "meaning"],
                                          told.parameters.map((p) => [h("code", p.name + (p.required ? " *" : "")), p.schema.type,
                                                                p.schema.default === undefined ? "" : String(p.schema.default), p.description || ""]))
                                      : null)))
    ]
  };
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  const all = {
    "?": () => help.showModal(),
    t: flip,
    ...(U.answers ? {} : {
      r: () => U.go("runs"),
      d: () => U.go("doctor"),
      l: () => U.go("labs"),
      c: () => U.picked.size && U.go("compare", {runs: [...U.picked].join(",")})
    }),
    ...U.keys
  };
  if (all[event.key]) {
    event.preventDefault();
    all[event.key](event);
  }
});
addEventListener("hashchange", U.show);
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
});  // left before it was answered

(async () => {
  const data = document.getElementById("data");
  if (data) {  // an exported file: all answers are inside
    const bytes = Uint8Array.from(atob(data.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    U.answers = await new Response(stream).json();
    U.home = "run";
    if (!location.hash) history.replaceState(null, "", U.link("run", {run: U.answers.run}));
  }
  await U.show();
  (window.requestIdleCallback || setTimeout)(() => U.plotly().catch(() => {}));  // before a plot is asked for
})();
