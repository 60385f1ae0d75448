// The table of all trials, filtered by words and status. Tables are sorted by vendor/sortable.min.js.
"use strict";

const TYPING_MILLISECONDS = 80;
let typing;

function filterRows() {
  const table = document.getElementById("trials");
  if (!table) return;
  const [text, status, every] = ["filter", "status", "every"].map((id) => document.getElementById(id));
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = Array.from(table.tBodies[0].rows);
  for (const row of rows) {
    row.haystack ??= Array.from(row.cells, (cell) => `${cell.textContent} ${cell.dataset.sort ?? ""}`.toLowerCase()).join(" ");
    const ended = !status.value || row.querySelector(".status").textContent === status.value;
    row.hidden = !ended || !words.every((word) => row.haystack.includes(word));
  }
  const all = `${rows.length} trial${rows.length === 1 ? "" : "s"}`;
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("count").textContent = shown === rows.length ? all : `${shown} of ${all}`;
  table.classList.toggle("every", every.checked);
}

// Shows the row of a trial or a configuration: what a click on its point in a plot does.
function chooseTrial(id) {
  const row = Array.from(document.querySelectorAll("tbody tr")).find((row) => row.dataset.trial === id);
  if (!row) return;
  document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
  row.hidden = false;
  row.classList.add("chosen");
  row.scrollIntoView({ block: "center" });
}

// The exact value of a cell that shows three digits.
document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest?.("td[data-sort]");
  if (cell) cell.title = cell.dataset.sort;
});
document.addEventListener("input", (event) => {
  clearTimeout(typing);
  if (event.target.closest(".controls")) typing = setTimeout(filterRows, TYPING_MILLISECONDS);
});
filterRows();
