"use strict";
// Rollouts: a step's groups, lists by task and text, a group side by side, and one rollout as talk or as tokens.
const where = (row, run) =>
  ({run, step: row.step, group: row.group, index: row.index, nth: row.nth || "", heldout: row.heldout ? "true" : "", label: row.label});
const rewardChip = (row, run, here) => {
  const mark = row.correct === null ? "" : row.correct ? "yes" : "no", title = `${row.ended}, advantage ${U.number(row.advantage)}`;
  return h("a", {class: `chip ${mark} ${here ? "here" : ""}`, title, href: U.link("rollout", where(row, run))}, U.number(row.reward));
};
const asked = (row, run, width) => h("div.question.small", {style: {"max-width": width}}, ...U.say(row.question), " ",
  row.task ? h("a.nowrap", {href: U.link("rollouts", {run, task: row.task, heldout: row.heldout ? "true" : ""})}, "follow") : null);
const signed = (value) => value === null || value === undefined ? "–" : value > 0 ? `+${U.number(value)}` : U.number(value);
const ORDERS =
  [["-reward", "best first"], ["reward", "worst first"], ["-advantage", "largest advantage"], ["-tokens", "longest"], ["-seconds", "slowest"]];
const ENDINGS = ["stop-token", "stop-text", "length", "turn-limit", "time-limit", "context-full", "tool-error", "task-error"];

