"use strict";
// Plots: one description for all of them, drawn by plotly when they come into view. They share cursor and zoom.
const COLOR_OF = {
  finding: "--bad",
  probed: "--bad",
  failed: "--bad",
  stopped: "--warn",
  resumed: "--warn"
};
// Percent with as many digits as a tick needs: a fixed number of them repeats labels where a curve hardly moves.
const SHARE = ",.12~p";
U.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
U.color = (place) => U.css(`--c${place % 6}`);
U.dash = (place) => ["solid", "dash", "dot", "dashdot"][Math.floor(place / 6) % 4];

// plotly's script, fetched and run once what is there to see has been drawn.
U.plotly = () => (U.loading ||= new Promise((done, failed) => {
  if (window.Plotly) return done(window.Plotly);
  const lost = () => {
    U.loading = null;
    failed(new Error("The plots' script did not load."));
  };
  const script = h("script", {src: document.body.dataset.plotly, onload: () => done(window.Plotly), onerror: lost});
  // Running it holds the page up for about a second: not before the page is drawn and can be read.
  const start = () => document.body.dataset.ready ? setTimeout(() => document.head.append(script), 150) : setTimeout(start, 30);
  start();
}));
// plotly reads some HTML in texts: none of ours may be read so.
const plain = (text) => U.visible(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const faint = (color, alpha) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
};
// The mean of each value with its neighbors; gaps stay gaps.
U.smooth = (values, width) => {
  if (width < 2) return values;
  const half = Math.floor(width / 2);
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((v) => v !== null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
};

// Labels of ticks, with as many digits as tell them apart.
U.ticks = (values, share) => {
  let labels = [];
  for (let digits = 1; digits < 15 && new Set(labels).size < values.length; digits += 1) {
    labels = values.map((value) => share ? U.percent(value, digits) : digits === 1 ? U.number(value) : MINUS(String(+value.toPrecision(digits + 2))));
  }
  return labels;
};
// A plain drawing at once, in the place where plotly will draw: its script takes about a second to run.
const sketch = (told, canvas) => {
  const [wide, high] = [canvas.clientWidth || 380, canvas.clientHeight || 210], [left, right, top, bottom] = [44, 12, 8, 36];
  const lines = told.stack
    ? told.lines.map((line, i) => ({...line, y: line.y.map((_, at) => told.lines.slice(0, i + 1).reduce((sum, one) => sum + (one.y[at] || 0), 0))}))
    : told.lines;
  const scale = (value) => told.log ? (value > 0 ? Math.log10(value) : null) : value;
  const xs = lines.flatMap((line) => line.x),
        ys = lines.flatMap((line) => [...line.y, ...(line.high || []), ...(line.low || [])])
               .map((y) => y === null ? null : scale(y))
               .filter((y) => y !== null);
  if (!xs.length || !ys.length) return;
  const [[x0, x1], [y0, y1]] = [U.range(xs), U.range(ys)];
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (wide - left - right),
        py = (y) => high - bottom - ((y - y0) / (y1 - y0 || 1)) * (high - top - bottom);
  const path = (x, y) => {
    let pen = "M";  // up again after a gap
    return x
      .map((one, i) => {
        const value = y[i] === null ? null : scale(y[i]), move = pen;
        pen = value === null ? "M" : "L";
        return value === null ? "" : `${move}${px(one).toFixed(1)} ${py(value).toFixed(1)}`;
      })
      .join("");
  };
  const stroke = (line, y, width, opacity) =>
    h("path", {d: path(line.x, y), fill: "none", stroke: U.color(line.place || 0), "stroke-width": width, opacity});
  const word = (x, y, text, anchor) => h("text", {x, y, "text-anchor": anchor, "font-size": 11, fill: "currentColor", class: "soft"}, text);
  const heights = [...new Set([y0, y1])], sides = [...new Set([x0, x1])];
  const named = U.ticks(heights.map((y) => told.log ? 10 ** y : y), told.unit === "share"), places = U.ticks(sides);
  U.put(canvas,
    h("svg", {width: wide, height: high, role: "img", "aria-label": told.title},
      heights.map(
        (y, i) => [h("line", {x1: left, x2: wide - right, y1: py(y), y2: py(y), stroke: U.css("--line")}), word(left - 4, py(y) + 4, named[i], "end")]),
      sides.map((x, i) => word(px(x), high - bottom + 16, places[i], i ? "end" : "start")), lines.map((line) => {
        const smooth = line.smooth > 1 ? U.smooth(line.y, line.smooth) : null;
        return [
          smooth && !line.light ? stroke(line, line.y, 1, 0.3) : null,
          line.only ? null : stroke(line, smooth || line.y, line.thin || line.light ? 1 : 2, line.thin ? 0.35 : 1)
        ];
      })));
};

// A board of plots with one cursor and one zoom. `onzoom` hears of the range, or null for all of it.
U.board = (onzoom) => {
  const board = {plots: [], range: null};
  let leader = null;  // the plot under the mouse: what others show because of it must not lead in turn
  board.hover = (from, x) => {
    if (leader && leader !== from) return;
    leader = from;
    for (const plot of board.plots) {
      if (plot === from || !plot.drawn || !plot.shown) continue;
      if (x === null) Plotly.Fx.unhover(plot.canvas);
      else Plotly.Fx.hover(plot.canvas, [{curveNumber: plot.main, pointNumber: nearest(plot.xs, x)}]);
    }
    if (x === null) leader = null;
  };
  board.zoom = (from, range) => {
    board.range = range;
    for (const plot of board.plots) {
      if (plot === from || !plot.drawn) continue;
      plot.quiet = true;
      Plotly.relayout(plot.canvas, range ? {"xaxis.range": range.slice(), "xaxis.autorange": false} : {"xaxis.autorange": true})
        .finally(() => { plot.quiet = false; });
    }
    onzoom?.(range);
  };
  return board;
};
const nearest = (xs, x) => {
  let best = 0;
  xs.forEach((value, i) => {
    if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = i;
  });
  return best;
};

// make() returns { title, lines, markers, bounds, unit, log, stack, xTitle }, each line { name, x, y, low, high, errors,
// place, smooth, thin, dots }. Called again whenever the plot is drawn anew.
U.plot = (board, make, options = {}) => {
  const plot = {canvas: h("div.canvas"), drawn: false, shown: false, xs: [], main: 0};
  const keys = h("div.keys");
  const title = h("h3", "");
  const menu = h("div.menu",
    ["CSV", "PNG", "SVG"].map(
      (kind) => h("button",
        {class: "plain", title: `Save as ${kind}`, "aria-label": `Save ${options.name || "plot"} as ${kind}`, onclick: () => save(kind)}, kind)));
  plot.el = h("section", {class: `plot ${options.size || ""}`, "data-plot": options.id || ""}, h("header", title, menu), plot.canvas, keys);

  const save = async (kind) => {
    const told = make();
    const name = plain(told.title).replace(/[^\w-]+/g, "-").toLowerCase();
    if (kind === "CSV") {
      const rows = told.lines.flatMap((line) => line.x.map((x, i) => [line.name, x, line.y[i], line.low?.[i], line.high?.[i]]));
      return U.save(`${name}.csv`, U.csv([["line", told.xTitle || "step", "value", "low", "high"], ...rows]));
    }
    await plot.draw();
    U.save(`${name}.${kind.toLowerCase()}`, await Plotly.toImage(plot.canvas, {format: kind.toLowerCase(), width: 900, height: 500, scale: 2}));
  };

  const legend = (told) => {
    const named = told.lines.filter((line) => !line.thin);
    U.put(keys,
      options.keys === false ? []
                             : (named.length > 1 || options.keys ? named : [])
                                 .map((line) => h("span", {style: {color: U.color(line.place || 0)}},
                                        h(line.dash && line.dash !== "solid" ? "i.dashed" : "i"), h("span.soft", U.name(line.name)))),
      told.bounds?.length ? h("span", `possible: ${told.bounds.map(U.number).join(" to ")}`) : null);
  };
  // One drawing after the other: two at once would leave a plot half made.
  plot.draw = () => (plot.last = (plot.last || Promise.resolve()).catch(() => {}).then(draw));
  const draw = async () => {
    const told = make();
    U.put(title, told.title);
    legend(told);
    if (!window.Plotly) {
      sketch(told, plot.canvas);
      if (!plot.waits) U.plotly().then(() => plot.shown && plot.draw(), (error) => U.put(plot.canvas, U.error(error)));
      plot.waits = true;
      return;
    }
    if (!plot.drawn) plot.canvas.replaceChildren();
    const [ink, soft, grid] = [U.css("--ink"), U.css("--soft"), U.css("--line")];
    const format = told.unit === "share" ? ".1%" : ".4~g";
    const traces = [];
    told.lines.forEach((line) => {
      const color = U.color(line.place || 0), named = {name: plain(line.name), hovertemplate: `%{y:${format}}`};
      const shared = {x: line.x, mode: "lines", type: "scatter", hoverlabel: {namelength: 40}, connectgaps: false};
      if (told.stack) {
        const filled = {stackgroup: "all", line: {width: 0.5, color}, fillcolor: faint(color, 0.55)};
        traces.push({...shared, ...named, ...filled, y: line.y});
        return;
      }
      const quiet = {...shared, hoverinfo: "skip"}, smooth = line.smooth > 1 ? U.smooth(line.y, line.smooth) : null;
      if (line.low && !line.light) {
        const edge = {...quiet, line: {width: 0}};
        traces.push({...edge, y: line.low}, {...edge, y: line.high, fill: "tonexty", fillcolor: faint(color, 0.2)});
      }
      if (smooth && !line.light) traces.push({...quiet, y: line.y, line: {width: 1, color: faint(color, 0.3)}});
      if (line.thin) {
        traces.push({...quiet, y: smooth || line.y, line: {width: 1, color: faint(color, 0.35)}});
        return;
      }
      plot.main = traces.length;
      plot.xs = line.x;
      const ends = line.errors && {array: line.errors.above, arrayminus: line.errors.below};
      const error_y = ends ? {...ends, type: "data", symmetric: false, color, thickness: 1.2, width: 3} : undefined;
      const mode = line.only ? "markers"
        : line.dots          ? "lines+markers"
                             : "lines",
            marker = {size: line.only ? 5 : 7, color, opacity: line.only ? 0.5 : 1};
      traces.push(
        {...shared, ...named, y: smooth || line.y, mode, marker, error_y, line: {width: line.light ? 1.3 : 2, color, dash: line.dash || "solid"}});
    });
    const marks = told.markers || [], paper = {yref: "paper", y0: 0, y1: 1};
    const notes = marks.filter((one) => one.label).map(({x,
      label}) => ({x, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: label, font: {size: 10, color: soft}}));
    const shapes =
      marks.map(({x, kind}) =>
                  ({...paper, type: "line", x0: x, x1: x, layer: "below", line: {width: 1, dash: "dot", color: U.css(COLOR_OF[kind] || "--soft")}}));
    // A bound far from the curve would press it flat; the words below tell of it all the same.
    const [least, most] = U.range(told.lines.flatMap((line) => line.y)), near = 0.8 * (most - least || Math.abs(most) || 1);
    for (const bound of (told.bounds || []).filter((one) => one >= least - near && one <= most + near)) {
      shapes.push({type: "line", xref: "paper", x0: 0, x1: 1, y0: bound, y1: bound, line: {width: 1, dash: "dash", color: soft}});
    }
    const axis = {gridcolor: grid, linecolor: grid, zeroline: false, tickfont: {color: soft, size: 11}, automargin: true};
    const xTitle = {text: told.xTitle || "step", font: {size: 11, color: soft}, standoff: 4}, clear = "rgba(0,0,0,0)";
    const xaxis = {...axis, showgrid: false, title: xTitle, ...(board.range ? {range: board.range.slice(), autorange: false} : {})};
    const yaxis = {...axis, type: told.log ? "log" : "linear", tickformat: told.unit === "share" ? SHARE : "", exponentformat: "e", minorloglabels: "complete"};
    if (told.unit === "share" && !told.log) yaxis.rangemode = "nonnegative";
    const look = {paper_bgcolor: clear, plot_bgcolor: clear, font: {color: ink, family: getComputedStyle(document.body).fontFamily, size: 12}};
    const hover = {hovermode: "x unified", hoverlabel: {bgcolor: U.css("--panel"), bordercolor: grid, font: {color: ink, size: 12}}};
    const margin = {l: 40, r: 12, t: notes.length ? 18 : 8, b: 30}, rest = {dragmode: "zoom", showlegend: false, uirevision: "keep"};
    const layout = {...look, ...hover, ...rest, margin, xaxis, yaxis: {...yaxis, ...told.y}, shapes, annotations: notes};
    await Plotly.react(plot.canvas, traces, layout, {displayModeBar: false, responsive: true, doubleClick: "reset"});
    if (!plot.drawn) {
      plot.drawn = true;
      plot.canvas.on("plotly_hover", (event) => board.hover(plot, event.points[0]?.x ?? null));
      plot.canvas.on("plotly_unhover", () => board.hover(plot, null));
      plot.canvas.on("plotly_relayout", (change) => {
        if (plot.quiet) return;
        if (change["xaxis.range[0]"] !== undefined)
          board.zoom(plot, [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
        else if (change["xaxis.autorange"])
          board.zoom(plot, null);
      });
    }
  };
  plot.update = () => plot.shown ? plot.draw() : Promise.resolve();
  board.plots.push(plot);
  U.put(title, options.name || "");
  watcher.observe(plot.el);
  plot.el.plot = plot;
  return plot;
};
const watcher = new IntersectionObserver((seen) => {
  for (const {target, isIntersecting} of seen) {
    target.plot.shown = isIntersecting;
    if (isIntersecting) target.plot.draw().catch((error) => target.plot.canvas.replaceChildren(U.error(error)));
  }
}, {rootMargin: "200px"});
// Wait until what is in view is drawn.
U.drawn = async (board) => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const inView = board.plots.filter((plot) => {
    const box = plot.el.getBoundingClientRect();
    return box.top < innerHeight && box.bottom > 0;
  });
  await Promise.all(inView.map((plot) => plot.drawn ? null : plot.draw()));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
};
