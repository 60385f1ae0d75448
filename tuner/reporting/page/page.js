// Starts the page: theme, copy buttons, plots as they come into view, and news of a study that runs.
"use strict";

const POLL_MILLISECONDS = 5000;
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, showTips: false };
const DARK = JSON.parse(document.querySelector("script.dark").textContent);
const plots = { waiting: new Set(), observer: null };

// Shows the figure that stands behind the element as JSON; in the dark theme its colours give way to darker ones.
function drawPlot(element) {
  if (!plots.waiting.delete(element)) return;
  plots.observer.unobserve(element);
  const counterpart = isDark() ? (_, value) => DARK[value] ?? value : undefined;
  const { data, layout } = JSON.parse(element.nextElementSibling.textContent, counterpart);
  if (!matchMedia("(pointer: fine)").matches) layout.dragmode = false;
  Plotly.newPlot(element, data, layout, CONFIG);
  element.on("plotly_click", (event) => chooseTrial(event.points[0].customdata?.[0]));
}

function startPlots() {
  plots.observer?.disconnect();
  plots.waiting = new Set(document.querySelectorAll(".plot"));
  const seen = (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawPlot(entry.target));
  plots.observer = new IntersectionObserver(seen, { rootMargin: "300px" });
  plots.waiting.forEach((element) => plots.observer.observe(element));
}

// Those out of view are drawn one by one while nothing else is to do.
function drawRest() {
  const [next] = plots.waiting;
  if (!next) return;
  drawPlot(next);
  (window.requestIdleCallback ?? setTimeout)(drawRest);
}

function drawAll() {
  [...plots.waiting].forEach(drawPlot);
}

function redrawPlots() {
  if (!canPlot) return;
  document.querySelectorAll(".plot").forEach((element) => Plotly.purge(element));
  startPlots();
  (window.requestIdleCallback ?? setTimeout)(drawRest);
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function startTheme() {
  const button = document.getElementById("theme");
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
    redrawPlots();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); redrawPlots(); });
  label();
}

function startCopying() {
  document.addEventListener("click", async (event) => {
    if (!event.target.matches?.(".copy")) return;
    const code = event.target.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      event.target.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // at least it is selected
    }
  });
}

// Replaces what the study shows; sorting, filter, place and focus stay.
async function replaceMain() {
  const focused = document.activeElement?.id;
  const inputs = Array.from(document.querySelectorAll(".controls input, .controls select"), (input) => [input.id, input.value, input.checked]);
  const sorted = Array.from(document.querySelectorAll("th[aria-sort]"), (head) => [head.closest("table").id, head.dataset.column, head.ariaSort]);
  const places = Array.from(document.querySelectorAll("table"), (table) => [table.id, table.parentElement.scrollLeft, table.parentElement.scrollTop]);
  const answer = await fetch("main");
  if (!answer.ok) return;
  const text = await answer.text();
  document.querySelectorAll(".plot").forEach((element) => Plotly.purge(element));
  document.getElementById("main").outerHTML = text;
  for (const [id, value, checked] of inputs) restoreInput(document.getElementById(id), value, checked);
  filterRows();
  for (const [id, column, order] of sorted) {
    const head = Array.from(document.querySelectorAll(`#${id} th`)).find((other) => other.dataset.column === column);
    for (let clicks = order === "descending" ? 2 : 1; head && clicks; clicks--) head.click();
  }
  startPlots();
  drawRest();
  places.forEach(([id, left, top]) => document.getElementById(id)?.parentElement.scrollTo(left, top));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function restoreInput(input, value, checked) {
  if (!input) return;
  Object.assign(input, { value, checked });
  if (input.selectedIndex === -1) input.value = ""; // a status that no trial has any more is none
}

async function followStudy() {
  const badge = document.getElementById("live");
  let known = document.documentElement.dataset.live;
  const ask = async () => {
    try {
      const version = await (await fetch("version")).text();
      if (version !== known && !document.hidden) {
        await replaceMain();
        known = version;
      }
      badge.textContent = "Live: follows the study";
    } catch {
      badge.textContent = "The server has ended: this is how the study last stood";
    }
    setTimeout(ask, POLL_MILLISECONDS);
  };
  await ask();
}

const canPlot = typeof Plotly !== "undefined"; // its file may have been left behind
document.getElementById("no-plots").hidden = canPlot;
startTheme();
startCopying();
if (canPlot) {
  startPlots();
  addEventListener("beforeprint", drawAll);
  (window.requestIdleCallback ?? setTimeout)(drawRest);
}
if (document.documentElement.dataset.live) followStudy();