U.pages.rollouts = async (params, current) => {
  const run = params.run;
  const [told, kept] = await Promise.all([U.api("run", {run}), U.api("steps", {run})]);
  if (told.error) throw new Error(told.error);
  const heldout = params.heldout === "true", steps = heldout ? kept.evals : kept.steps;
  const filters = ["task", "ended", "tool", "correct", "low", "high", "text"].filter((key) => params[key]);
  // Without a filter one step is shown; a filter looks through all of them, unless a step is named too.
  const step = params.step !== undefined && params.step !== "" ? +params.step : filters.length ? null : steps.at(-1) ?? null;
  const set = (changes) => U.go("rollouts", {...U.route().params, offset: "", ...changes});
  const near = (way) => {
    const at = steps.indexOf(step ?? steps.at(-1));
    const next = steps[at + way];
    if (next !== undefined) set({step: next});
  };
  U.keys = {"[": () => near(-1), "]": () => near(1), "/": () => text.focus()};
  const field = (name, label, attrs) =>
    h("input", {placeholder: label, "aria-label": label, value: params[name] || "", onchange: (e) => set({[name]: e.target.value}), ...attrs});
  const text = field("text", "Search what was said, then Enter", {type: "search"}), narrow = {style: {width: "8.5em"}},
        number = {type: "number", step: "any", ...narrow};
  const choose = (name, values, label) => {
    const box = h("select", {"aria-label": label, onchange: () => set({[name]: box.value})}, h("option", {value: ""}, label),
      values.map((one) => h("option", {value: one[0]}, one[1])));
    box.value = params[name] || "";
    return box;
  };
  const slider = h("input", {
    type: "range",
    min: 0,
    max: Math.max(0, steps.length - 1),
    value: Math.max(0, steps.indexOf(step ?? steps.at(-1))),
    "aria-label": "Step",
    style: {flex: "1 1 120px"},
    onchange: () => set({step: steps[+slider.value]})
  });
  const button = (title, onclick, attrs) => h("button", {onclick, ...attrs}, title);
  const bar = h("div",
    h("div.toolbar", button("Training", () => set({heldout: "", step: "", label: ""}), {"aria-pressed": String(!heldout)}),
      button("Held-out", () => set({heldout: "true", step: ""}), {"aria-pressed": String(heldout), disabled: !kept.evals.length}),
      kept.sets.length && heldout ? choose("label", kept.sets.map((name) => [name, name]), "main set") : null,
      button("‹", () => near(-1), {"aria-label": "Previous step", title: "["}), slider,
      button("›", () => near(1), {"aria-label": "Next step", title: "]"}), h("span.nowrap", step === null ? "all steps" : `step ${U.number(step)}`),
      step !== null && filters.length ? button("All steps", () => set({step: ""})) : null),
    h("div.toolbar", text, choose("ended", ENDINGS.map((name) => [name, name]), "any ending"),
      choose("correct", [["true", "right"], ["false", "wrong"]], "right or wrong"), field("low", "reward from", number), field("high", "to", number),
      field("tool", "tool", narrow), choose("sort", ORDERS, "in order"),
      filters.length ? button("Clear", () => U.go("rollouts", {run, heldout: params.heldout})) : null));
  const list = h("div"), said = h("p.soft.small", {role: "status"});
  const el = [U.head(told, "rollouts"), bar, params.task ? h("p", "Task ", h("code", params.task), ` followed down the steps. `) : null, said, list];
  if (!steps.length)
    return {title: "Rollouts", el: [el[0], U.state(told.row.kind === "log" ? "This log holds no rollouts." : "No rollouts were recorded yet.")]};
  const query =
    {run, heldout: heldout ? "true" : "", label: params.label, step, sort: params.sort, ...Object.fromEntries(filters.map((key) => [key, params[key]]))};
  const offset = +(params.offset || 0);
  const flat = (rows) => U.table(["rollout", "task", "reward", "advantage", "ended", "tokens", "turns", "said"],
    rows.map((row) => [h("a.nowrap", {href: U.link("rollout", where(row, run))}, `${row.step} / ${row.group.split("-").at(-1)} / ${row.index}`),
               asked(row, run, "260px"), rewardChip(row, run), signed(row.advantage), row.ended, U.number(row.tokens), U.number(row.turns),
               h("div.question.small", {style: {"max-width": "420px"}}, ...U.say(row.error || row.text),
                 row.tools ? h("span.soft", ` [${row.tools}]`) : "")]),
    {csv: "rollouts"});
  const grouped = (rows) => {
    const groups = rows.reduce((map, row) => map.set(row.group, [...(map.get(row.group) || []), row]), new Map());
    return U.table(["group", "task", "mean", "rewards", ""], [...groups].map(([name, members]) => {
      const rewards = members.map((row) => row.reward).filter((reward) => reward !== null), first = members[0];
      const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
      return [
        h("a", {href: U.link("group", {...where(first, run), index: "", nth: ""})}, name.split("-").at(-1)), asked(first, run, "340px"),
        U.number(mean), h("div.chips", members.map((row) => rewardChip(row, run))),
        [
          rewards.length > 1 && new Set(rewards).size === 1 ? U.badge("warning", "dead") : null,
          first.kept === 0 ? U.badge("note", "not learned from") : null
        ]
      ];
    }),
      {csv: "groups"});
  };
  const load = async () => {
    const byGroup = step !== null && !filters.length && !params.sort && !heldout;
    const ask = (more) => U.api("rollouts", {...query, ...more});
    let answer = step === null ? await ask({limit: 0, text: ""}) : null;
    while (answer && answer.indexed < answer.steps && current()) {  // a long run is read in pieces
      said.textContent = `Reading steps: ${U.number(answer.indexed)} of ${U.number(answer.steps)} …`;
      answer = await ask({limit: 0, text: ""});
    }
    answer = await ask({limit: byGroup ? 1000 : 100, offset});
    while (answer.next && answer.rollouts.length < 50 && current()) {  // and so is a search answered
      said.textContent = `Searched ${U.number(answer.next)} rollouts, ${answer.rollouts.length} found …`;
      const more = await ask({limit: 100, offset: answer.next});
      answer = {...more, rollouts: [...answer.rollouts, ...more.rollouts]};
    }
    if (!current()) return;
    answer.rollouts.forEach((row) => { row.label = params.label; });
    const count = answer.rollouts.length, next = answer.next ?? (answer.total > offset + count ? offset + count : null);
    said.textContent = (answer.total === null ? `${U.number(count)} found${answer.next ? " so far" : ""}` : U.plural(answer.total, "rollout")) +
      (U.answers ? " in this file, which holds a selection" : "");
    U.put(list, count ? (byGroup ? grouped(answer.rollouts) : flat(answer.rollouts)) : U.state("No rollout meets this."));
    if (next !== null || offset)
      list.append(h("div.toolbar", offset ? button("From the start", () => set({offset: ""})) : "",
        next !== null ? button(answer.next ? "Search on" : "Next", () => set({offset: next})) : ""));
  };
  await load();
  if (told.row.status === "running")
    U.live(run, async () => {
      const now = await U.api("steps", {run});
      if (current() && now.steps.length !== kept.steps.length && !params.step && !filters.length) U.show();
    });
  return {title: `Rollouts of ${told.row.name}`, el};
};

