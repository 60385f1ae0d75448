// The plots: drawn as they come into view, marked by the selection, brushed along an axis; and those of one's own axes.
"use strict";

const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, showTips: false };
const DARK = contentOf("dark");
const LINES = 60; // of selected trials that a plot draws
const BINS = 24; // of an area along each axis
const SHADES = 24; // of the points of a trace
const canPlot = typeof Plotly !== "undefined"; // its file may have been left behind
const plots = { waiting: new Set(), seen: new Set(), observer: null, isBrushed: false };

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).match(/#\w+/g)[Number(isDark())];
const whenIdle = (task) => (window.requestIdleCallback ?? setTimeout)(task);
// The figure that stands behind the element as JSON; in the dark theme its colours give way to darker ones.
const figureOf = (element) => JSON.parse(element.nextElementSibling.textContent, isDark() ? (_, value) => DARK[value] ?? value : undefined);

function drawPlot(element) {
  if (!plots.waiting.delete(element)) return;
  const { data, layout } = figureOf(element);
  if (!matchMedia("(pointer: fine)").matches) layout.dragmode = false;
  const explorer = element.closest(".explore");
  Plotly.newPlot(element, data.map(painted), layout, CONFIG);
  const rows = data.map((line) => trialRow(line.customdata?.[0][0]) ?? []);
  element.own = data;
  element.axes = layout.meta?.columns?.map((column, at) => axisOf(rows.map((row, line) => [data[line].y[at], cellOf(row, column)])));
  element.on("plotly_click", (event) => openTrial(event.points[0].customdata?.[0]));
  const fit = () => {
    if (layout.meta?.columns && element.fittedTo !== element.offsetWidth) {
      element.fittedTo = element.offsetWidth;
      startBrushes(element, layout.meta.columns);
    }
    element.marked = undefined;
    markPlot(element);
  };
  element.on("plotly_afterplot", fit);
  if (explorer) drawExplorer(explorer);
  else fit();
}

function startPlots() {
  plots.observer?.disconnect();
  plots.waiting = new Set(document.querySelectorAll("main .plot"));
  plots.seen.clear();
  const seen = (entry) => {
    plots.seen[entry.isIntersecting ? "add" : "delete"](entry.target);
    if (entry.isIntersecting) (drawPlot(entry.target), markPlot(entry.target));
  };
  plots.observer = new IntersectionObserver((entries) => entries.forEach(seen), { rootMargin: "300px" });
  plots.waiting.forEach((element) => plots.observer.observe(element));
  whenIdle(drawRest);
}

// Those out of view are drawn one by one while nothing else is to do.
function drawRest() {
  const next = [...plots.waiting].find((element) => element.offsetParent);
  if (!next) return;
  drawPlot(next);
  whenIdle(drawRest);
}

const drawAll = () => [...plots.waiting].forEach(drawPlot);

function redrawPlots() {
  if (!canPlot) return;
  document.querySelectorAll("main .plot").forEach((element) => Plotly.purge(element));
  startPlots();
  if (byId("trial").open) openTrial(byId("trial").dataset.trial);
}

// Lets the points and lines of trials that are not selected fade; those of plots out of view when they come into it.
function markPlot(element) {
  if (element.marked === selected || plots.waiting.has(element)) return;
  element.marked = selected;
  const fades = (id) => Boolean(selected) && !selected.has(id);
  for (const group of element.querySelectorAll(".scatterlayer .trace, .barlayer .trace")) {
    const ids = group.__data__?.[0]?.trace?.customdata ?? [];
    const isOfOne = ids.length && ids[0][0] === ids.at(-1)[0];
    if (isOfOne) group.classList.toggle("out", fades(ids[0][0]));
    else if (ids.length) group.querySelectorAll(".point").forEach((point) => point.classList.toggle("out", fades(ids[point.__data__.i]?.[0])));
  }
  paintPoints(element, fades);
  element.parentElement.querySelectorAll(".brush").forEach((brush) => brush.show());
}

// Points are painted on a canvas, as a browser is slow with an element for each: plotly draws one of them, for the
// legend, and finds all for labels and clicks.
const painted = (trace) => (trace.mode === "markers" ? { ...trace, marker: { ...trace.marker, maxdisplayed: 1 } } : trace);
const SHAPES = {
  circle: (pen, x, y, size) => pen.arc(x, y, size, 0, 7),
  x: (pen, x, y, size) => [[-1, -0.6], [-0.6, -1], [0, -0.4], [0.6, -1], [1, -0.6], [0.4, 0], [1, 0.6], [0.6, 1], [0, 0.4], [-0.6, 1], [-1, 0.6], [-0.4, 0]].forEach(([right, down]) => pen.lineTo(x + right * size, y + down * size)),
  "triangle-up": (pen, x, y, size) => [[-1.15, 0.66], [1.15, 0.66], [0, -1.33]].forEach(([right, down]) => pen.lineTo(x + right * size, y + down * size)),
};

// The colours of a scale from its lowest to its highest value.
function shadesOf({ colorscale, reversescale }) {
  const shades = Array.from({ length: SHADES + 1 }, (_, step) => {
    const at = Math.max(1, colorscale.findIndex(([stop]) => stop >= step / SHADES));
    const [[low, from], [high, to]] = [colorscale[at - 1], colorscale[at]];
    return `color-mix(in srgb, ${to} ${(100 * (step / SHADES - low)) / (high - low)}%, ${from})`;
  });
  return reversescale ? shades.reverse() : shades;
}

function fade(pen, width, height) {
  Object.assign(pen, { globalCompositeOperation: "destination-in", globalAlpha: 1, fillStyle: "rgb(0 0 0 / .1)" });
  pen.fillRect(0, 0, width, height);
  pen.globalCompositeOperation = "source-over";
}

function paintPoints(element, fades) {
  const traces = element.calcdata.filter(([point]) => point?.trace.marker?.maxdisplayed === 1);
  const holder = element.querySelector(".gl-container");
  if (!traces.length) return;
  const { width, height, _plots } = element._fullLayout;
  const canvas = holder.querySelector("canvas") ?? holder.appendChild(document.createElement("canvas"));
  Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
  canvas.style.cssText = `position:absolute;left:0;top:0;pointer-events:none;width:${width}px;height:${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
  // What is not selected is painted first, and fades as a whole: a hundred faint points in one place would be a strong one.
  const phases = selected ? [true, false] : [false];
  for (const [faded, points] of phases.flatMap((faded) => traces.map((points) => [faded, points]))) {
    const { marker, opacity, customdata, xaxis, yaxis, cliponaxis } = points[0].trace;
    const { xaxis: across, yaxis: up } = _plots[xaxis + yaxis];
    pen.globalAlpha = opacity * marker.opacity;
    [pen.strokeStyle, pen.lineWidth] = [marker.line.color, marker.line.width];
    const shades = marker.colorscale && shadesOf(marker);
    for (const point of points) {
      const [x, y] = [across.c2p(point.x), up.c2p(point.y)];
      const isInside = x >= 0 && y >= 0 && x <= across._length && y <= up._length;
      if (!(isInside || cliponaxis === false) || fades(customdata?.[point.i]?.[0]) !== faded) continue;
      const own = point.mc ?? marker.color;
      pen.fillStyle = shades ? shades[Math.round((SHADES * (own - marker.cmin)) / (marker.cmax - marker.cmin || 1))] : own;
      pen.beginPath();
      SHAPES[point.mx ?? marker.symbol](pen, across._offset + x, up._offset + y, marker.size / 2);
      pen.fill();
      if (marker.line.width && !faded) pen.stroke();
    }
    if (faded && points === traces.at(-1)) fade(pen, width, height);
  }
}

function markSeen() {
  plots.seen.forEach(markPlot);
  whenIdle(() => plots.seen.forEach(drawSelected));
}

// Adds lines of selected trials to a plot of some of many, and says how many it draws; not while a brush is dragged.
function drawSelected(element) {
  const { columns, curves } = element.layout?.meta ?? {};
  if (element.drawnOf === selected || !(columns || curves) || plots.isBrushed) return;
  const wasSelected = Boolean(element.drawnOf);
  element.drawnOf = selected;
  const ids = new Set(element.own.map((line) => line.customdata[0][0]));
  const workload = cellOf(trialRow([...ids].at(-1)) ?? [], "workload");
  if (curves && details.objectives[workload]?.[0][0] !== curves) return; // the page has no other curves
  const hasLine = ([id, ...cells]) => (curves ? details.curves[id]?.[0].length : columns.every((column, at) => element.axes[at].place(cells[keys.indexOf(column)]) !== undefined));
  const lineOf = (row) => {
    const [x, y] = curves ? details.curves[row[0]] : [element.own[0].x, columns.map((column, at) => element.axes[at].place(cellOf(row, column)))];
    const about = x.map((_, at) => [row[0], ...(columns ? [escapeHtml(columns[at].replace("config/", "")), escapeHtml(shortLabel(cellOf(row, columns[at])))] : [])]);
    const text = escapeHtml(label(cellOf(row, "name")));
    return { x, y, customdata: about, text: x.map(() => text), mode: "lines", showlegend: false, opacity: 0.8, line: { color: colour("accent"), width: 1.4 }, hovertemplate: curves ? "%{text}<br>epoch %{x}: %{y}<extra></extra>" : element.own[0].hovertemplate };
  };
  const { rows, keys } = trialsTable();
  const found = rows.filter((row) => selected?.has(row[0]) && cellOf(row, "workload") === workload && hasLine(row));
  const step = Math.max(1, found.length / LINES);
  const added = found.filter((row, at) => Math.floor(at / step) !== Math.floor((at - 1) / step) && !ids.has(row[0])).map(lineOf);
  if (added.length || wasSelected) Plotly.react(element, [...element.own, ...added], element.layout, CONFIG);
  const drawn = added.length + found.filter(([id]) => ids.has(id)).length;
  const caption = element.closest("figure").querySelector("figcaption");
  const said = caption.querySelector("[role=status]") ?? caption.appendChild(Object.assign(document.createElement("p"), { role: "status" }));
  said.textContent = selected ? `${drawn} of ${found.length} selected trials with a line are drawn.` : "";
}

document.addEventListener("selected", () => requestAnimationFrame(markSeen));

const named = (column) => (findColumn(column.replace("config/", "")) === column ? column.replace("config/", "") : column);
const quoted = (text) => (text.includes('"') ? `'${text}'` : `"${text}"`);

// An axis of a plot, from the places and values of the trials that it was drawn of: the place of a value, and, of
// numbers, the value at a place, by the straight line through the lowest and the highest, logarithmic where that fits.
function axisOf(points) {
  const known = points.filter(([, cell]) => !isBlank(cell)).sort(([one], [other]) => one - other);
  if (!known.length || !known.every(([, cell]) => isNumber(cell))) {
    const places = new Map(known.map(([place, cell]) => [label(cell), place]));
    return { known, place: (cell) => places.get(label(cell)) };
  }
  const [[low, first], [high, last], [middle, value]] = [known[0], known.at(-1), known[known.length >> 1]].map(([place, cell]) => [place, toNumber(cell)]);
  const through = (scale) => (number) => low + ((high - low) * (scale(number) - scale(first))) / (scale(last) - scale(first) || 1);
  const [linear, log] = [through(Number), through(Math.log)];
  const isLog = first > 0 && Math.abs(log(value) - middle) < Math.abs(linear(value) - middle);
  const at = (place) => { const share = (place - low) / (high - low || 1); return isLog ? first * (last / first) ** share : first + (last - first) * share; };
  return { known, at, place: (cell) => (isNumber(cell) ? (isLog ? log : linear)(toNumber(cell)) : undefined) };
}

// The conditions of a brush from low to high, in shares of an axis.
function brushConditions(column, { known, at }, low, high) {
  const condition = (place, sign) => `${named(column)}${sign}${label(Number(at(place).toPrecision(4)))}`;
  if (at) return [...(low > 0 ? [condition(low, ">=")] : []), ...(high < 1 ? [condition(high, "<=")] : [])];
  const inside = new Set(known.filter(([place]) => place >= low && place <= high).map(([, cell]) => label(cell)));
  const outside = new Set(trialsTable().rows.map((row) => label(cellOf(row, column))).filter((text) => text && !inside.has(text)));
  if (inside.size === 1) return [`${named(column)}=${quoted([...inside][0])}`];
  return Array.from(outside, (text) => `${named(column)}!=${quoted(text)}`);
}

// A strip over each axis of a plot, which is brushed by dragging, or by arrow keys: alone the low end, with Shift the high end.
function startBrushes(element, columns) {
  const { xaxis, yaxis } = element._fullLayout;
  element.parentElement.querySelectorAll(".brush").forEach((brush) => brush.remove());
  columns.forEach((column, at) => {
    const brush = element.parentElement.appendChild(document.createElement("div"));
    const axis = element.axes[at];
    const top = element.offsetTop + yaxis._offset + yaxis.d2p(1);
    const height = yaxis.d2p(0) - yaxis.d2p(1);
    let [low, high, start, waiting] = [0, 1, null, false];
    const set = (from, to) => {
      [low, high] = [Math.max(0, Math.min(from, to)), Math.min(1, Math.max(from, to))];
      if (!waiting) requestAnimationFrame(() => { waiting = false; setConditions(column, brushConditions(column, axis, low, high)); });
      waiting = true;
    };
    const place = (event) => 1 - (event.clientY - brush.getBoundingClientRect().top) / height;
    brush.className = "brush";
    brush.style.cssText = `left:${element.offsetLeft + xaxis._offset + xaxis.d2p(at) - 11}px;top:${top}px;height:${height}px`;
    Object.assign(brush, { tabIndex: 0, role: "slider", ariaLabel: `Select by ${column.replace("config/", "")}`, ariaOrientation: "vertical", innerHTML: "<i></i>" });
    brush.show = () => {
      const own = conditions?.filter((condition) => condition.column === column) ?? [];
      const inside = axis.known.filter(([, cell]) => own.every((condition) => holds(condition, cell))).map(([share]) => share);
      const [from, to] = [Math.min(...inside), Math.max(...inside)];
      if (!own.length) [low, high] = [0, 1];
      Object.assign(brush, { ariaValueNow: Math.round(100 * low), ariaValueText: own.map(({ text }) => text).join(" and ") || "all" });
      brush.firstChild.style.cssText = own.length && inside.length ? `top:${100 * (1 - to)}%;height:${100 * (to - from)}%` : "display:none";
    };
    brush.onpointerdown = (event) => { plots.isBrushed = true; start = place(event); brush.setPointerCapture(event.pointerId); };
    brush.onpointermove = (event) => { if (start !== null && Math.abs(place(event) - start) > 0.02) set(start, place(event)); };
    brush.onpointerup = (event) => { if (Math.abs(place(event) - start) <= 0.02) set(0, 1); start = null; plots.isBrushed = false; setTimeout(markSeen); };
    brush.onkeydown = (event) => {
      const step = { ArrowUp: 0.1, ArrowDown: -0.1 }[event.key];
      if (step) (event.preventDefault(), event.shiftKey ? set(low, high + step) : set(low + step, high));
      else if (event.key === "Delete" || event.key === "Escape") set(0, 1);
    };
    brush.show();
  });
}

// The choices of a plot with axes of one's own: what differs between trials.
function startExplorers() {
  for (const explorer of document.querySelectorAll(".explore")) {
    const table = trialsTable();
    const heads = Array.from(table.element.querySelectorAll("thead th")).filter((head) => !head.classList.contains("s") && !["trial_id", "name", "error"].includes(head.dataset.column));
    explorer.querySelectorAll("select").forEach((select) => {
      const chosen = select.value || select.dataset.column;
      select.innerHTML = heads.map((head) => `<option value="${escapeHtml(head.dataset.column)}">${escapeHtml(head.textContent)}</option>`).join("");
      select.value = chosen;
    });
    explorer.onchange = () => canPlot && drawExplorer(explorer);
  }
  document.querySelectorAll("select.objective").forEach((select) => {
    select.onchange = () => select.closest("section").querySelectorAll(".by").forEach((part, at) => { part.hidden = at !== select.selectedIndex; });
    select.onchange();
  });
}

function drawExplorer(explorer) {
  const element = explorer.querySelector(".plot");
  const [across, up, shade] = Array.from(explorer.querySelectorAll("select"), (select) => select.value);
  const rows = trialsTable().rows.filter((row) => label(cellOf(row, "workload")) === explorer.dataset.workload);
  const full = rows.filter((row) => [across, up, shade].every((key) => !isBlank(cellOf(row, key))));
  const column = (key) => {
    const cells = full.map((row) => cellOf(row, key));
    const numbers = cells.every(isNumber) ? cells.map(toNumber) : null;
    const isLog = numbers?.every((value) => value > 0) && Math.max(...numbers) > 100 * Math.min(...numbers);
    return { values: numbers ?? cells.map(label), numbers, type: isLog ? "log" : numbers ? "linear" : "category", name: key.replace("config/", "") };
  };
  const [x, y, z] = [across, up, shade].map(column);
  const { layout } = figureOf(element);
  const scale = { colorscale: layout.meta.scale, reversescale: explorer.dataset.metric === shade && explorer.dataset.direction === "minimize", colorbar: { title: { text: z.name, side: "right" }, thickness: 12, outlinewidth: 0 } };
  const marker = z.numbers ? { ...scale, color: z.numbers, showscale: true } : { color: z.values.map((text) => layout.meta.series[[...new Set(z.values)].indexOf(text) % layout.meta.series.length]) };
  const points = { type: "scatter", mode: "markers", x: x.values, y: y.values, customdata: full.map((row) => [row[0]]), text: full.map((row, at) => `${escapeHtml(label(cellOf(row, "name")))}<br>${escapeHtml(z.name)} ${escapeHtml(shortLabel(cellOf(row, shade)))}`), hovertemplate: "%{text}<br>%{x}, %{y}<extra></extra>", marker: { ...marker, size: 8, line: { width: 1, color: layout.paper_bgcolor ?? colour("surface") } } };
  const filled = explorer.querySelector("input").checked && x.numbers && y.numbers && z.numbers && full.length > 3;
  const data = filled ? [{ ...area(x, y, z.numbers), ...scale }, { ...points, marker: { ...points.marker, color: colour("ink"), size: 5, showscale: false } }] : [points];
  for (const [name, axis] of [["xaxis", x], ["yaxis", y]]) layout[name] = { ...layout[name], exponentformat: "none", type: axis.type, title: { text: escapeHtml(axis.name) } };
  Plotly.react(element, data.map(painted), layout, CONFIG);
  const lacking = rows.length - full.length;
  explorer.querySelector("p").textContent = `${full.length} trials are points${lacking ? `; ${lacking} have no value of one of these and are not drawn` : ""}.${filled ? ` The area is the mean of ${z.name} in ${BINS} x ${BINS} cells, and between them a line from cell to cell.` : ""}`;
}

// The mean of z in the cells of a grid; plotly fills those without a trial from their neighbours.
function area(x, y, z) {
  const bins = ({ numbers, type }) => {
    const scaled = type === "log" ? numbers.map(Math.log) : numbers;
    const [low, high] = [Math.min(...scaled), Math.max(...scaled)];
    const centres = Array.from({ length: BINS }, (_, at) => low + ((at + 0.5) / BINS) * (high - low));
    return { at: scaled.map((value) => Math.min(BINS - 1, Math.floor((BINS * (value - low)) / (high - low || 1)))), centres: type === "log" ? centres.map(Math.exp) : centres };
  };
  const [across, up] = [bins(x), bins(y)];
  const sums = Array.from({ length: BINS }, () => Array.from({ length: BINS }, () => [0, 0]));
  z.forEach((value, at) => { const cell = sums[up.at[at]][across.at[at]]; cell[0] += value; cell[1] += 1; });
  return { type: "contour", x: across.centres, y: up.centres, z: sums.map((line) => line.map(([sum, count]) => (count ? sum / count : null))), connectgaps: true, hoverinfo: "skip", contours: { coloring: "heatmap" }, line: { width: 0.5 } };
}
