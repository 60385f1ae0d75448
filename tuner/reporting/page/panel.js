// The panel of a trial: all that is known of it, opened from its row, its line or its point.
"use strict";

let details = null; // what details.py wrote
const facing = (head, lines) => `<table class="facing"><thead><tr>${head.map((text) => `<th scope="col">${text}</th>`).join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
const part = (title, html) => (html ? `<section><h3>${title}</h3>${html}</section>` : "");
const box = (text, name) => (text ? `<pre tabindex="0" role="group" aria-label="${name}">${escapeHtml(text)}</pre>` : "");
const factList = (pairs, big = "") => `<dl class="facts">${pairs.filter(([, text]) => text).map(([name, text]) => `<div><dt>${escapeHtml(name)}</dt><dd class="${big}">${escapeHtml(text)}</dd></div>`).join("")}</dl>`;
const gb = (value) => (value === null ? "" : `${shortLabel(value)} GB`);
const value = (row, key) => shortLabel(cellOf(row, key));

function readDetails() {
  details = contentOf("details");
}

// What differs from the best trial stands first.
function configurationHtml(row, best) {
  const keys = trialsTable().keys.filter((key) => key.startsWith("config/") && !(isBlank(cellOf(row, key)) && isBlank(cellOf(best, key))));
  const differs = (key) => label(cellOf(row, key)) !== label(cellOf(best, key));
  const line = (key) => `<tr class="${differs(key) ? "differs" : ""}"><th scope="row">${escapeHtml(key.slice(7))}</th><td>${escapeHtml(label(cellOf(row, key)))}</td>${row === best ? "" : `<td>${differs(key) ? escapeHtml(label(cellOf(best, key))) : "the same"}</td>`}</tr>`;
  const lines = [...keys.filter(differs), ...keys.filter((key) => !differs(key))].map(line);
  return lines.length ? facing(["hyperparameter", "this trial", ...(row === best ? [] : ["the best"])], lines) : "";
}

function seedsHtml(row) {
  const same = trialsTable().rows.filter((other) => ["name", "workload"].every((key) => label(cellOf(other, key)) === label(cellOf(row, key))));
  const metric = details.objectives[label(cellOf(row, "workload"))][0][0];
  const line = (other) => `<tr data-trial="${escapeHtml(other[0])}"><th scope="row"><button type="button" class="open"${other === row ? ' aria-current="true"' : ""}>seed ${label(cellOf(other, "seed"))}</button></th><td>${escapeHtml(value(other, "status"))}</td><td>${escapeHtml(value(other, metric))}</td></tr>`;
  return same.length > 1 ? facing(["trial", "status", escapeHtml(metric)], same.map(line)) : "";
}

function attemptsHtml(id) {
  const line = ([number, status, device, epochs, seconds, reserved, peak, error]) => `<tr><th scope="row">${number}</th><td><span class="status ${status}">${status}</span></td><td>${escapeHtml(device ?? "")}</td><td>${epochs} epochs, ${seconds} s</td><td>${gb(reserved)}</td><td>${gb(peak)}</td><td>${escapeHtml(error)}</td></tr>`;
  const lines = (details.attempts[id] ?? []).map(line);
  return lines.length ? `<div class="scroll" tabindex="0" role="group" aria-label="Attempts">${facing(["attempt", "status", "device", "took", "reserved", "peak", "reason"], lines)}</div>` : "";
}

function drawCurve(row, best) {
  const element = document.querySelector("#panel .curve");
  if (!element || !canPlot) return;
  const [ink, muted, accent, line] = ["ink", "muted", "accent", "line"].map(colour);
  const trace = (of, name, look) => ({ x: details.curves[of[0]]?.[0], y: details.curves[of[0]]?.[1], name, mode: "lines+markers", marker: { size: 4 }, ...look });
  const data = [trace(row, "this trial", { line: { color: accent, width: 2.4 } })];
  if (best !== row && details.curves[best[0]]) data.unshift(trace(best, "the best", { line: { color: muted, dash: "dot", width: 1.6 } }));
  const axis = { gridcolor: line, automargin: true, fixedrange: true, zeroline: false };
  const ground = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
  Plotly.newPlot(element, data, { ...ground, height: 220, font: { color: ink, size: 12 }, margin: { l: 48, r: 10, t: 24, b: 34 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, xaxis: { ...axis, title: { text: "epoch" }, tickformat: "d" }, yaxis: axis, dragmode: false }, CONFIG);
}

// Fills the panel with a trial; a trial that the table does not list has none.
function openTrial(id) {
  const row = trialRow(id);
  if (!row || !details) return;
  const workload = label(cellOf(row, "workload"));
  const best = trialRow(details.best[workload]) ?? row;
  const metrics = details.objectives[workload].map(([metric]) => [metric, value(row, metric)]);
  const [traceback, log] = details.texts[id] ?? ["", ""];
  const attempts = details.attempts[id] ?? [];
  const reserved = attempts.at(-1)?.[5] ?? null;
  const of = (key) => (isBlank(cellOf(row, key)) ? "" : `${value(row, key)} GB`);
  const memory = [["Estimated", of("estimated_memory_gb")], ["Reserved at last", gb(reserved)], ["Peak", of("peak_memory_gb")], ["Peak in RAM", of("peak_ram_gb")], ["Device", value(row, "device")]];
  const status = value(row, "status");
  byId("panel").innerHTML = `<p class="kicker">trial ${escapeHtml(id)}${id === details.best[workload] ? ", the best" : ""}</p><h2 id="trial-name">${escapeHtml(label(cellOf(row, "name")))}</h2>
    <p><span class="status ${status}">${status}</span> after ${value(row, "epochs")} epochs${cellOf(row, "duration_s") ? `, ${value(row, "duration_s")} s` : ""}</p>
    ${factList(metrics, "big")}${part("Why", box(label(cellOf(row, "error")), "Why"))}${part("Traceback", box(traceback, "Traceback"))}
    ${canPlot && details.curves[id]?.[0].length ? part(`${escapeHtml(metrics[0][0])} after each epoch`, `<div class="curve" role="img" aria-label="Learning curve with ${details.curves[id][0].length} epochs, at last ${details.curves[id][1].at(-1)}"></div>`) : ""}
    ${part("Configuration", configurationHtml(row, best))}${part("Seeds", seedsHtml(row))}${part("Memory", factList(memory))}
    ${part(attempts.length === 1 ? "Its one attempt" : "Attempts", attemptsHtml(id))}${part("End of its log", box(log, "End of its log"))}
    ${details.again[id] ? part("Run it again", `<div class="command"><code tabindex="0" role="group" aria-label="Again">${escapeHtml(details.again[id])}</code><button type="button" class="copy" aria-label="Copy: Again">Copy</button></div>`) : ""}`;
  const dialog = byId("trial");
  dialog.dataset.trial = id;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  document.querySelectorAll("tr.chosen").forEach((other) => other.classList.remove("chosen"));
  document.querySelectorAll("#trials tr").forEach((other) => other.classList.toggle("chosen", other.dataset.trial === id));
  drawCurve(row, best);
  writeAddress();
}

byId("trial").addEventListener("close", writeAddress);
byId("trial").addEventListener("click", (event) => { if (event.target === event.currentTarget) event.currentTarget.close(); });
