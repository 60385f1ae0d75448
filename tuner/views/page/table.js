// The table of trials: sorting by its header's buttons, filtering by text and status.
"use strict";

const TYPING_MILLISECONDS = 80;

// What the user has chosen; kept while the page's content is replaced.
const tableState = { column: null, descending: false, text: "", status: "", every: false };

function startTable() {
  const table = document.getElementById("trials");
  if (!table) return;
  const rows = Array.from(table.tBodies[0].rows);
  rows.forEach((row, number) => { row.place = number; });
  for (const head of table.tHead.rows[0].cells) {
    head.firstElementChild.addEventListener("click", () => {
      const column = head.dataset.column;
      tableState.descending = tableState.column === column && !tableState.descending;
      tableState.column = column;
      sortRows(table, rows);
    });
  }
  let soon;
  bindInput("filter", "text", "value", "input", () => {
    clearTimeout(soon);
    soon = setTimeout(() => filterRows(table, rows), TYPING_MILLISECONDS);
  });
  bindInput("status", "status", "value", "change", () => filterRows(table, rows));
  bindInput("every", "every", "checked", "change", () => table.classList.toggle("every", tableState.every));
  if (tableState.column) sortRows(table, rows);
  filterRows(table, rows);
  table.classList.toggle("every", tableState.every);
}

function bindInput(id, key, property, event, act) {
  const input = document.getElementById(id);
  input[property] = tableState[key];
  tableState[key] = input[property]; // a status that no trial has any more is none
  input.addEventListener(event, () => { tableState[key] = input[property]; act(); });
}

function sortRows(table, rows) {
  const heads = Array.from(table.tHead.rows[0].cells);
  const index = heads.findIndex((head) => head.dataset.column === tableState.column);
  heads.forEach((head, number) => {
    head.setAttribute("aria-sort", number !== index ? "none" : tableState.descending ? "descending" : "ascending");
  });
  if (index < 0) return;
  const keys = new Map(rows.map((row) => [row, row.cells[index].textContent.trim()]));
  const numeric = rows.every((row) => !Number.isNaN(Number(keys.get(row))));
  const sign = tableState.descending ? -1 : 1;
  rows.sort((a, b) => {
    const [first, second] = [keys.get(a), keys.get(b)];
    if (!first || !second) return (first ? 0 : 1) - (second ? 0 : 1) || a.place - b.place; // blank comes last
    const order = numeric ? Number(first) - Number(second) : first < second ? -1 : first > second ? 1 : 0;
    return sign * order || a.place - b.place;
  });
  table.tBodies[0].append(...rows);
}

function filterRows(table, rows) {
  const words = tableState.text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    row.haystack ??= Array.from(row.cells, (cell) => cell.textContent.toLowerCase()).join(" ");
    const status = row.querySelector(".status").textContent;
    const fits = (!tableState.status || status === tableState.status) && words.every((word) => row.haystack.includes(word));
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  document.getElementById("count").textContent =
    shown === rows.length ? `${rows.length} trials` : `${shown} of ${rows.length} trials`;
}

// Shows a trial's row: what a click on its point in a plot does.
function chooseTrial(id) {
  const row = Array.from(document.querySelectorAll("#trials tbody tr")).find((each) => each.dataset.trial === id);
  if (!row) return;
  document.querySelectorAll("#trials tr.chosen").forEach((each) => each.classList.remove("chosen"));
  row.hidden = false;
  row.classList.add("chosen");
  row.scrollIntoView({ block: "center" });
}

startTable();