const speech = (message, label, more) => {
  const cut = message.length > message.content.length;
  return h("section", {class: `said ${message.role}`},
    h("div.label", h("b", label || message.role), cut ? h("span", `${U.number(message.length)} characters`) : null), ...U.say(message.content),
    cut ? h("div", more ? h("button", {onclick: () => more(message.length)}, `Show ${message.length > 2e6 ? "2,000,000 characters" : "all"}`) : "…")
        : null,
    (message.calls || [])
      .map((call) => h("div.call", h("b", ...U.say(call.name)), " ",
             h("code", ...U.say(typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments))))),
    message.problem ? h("div.error", ...U.say(message.problem)) : null);
};
const talk = (rollout, more) => h("div.talk", rollout.prompt.map((message) => speech(message, null, more)),
  rollout.turns.map((turn, i) => [speech(turn.message, rollout.turns.length > 1 ? `assistant, turn ${i}` : "assistant", more),
                      turn.replies.map((reply) => speech(reply, null, more)),
                      turn.commands.map((one) => h("section.said.tool",
                                          h("div.label", h("b", "command"),
                                            `${U.duration(one.seconds)}, exit ${one.code}${one.stopped ? `, stopped by ${one.stopped}` : ""}${
                                              one.score === null ? "" : `, score ${U.number(one.score)}`}`),
                                          h("code", ...U.say(one.command)), one.said ? h("pre", ...U.say(one.said)) : null))]));
const facts = (rollout) => h("div.row",
  h("span", "reward ", h("b", U.number(rollout.reward)),
    (rollout.reward_low ?? null) !== null ? h("span.soft", ` of ${U.number(rollout.reward_low)} to ${U.number(rollout.reward_high)}`) : ""),
  rollout.correct === null ? null : U.badge(rollout.correct ? "good" : "critical", rollout.correct ? "right" : "wrong"),
  (rollout.parts || [])
    .map((part) => h("span.soft.small", U.name(part.name), ` ${U.number(part.value)}${part.weight === 1 ? "" : ` × ${U.number(part.weight)}`}`)),
  h("span.soft.small", `ended by ${rollout.ended}`), rollout.seconds === null ? null : h("span.soft.small", U.duration(rollout.seconds)),
  rollout.answer ? h("span.soft.small", "gold answer ", U.name(rollout.answer.slice(0, 200))) : null,
  rollout.kept === false ? U.badge("note", "not learned from") : null);

