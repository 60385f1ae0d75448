// Starts the page: theme, copy buttons, and news of a study that runs.
"use strict";

const POLL_MILLISECONDS = 5000;
const QUIET_SECONDS = 120; // without news of trials that run: a page says since when

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

// Replaces what the study shows; sorting, selection, place, focus and the open panel stay.
async function replaceMain() {
  const focused = document.activeElement?.id;
  const inputs = Array.from(document.querySelectorAll("main input, main select"), (input) => [input.id, input.value, input.checked]);
  const sorted = Array.from(document.querySelectorAll("th[aria-sort]"), (head) => [head.closest("table").id, head.dataset.column, head.ariaSort]);
  const places = Array.from(document.querySelectorAll("table"), (table) => [table.id, table.parentElement.scrollLeft, table.parentElement.scrollTop]);
  const answer = await fetch("main");
  if (!answer.ok) return;
  const text = await answer.text();
  if (canPlot) document.querySelectorAll("main .plot").forEach((element) => Plotly.purge(element));
  document.getElementById("main").outerHTML = text;
  for (const [id, value, checked] of inputs) restoreInput(document.getElementById(id), value, checked);
  readTables();
  startMain();
  applySelection();
  for (const [id, column, order] of sorted) {
    const head = Array.from(document.querySelectorAll(`#${id} th`)).find((other) => other.dataset.column === column);
    for (let clicks = order === "descending" ? 2 : 1; head && clicks; clicks--) sortTable(head);
  }
  places.forEach(([id, left, top]) => document.getElementById(id)?.parentElement.scrollTo(left, top));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (byId("trial").open) openTrial(byId("trial").dataset.trial);
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
      const last = Math.max(...Array.from(version.matchAll(/(\d+)\.\d+/g), ([, nanoseconds]) => nanoseconds / 1e9));
      const isQuiet = document.querySelector(".status.running") && Date.now() / 1000 - last > QUIET_SECONDS;
      if (version.endsWith("ended")) badge.textContent = "The study's process has ended: this is how it stands";
      else badge.textContent = isQuiet ? `Live, but no news since ${new Date(1000 * last).toLocaleTimeString()}` : "Live: follows the study";
    } catch {
      badge.textContent = "The server has ended: this is how the study last stood";
    }
    setTimeout(ask, POLL_MILLISECONDS);
  };
  await ask();
}

// Shows what main has, at first and whenever it was replaced.
function startMain() {
  readDetails();
  startExplorers();
  if (canPlot) startPlots();
}

byId("no-plots").hidden = canPlot || !document.querySelector("main .plot");
startTheme();
startCopying();
startMain();
openTrial(opened);
addEventListener("hashchange", () => openTrial(readAddress()));
addEventListener("beforeprint", () => { tables.forEach(showAll); drawAll(); });
if (document.documentElement.dataset.live) followStudy();
