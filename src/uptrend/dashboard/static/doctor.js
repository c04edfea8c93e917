"use strict";
// Findings: of a run, and of a log that is dropped on the page.
U.finding = (finding, told, board) => {
  const {run, curves} = told;
  const plots = h("div.plots");
  const metrics = [...new Set(["reward/mean", ...finding.evidence.map((one) => one.metric)].filter((key) => key && curves?.curves[key]))].slice(0, 4);
  for (const key of metrics) {
    const at = finding.evidence.filter((one) => (one.metric === key || key === "reward/mean") && (one.step ?? null) !== null)
                 .map((one) => ({x: one.step, kind: "finding"}));
    const curve = curves.curves[key];
    plots.append(
      U.plot(board, () => ({
         title: key,
         lines: [{name: key, x: curves.step, y: curve.mean, low: curve.low, high: curve.high, smooth: Math.floor(curves.step.length / 15)}],
         markers: at.slice(0, 8)
       }),
         {id: key, name: key, size: "low"})
        .el);
  }
  const rollout = (name) => {
    const [step, ...rest] = name.split("/");
    const index = rest.pop();
    return run && rest.length ? h("a", {href: U.link("rollout", {run, step, group: rest.join("/"), index, view: "tokens"})}, name) : name;
  };
  const page = h("div.prose");
  const read = h("details", {
    ontoggle: async () => {
      if (!read.open || page.childNodes.length) return;
      try {
        page.append(...U.prose((await U.api("cause", {id: finding.id})).page).flat(9));
      } catch (error) { page.append(U.error(error)); }
    }
  },
    h("summary", `All about ${finding.id}`), page);
  const arms = Object.entries(finding.experiment?.arms || {});
  const changes = (keys) => Object.entries(keys).map(([key, value]) => `${key} = ${U.setting(value)}`).join(", ") || "unchanged";
  const evidence = finding.evidence.slice(0, 8).map((one) => {
    const near = (one.step ?? null) !== null && run && U.link("run", {run, first: Math.max(0, one.step - 20), last: one.step + 20});
    return h("li", ...U.say(one.text), " ", near ? h("a.small", {href: near}, `step ${one.step} `) : null,
      one.rollout ? h("span.small", rollout(one.rollout)) : null);
  });
  const inForce = Object.keys(finding.fix?.in_force || {}).length ? changes(finding.fix.in_force) : "";
  const fix = finding.fix &&
    h("div.fix", h("b", "Fix. "), ...U.say(finding.fix.sentence),
      finding.settings.map((one) => [h("div.label", one.trainer), U.command(one.line)]),
      inForce && !finding.fix.sentence.includes(inForce) ? h("p.small.soft", `In force already: ${inForce}`) : null);
  const experiment = finding.experiment && [
    h("p", ...U.say(finding.experiment.claim)),
    arms.length ? U.table(["arm", "changes"], arms.map(([name, keys]) => [name, h("code", changes(keys))])) : null,
    finding.command ? [h("p.label", arms.length ? "Make this a hypothesis" : "Settle it without training"), U.command(finding.command)] : null
  ];
  const rivals = finding.rivals.map((rival) => h("li", h("b", rival.id), ": ", ...U.say(rival.tells_apart)));
  const open = finding.severity === "critical", sure = `${finding.confidence} confidence, ${finding.basis}`;
  return h("article", {class: `finding ${finding.severity}`, id: `finding-${finding.id}`},
    h("h2", U.badge(finding.severity, finding.severity), h("span", finding.id), h("span.soft.small", sure)), h("p", ...U.say(finding.summary)),
    evidence.length ? h("ul", evidence) : null, plots.childNodes.length ? plots : null,
    finding.explains.length ? h("p.small", "Explains: ", finding.explains.map((one) => one.id).join(", ")) : null, fix,
    rivals.length || experiment ? h("details", {open}, h("summary", "Rivals, and the experiment that decides"), h("ul", rivals), experiment) : null,
    finding.measured ? h("p.small.soft", ...U.say(finding.measured)) : null, U.answers || !finding.known ? null : read);
};
// Causes that remain for a run that does not learn, and the test that splits them.
U.differential = (differential) => {
  const share = (probability) => `${Math.round(100 * probability)}%`;
  const of = (standing) => differential.suspects.filter((suspect) => suspect.standing === standing);
  const remaining = [...of("supported"), ...of("possible")], excluded = of("excluded");
  const table = (suspects) => U.table(["cause", "standing", "probability", "evidence"],
    suspects.map((suspect) => [suspect.id, suspect.standing, share(suspect.probability), h("span", ...U.say(suspect.evidence.join(" ")))]));
  const cost = (step) => `${U.plural(step.steps, "step")}${step.seconds ? `, about ${U.duration(step.seconds)}` : ""}`;
  const rest = [...remaining.slice(5), ...excluded];
  return h("article.finding.differential", h("h2", "What remains"), table(remaining.slice(0, 5)),
    rest.length ? h("details", h("summary", `${U.plural(rest.length, "cause")} more, of which ${excluded.length} are excluded`), table(rest)) : null,
    h("p.small.soft", `${share(differential.elsewhere)}: none of them, or no fault.`),
    differential.next_steps.slice(0, 3).map((step, place) =>
      [h("p.label", place ? "Then" : "Next"), h("p", ...U.say(step.sentence), ` Cost: ${cost(step)}.`), U.command(step.command)]));
};
U.report = (report, told, board) => [h("div.card", U.trend(report)),
  ...(report.findings.length ? report.findings.map((finding) => U.finding(finding, told, board))
                             : [U.state(report.trend === "learning" ? "Nothing that asks for a change." : "Nothing was found.")]),
  report.differential ? U.differential(report.differential) : null,
  report.normal?.length ? h("div.card.normal", h("b", "Normal here"),
                            h("ul", report.normal.map((sign) => h("li", ...U.say(sign.text), " ", h("span.soft", ...U.say(sign.otherwise))))))
                        : null,
  report.missing?.length ? h("details", h("summary", "Evidence that it lacks"), h("ul", report.missing.map((line) => h("li", ...U.say(line)))))
                         : null,
  report.cannot_tell?.length ? h("details", h("summary", `Cannot tell: ${U.plural(report.cannot_tell.length, "cause")}`),
                                 U.table(["cause", "needs"], report.cannot_tell.map((one) => [one.id, ...[U.name(one.needs)]])))
                             : null,
  report.unknown?.length ? h("p.small.soft", `Columns not known: ${report.unknown.join(", ")}`) : null];