// Colorings of tokens: a function from a token to a background, and the legend.
const ROLES = ["prompt", "model", "tool"];
const tint = (name, share) => `rgb(${U.css(`--${name}`)} / ${(0.7 * Math.max(0, Math.min(0.85, share))).toFixed(3)})`;
const largest = (values, least) => values.reduce((top, v) => Math.max(top, Math.abs(v ?? 0)), least);
const around = (title, values, key, least, unit) => ({
  // blue above 0, orange below
  title,
  make: (s) => {
    const top = largest(values(s), least);
    return (t) => t[key] === null ? "" : tint(t[key] < 0 ? "hot" : "cold", (0.85 * Math.abs(t[key])) / top);
  },
  legend: (s) => [
    [tint("hot", 0.85), `−${U.number(largest(values(s), least))}${unit}`], ["", "0"], [tint("cold", 0.85), `+${U.number(largest(values(s), least))}`]]
});
const MODES = {
  role: {title: "role", make: () => (t) => U.css(`--${ROLES[t.role]}`), legend: () => ROLES.map((role) => [U.css(`--${role}`), role])},
  weight: {
    title: "loss weight",
    make: (s) => {
      const top = largest(s.weights, 1e-12);
      return (t) => t.weight ? tint("cold", 0.25 + (0.6 * Math.abs(t.weight)) / top) : "";
    },
    legend: () => [["", "0: not trained"], [tint("cold", 0.8), "trained"]]
  },
  attention: {
    title: "attention",
    make: () => (t) => t.attended === false ? "" : U.css("--panel"),
    legend: () => [[U.css("--panel"), "seen"], ["blind", "hidden from attention"]]
  },
  sampler: {
    title: "sampler log-probability",
    make: () => (t) => t.sampler === null || t.sampler === undefined ? "" : tint("hot", -t.sampler / 6),
    legend: () => [[tint("hot", 0.05), "0: sure"], [tint("hot", 0.85), "−6: surprising"]]
  },
  gap:
    around("learner − sampler", (s) => s.learner.map((v, i) => v === null || s.sampler[i] === null ? null : v - s.sampler[i]), "gap", 0.02, " nats"),
  advantage: around("advantage", (s) => s.advantages, "advantage", 1e-12, "")
};
const FIELDS = {
  text: "texts",
  role: "roles",
  turn: "turns",
  version: "versions",
  weight: "weights",
  attended: "attended",
  advantage: "advantages",
  sampler: "sampler",
  learner: "learner",
  reference: "reference"
};
const tokensOf = (s) => s.ids.map((id, i) => {
  const token = {id, gap: null};
  for (const [name, column] of Object.entries(FIELDS)) token[name] = s[column]?.[i] ?? null;
  if (token.sampler !== null && token.learner !== null) token.gap = token.learner - token.sampler;
  return token;
});
const tokenTip = (t) => [`${t.text === null ? "" : JSON.stringify(t.text) + "  "}id ${t.id}`,
  `${ROLES[t.role] ?? "?"}, turn ${t.turn}${t.version === null ? "" : `, version ${t.version}`}`,
  `loss weight ${t.weight === null ? "–" : U.number(t.weight)}, ${
    t.attended === null ? "attention –"
      : t.attended      ? "seen"
                        : "HIDDEN from attention"}`,
  `advantage ${signed(t.advantage)}`, `sampler ${U.number(t.sampler)}  learner ${U.number(t.learner)}${t.gap === null ? "" : `  (${signed(t.gap)})`}`,
  t.reference === null ? "" : `reference ${U.number(t.reference)}`]
                          .filter(Boolean)
                          .join("\n");
