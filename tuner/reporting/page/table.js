// The tables: sorting by their headers' buttons; the one of trials is filtered by text and status.
"use strict";

const TYPING_MILLISECONDS = 80;

// What the user has chosen; kept while the page's content is replaced.
const tableState = { orders: {}, text: "", status: "", every: false };

function startTables() {
  document.querySelectorAll("table").forEach(startSorting);
  const table = document.getElementById("trials");
  if (table) startFiltering(table);
}

function startSorting(table) {
  const rows = Array.from(table.tBodies[0].rows);
  rows.forEach((row, number) => { row.place = number; });
  for (const head of table.tHead.rows[0].cells) {
    head.firstElementChild.addEventListener("click", () => {
      const [column, before] = [head.dataset.column, tableState.orders[table.id]];
      tableState.orders[table.id] = { column, descending: before?.column === column && !before.descending };
      sortRows(table, rows);
    });
  }
  if (tableState.orders[table.id]) sortRows(table, rows);
}

function startFiltering(table) {
  const rows = Array.from(table.tBodies[0].rows);
  let soon;
  bindInput("filter", "text", "value", "input", () => {
    clearTimeout(soon);
    soon = setTimeout(() => filterRows(table, rows), TYPING_MILLISECONDS);
  });
  bindInput("status", "status", "value", "change", () => filterRows(table, rows));
  bindInput("every", "every", "checked", "change", () => table.classList.toggle("every", tableState.every));
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
  const { column, descending } = tableState.orders[table.id];
  const index = heads.findIndex((head) => head.dataset.column === column);
  heads.forEach((head, number) => {
    head.setAttribute("aria-sort", number !== index ? "none" : descending ? "descending" : "ascending");
  });
  if (index < 0) return;
  const key = (cell) => cell.dataset.value ?? cell.textContent.trim(); // a mean is shown with its interval
  const keys = new Map(rows.map((row) => [row, key(row.cells[index])]));
  const numeric = rows.every((row) => !Number.isNaN(Number(keys.get(row))));
  const sign = descending ? -1 : 1;
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
  const all = `${rows.length} trial${rows.length === 1 ? "" : "s"}`;
  document.getElementById("count").textContent = shown === rows.length ? all : `${shown} of ${all}`;
}

// Shows the row of a trial or a configuration: what a click on its point in a plot does.
function chooseTrial(id) {
  const row = Array.from(document.querySelectorAll("tbody tr")).find((each) => each.dataset.trial === id);
  if (!row) return;
  document.querySelectorAll("tr.chosen").forEach((each) => each.classList.remove("chosen"));
  row.hidden = false;
  row.classList.add("chosen");
  row.scrollIntoView({ block: "center" });
}

startTables();