U.pages.findings = async ({run, finding}, current) => {
  const told = await U.api("run", {run});
  if (told.error) throw new Error(told.error);
  const keys = [...new Set((told.report?.findings || []).flatMap((one) => ["reward/mean", ...one.evidence.map((e) => e.metric)]).filter(Boolean))];
  const curves = keys.length ? await U.api("curves", {run, keys: keys.join(",")}) : null;
  const board = U.board();
  U.redraw.push(() => board.plots.forEach((plot) => plot.update()));
  if (!told.report) U.live(run, () => current() && U.show());
  return {
    title: `Findings of ${told.row.name}`,
    el: [U.head(told, "findings"), told.report ? U.report(told.report, {run, curves}, board) : U.state("The doctor is looking at it …")],
    after: async () => {
      await U.drawn(board);
      if (finding) document.getElementById(`finding-${finding}`)?.scrollIntoView();
    }
  };
};

U.pages.doctor = async (params, current) => {
  const out = h("div"), said = h("p.soft", {role: "status"});
  const take = async (file) => {
    if (!file) return;
    U.put(said, `Reading ${file.name} …`);
    out.replaceChildren();
    document.body.dataset.ready = "";
    try {
      const response = await fetch(
        `/api/doctor?${new URLSearchParams({name: file.name})}`, {method: "POST", body: file, headers: {"Content-Type": "application/octet-stream"}});
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error);
      if (!current()) return;
      said.textContent = "";
      for (const one of answer.runs) {
        const board = U.board(), reward = one.curves.curves["reward/mean"];
        const plot = reward && one.curves.step.length > 1 &&
          U.plot(board, () => ({
            title: "Training reward",
            lines: [{
              name: "reward/mean",
              x: one.curves.step,
              y: reward.mean,
              low: reward.low,
              high: reward.high,
              smooth: Math.floor(one.curves.step.length / 15)
            }]
          }),
            {id: "reward", name: "Training reward"});
        U.redraw.push(() => board.plots.forEach((each) => each.update()));
        out.append(h("h2", {style: {"margin-top": "18px"}}, U.name(one.name), " ", U.badge("note", one.trainer)),
          ...[plot ? h("div.plots", plot.el) : null, ...U.report(one.report, {run: null, curves: one.curves}, board)].filter(Boolean),
          ...one.notes.map((note) => h("p.small.soft", "read: ", ...U.say(note))));
        await U.drawn(board);
      }
    } catch (error) {
      said.textContent = "";
      out.replaceChildren(U.error(error));
    }
    document.body.dataset.ready = "doctor";
  };
  const input = h("input", {type: "file", class: "sr", id: "log", onchange: () => take(input.files[0])});
  const drop = h("label.drop",
    { for: "log", style: { display: "block" }, ondragover: (e) => {
        e.preventDefault();
        drop.classList.add("over"); }, ondragleave: () => drop.classList.remove("over"),
    ondrop: (e) => {
        e.preventDefault();
        drop.classList.remove("over");
        take(e.dataTransfer.files[0]); }
    },
    h("b", "Drop a log here, or choose a file"), h("br"),
    "trainer_state.json, a console log, JSON lines, CSV, TensorBoard events, a .wandb file; TRL, verl, prime-rl, verifiers, tinker", h("br"),
    h("span.small", "It is read on this machine and not kept."));
  const paste = h("textarea.paste", {id: "paste", rows: 6, spellcheck: "false", "aria-label": "Lines that a trainer printed",
    placeholder: "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0, …}", onkeydown: (e) => {
        if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) send(); }
  });
  const send = () => paste.value.trim() && take(new File([paste.value], "pasted text"));
  const worst = await U.api("runs", {sort: "-findings", limit: 30, filter: "critical>=0"});
  return {
    title: "Doctor",
    el: [
      h("h1", "Doctor"), h("p.soft", "Why a run does not learn: causes in order, with evidence, rivals, the deciding experiment and the fix."), drop,
      input, h("p.soft", {style: {"margin-top": "14px"}}, "Or paste lines that a trainer printed, a table or W&B's summary; one line is enough where it proves something."),
      paste, h("p", h("button", {id: "diagnose", onclick: send}, "Diagnose")), said, out, U.title("Runs here"),
      worst.rows.length ? U.table(["run", "trend", "findings", "first"],
                            worst.rows.map((row) => [h("a", {href: U.link("findings", {run: row.id})}, U.name(row.name)), row.headline,
                                             U.counts(row.findings) || "", row.finding ? U.name(row.finding) : ""]))
                        : U.state("No run here was judged yet.")
    ]
  };
};