// What no healthy run has: trained tokens that the model did not write, and tokens that attention can't see.
const wrong = (t) => (t.weight && t.role !== 1) || t.attended === false;
const sequence = (s, mode, more) => {
  const list = tokensOf(s), color = MODES[mode].make(s);
  const spans = list.map((t, i) => {
    const shown = t.text === null ? `${t.id} ` : t.text === "" ? "·" : t.text;
    const back = color(t);
    return h("span", {
      class: `t${t.weight ? " trained" : ""}${t.attended === false ? " blind" : ""}${wrong(t) ? " wrong" : ""}${
        i && t.turn !== list[i - 1].turn ? " turn" : ""}`,
      "data-role": ROLES[t.role],
      "data-at": i,
      tabindex: i ? -1 : 0,
      style: back ? {"background-color": back} : {}
    },
      ...U.say(shown).map((part) => typeof part === "string" ? part.replace(/\n/g, "⏎\n") : part));
  });
  const box = h("div.tokens", {role: "group", "aria-label": `Tokens by ${MODES[mode].title}`}, spans);
  const over = (event) => {
    const el = event.target.closest?.(".t");
    U.tip({target: el}, el ? tokenTip(list[+el.dataset.at]) : "");
  };
  box.addEventListener("mouseover", over);
  box.addEventListener("focusin", over);
  box.addEventListener("mouseleave", () => U.tip(null, ""));
  box.addEventListener("focusout", () => U.tip(null, ""));
  box.addEventListener("keydown", (event) => {
    const way = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20}[event.key], at = event.target.dataset.at;
    if (!way || at === undefined) return;
    event.preventDefault();
    spans[Math.max(0, Math.min(spans.length - 1, +at + way))].focus();
  });
  const flag = (bad, text) => bad ? h("span.badge.critical", text) : text;
  const counts = U.table(["role", "tokens", "trained", "hidden from attention"],
    s.counts.map((one) => [h("span", h("span.swatch", {style: {background: `var(--${one.role})`}}), one.role), U.number(one.tokens),
                   one.trained === null ? "–" : flag(one.trained > 0 && one.role !== "model", U.number(one.trained)),
                   one.hidden === null ? "–" : flag(one.hidden > 0, U.number(one.hidden))]),
    {class: "counts"});
  const faults =
    s.counts
      .flatMap(
        (one) => [one.trained > 0 && one.role !== "model" ? `${U.plural(one.trained, `${one.role} token`)} trained: the loss mask is wrong.` : "",
          one.hidden > 0 ? `Attention can't see ${U.plural(one.hidden, `${one.role} token`)}: the learner is blind to ${
                             one.role === "prompt" ? "the question" : "them"}.`
                         : ""])
      .filter(Boolean);
  const legend = h("div.keys",
    MODES[mode].legend(s).map(([back, name]) => h("span", h("span", {
      class: `swatch ${back === "blind" ? "t blind" : ""}`,
      style: back && back !== "blind" ? {background: back} : {border: "1px solid var(--line)"}
    }),
                                name)),
    h("span", h("span.swatch.t.trained"), "underlined: trained"), h("span", h("span.swatch.t.blind"), "hatched: hidden"),
    h("span", h("span.swatch.t.wrong"), "framed: wrong"));
  return [
    faults.length ? h("div.error.fault", faults.map((fault) => h("div", h("b", fault)))) : null, counts, legend, box,
    s.length > list.length ? h("p", h("button", {onclick: more}, `Show all ${U.number(s.length)} tokens`)) : null
  ];
};

U.pages.rollout = async (params, current) => {
  const {run, step, group, index} = params;
  const name = {run, heldout: params.heldout, label: params.label, step, group, index, nth: params.nth || 0};
  const [told, mates] = await Promise.all([
    U.api("rollout", {...name, characters: params.characters, tokens: params.tokens}),
    U.api("rollouts", {run, heldout: params.heldout, label: params.label, step, group, limit: 200}).catch(() => ({rollouts: []}))
  ]);
  const {row, rollout} = told;
  let view = params.view || "talk", mode = MODES[params.color] ? params.color : "role";
  const body = h("div"), buttons = h("div.toolbar");
  const more = (characters) => {
    U.keep({characters: Math.min(characters, 2e6)});
    U.show();
  };
  const draw = () => {
    U.keep({view: view === "talk" ? "" : view, color: mode === "role" ? "" : mode});
    const choice = (title, pressed, set) => h("button", {
      "aria-pressed": String(pressed),
      onclick: () => {
        set();
        draw();
      }
    },
      title);
    const modes = Object.entries(MODES).map(([key, one]) => choice(one.title, mode === key, () => { mode = key; }));
    U.put(buttons, choice("Conversation", view === "talk", () => { view = "talk"; }), choice("Tokens", view === "tokens", () => { view = "tokens"; }),
      view === "tokens" ? [h("span.soft.small", "colored by"), modes] : null);
    if (view === "talk") return U.put(body, talk(rollout, more));
    const all = () => {
      U.keep({tokens: 1000000});
      U.show();
    }, several = rollout.sequences.length > 1;
    const ids = rollout.has_text ? null : h("p.soft.small", "Tokens are ids: neither the run's checkpoints nor its model here have a tokenizer.");
    const drawn = rollout.sequences.map((s, i) => [several ? h("h3", `Sequence ${i + 1}`) : null, sequence(s, mode, all)]);
    U.put(body, drawn.length ? [drawn, ids] : U.state("Its tokens were not kept."));
  };
  const place = mates.rollouts.findIndex((one) => one.index === +index && one.nth === +(params.nth || 0));
  const near = (way) => {
    const next = mates.rollouts[place + way];
    if (next) U.go("rollout", {...U.route().params, index: next.index, nth: next.nth || ""});
  };
  U.keys = {
    "[": () => near(-1),
    "]": () => near(1),
    v: () => {
      view = view === "talk" ? "tokens" : "talk";
      draw();
    },
    m: () => {
      view = "tokens";
      const all = Object.keys(MODES);
      mode = all[(all.indexOf(mode) + 1) % all.length];
      draw();
    }
  };
  U.redraw.push(draw);
  draw();
  return {
    title: `Rollout ${step}/${group}/${index}`,
    el: [
      U.crumbs(...(U.answers ? [] : [h("a", {href: U.link("runs")}, "Runs")]), h("a", {href: U.link("run", {run})}, U.name(row.name || run)),
        h("a", {href: U.link("rollouts", {run, step, heldout: params.heldout, label: params.label})}, `${params.heldout ? "evaluation after " : ""}step ${step}`),
        h("a", {href: U.link("group", {run, step, group, heldout: params.heldout, label: params.label})}, U.name(group)), index),
      h("div.row", h("h1", `Rollout ${index}`), facts(rollout),
        rollout.task ? h("a.small", {href: U.link("rollouts", {run, task: rollout.task, heldout: params.heldout})}, "follow this task") : null),
      rollout.error ? U.error(rollout.error) : null,
      mates.rollouts.length > 1
        ? h("div.row", h("span.soft.small", "Its group:"),
            h("div.chips", mates.rollouts.slice(0, 64).map((one, i) => rewardChip({...one, label: params.label}, run, i === place))),
            h("a.small", {href: U.link("group", {run, step, group, heldout: params.heldout, label: params.label})}, "side by side"))
        : null,
      buttons, body
    ]
  };
};

U.pages.group = async ({run, step, group, heldout, label}) => {
  const list = await U.api("rollouts", {run, step, group, heldout, label, limit: 64});
  const all = await Promise.all(
    list.rollouts.map((one) => U.api("rollout", {run, heldout, label, step, group, index: one.index, nth: one.nth || 0, characters: 4000, tokens: 0})));
  if (!all.length) throw new Error(`Step ${step} has no group ${group}.`);
  const shared = all[0].rollout.prompt;
  return {
    title: `Group ${group}`,
    el: [
      U.crumbs(...(U.answers ? [] : [h("a", {href: U.link("runs")}, "Runs")]), h("a", {href: U.link("run", {run})}, U.name(all[0].row.name || run)),
        h("a", {href: U.link("rollouts", {run, step, heldout, label})}, `step ${step}`), U.name(group)),
      h("h1", `Group of ${all.length}`), h("div.talk", {style: {margin: "10px 0"}}, shared.map((message) => speech(message))),
      h("div.side",
        all.map(({rollout}, i) => h("section.card",
                  h("div.row", rewardChip({...list.rollouts[i], label}, run), h("span.soft.small", `advantage ${signed(list.rollouts[i].advantage)}`),
                    h("span.soft.small", `${U.plural(list.rollouts[i].tokens, "token")}, ${rollout.ended}`)),
                  talk({...rollout, prompt: []}))))
    ]
  };
};
