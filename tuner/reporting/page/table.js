// The page's tables and the one selection of trials: by conditions or words in the box, which the address has as well.
"use strict";

const FIRST = 100; // the rows that a table shows at once; a button shows more
const SEEN = 16; // the rows that a table's box has room for: a brush draws them at once, and the others when it rests
const TYPING_MILLISECONDS = 80;
const REST_MILLISECONDS = 150;
/** @typedef {{ element: HTMLTableElement, keys: string[], rows: Cell[][], order: [number, number] | null, most: number }} Table */
/** @type {Map<string, Table>} */
let tables = new Map();
/** The ids of the trials that are selected; null if all are. @type {Set<string> | null} */
let selected = null;
/** The conditions in the box; null if it has words, or what is not understood. @type {Condition[] | null} */
let conditions = [];
let typing, resting;

const byId = (id) => document.getElementById(id);
const escapeHtml = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const contentOf = (name) => JSON.parse(document.querySelector(`script.${name}`)?.textContent ?? "null");
const trialsTable = () => tables.get("trials");
const trialRow = (id) => trialsTable()?.rows.find((row) => row[0] === id);
/** The value of a trial in a column; null without one. @returns {Cell} */
const cellOf = (row, key) => (trialsTable().keys.includes(key) ? row[trialsTable().keys.indexOf(key) + 1] ?? null : null);

function readTables() {
  const read = (element) => [element.id, { element, ...JSON.parse(element.parentElement.nextElementSibling.textContent), order: null, most: FIRST }];
  tables = new Map(Array.from(document.querySelectorAll("table.sortable"), read));
  tables.forEach((table) => table.element.id !== "trials" && drawTable(table)); // the selection draws that of trials
}

function cellHtml(cell, key) {
  const [text, shown] = [escapeHtml(label(cell)), escapeHtml(shortLabel(cell))];
  if (key === "name") return `<th scope="row">${text}</th>`;
  if (key === "status") return `<td><span class="status ${text}">${text}</span></td>`;
  const sorted = isNumber(cell) ? escapeHtml(label(cell).split(" ")[0]) : text;
  return sorted === shown ? `<td>${shown}</td>` : `<td data-sort="${sorted}">${shown}</td>`;
}

function rowHtml({ keys }, [id, ...cells]) {
  const texts = cells.map((cell, at) => cellHtml(cell, keys[at]));
  const html = id ? texts.join("").replace(/<th scope="row">(.*?)<\/th>/s, '<th scope="row"><button type="button" class="open">$1</button></th>') : texts.join("");
  return `<tr data-trial="${escapeHtml(id)}">${html}</tr>`;
}

// Numbers come before texts, and what is missing last in any order.
function compareCells(one, other, sign) {
  if (isBlank(one) || isBlank(other)) return isBlank(one) - isBlank(other);
  if (isNumber(one) && isNumber(other)) return sign * (toNumber(one) - toNumber(other));
  if (isNumber(one) || isNumber(other)) return sign * (isNumber(other) - isNumber(one));
  return sign * (label(one) < label(other) ? -1 : Number(label(one) > label(other)));
}

function drawTable(/** @type {Table} */ table, most = table.most) {
  let rows = table.element.id === "trials" && selected ? table.rows.filter((row) => selected.has(row[0])) : table.rows;
  if (table.order) rows = rows.toSorted((one, other) => compareCells(one[table.order[0]], other[table.order[0]], table.order[1]));
  table.element.tBodies[0].innerHTML = rows.slice(0, most).map((row) => rowHtml(table, row)).join("");
  const more = table.element.parentElement.parentElement.querySelector(".more");
  if (more) Object.assign(more, { hidden: rows.length <= table.most, textContent: `Show all ${rows.length} rows` });
}

function sortTable(head) {
  const table = tables.get(head.closest("table").id);
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  head.parentElement.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  head.ariaSort = sign === 1 ? "ascending" : "descending";
  table.order = [head.cellIndex + 1, sign];
  drawTable(table);
}

/** The column that a name means, as find_column of row_queries.py. @param {string} name @returns {string} */
function findColumn(name) {
  const { keys } = trialsTable();
  const found = [name, `config/${name}`, GRAMMAR.short[name]].find((key) => keys.includes(key));
  if (!found) throw new Error(`no column '${name}': there are ${keys.map((key) => key.replace("config/", "")).join(", ")}`);
  return found;
}

/** Throws an Error that says what is wrong. @param {string} text @returns {Condition[]} */
function parseConditions(text) {
  return splitConditions(text).map((part) => {
    const condition = { ...parseCondition(part, findColumn), text: part.trim() };
    const isWrong = condition.fault && condition.operator !== "~" && condition.value;
    const cells = isWrong ? trialsTable().rows.map((row) => cellOf(row, condition.column)).filter((cell) => !isBlank(cell)) : [];
    if (cells.length && cells.every(isNumber)) throw new Error(condition.fault);
    return condition;
  });
}

/** The rows in which all conditions hold, or, where the text has none, that of "trial 17", or which have all words in any column. */
function rowsOf(/** @type {string} */ text) {
  const { rows, keys } = trialsTable();
  conditions = null;
  if (/[=!<>~]/.test(text)) {
    conditions = parseConditions(text);
    const places = conditions.map(({ column }) => keys.indexOf(column) + 1);
    return rows.filter((row) => conditions.every((condition, at) => holds(condition, row[places[at]])));
  }
  const [, number] = /^(?:trial |t)0*(\d+)$/.exec(fold(text)) ?? [];
  if (number) return rows.filter(([id]) => id.match(/^t0*(\d+)$/)?.[1] === number);
  const words = fold(text).split(/\s+/);
  return rows.filter((row) => {
    const all = fold(row.map(label).join(" "));
    return words.every((word) => all.includes(word));
  });
}

/** Puts conditions on a column into the box, in the place of those that are there, and of words. */
function setConditions(column, texts) {
  const kept = (conditions ?? []).filter((condition) => condition.column !== column).map((condition) => condition.text);
  byId("filter").value = [...kept, ...texts].join(" and ");
  applySelection(SEEN);
  resting = setTimeout(() => drawTable(trialsTable()), REST_MILLISECONDS);
}

// Selects what the box asks for, everywhere. While it is not understood, what was selected stays.
function applySelection(most) {
  clearTimeout(resting);
  const table = trialsTable();
  if (!table) return;
  const [box, text] = [byId("filter"), byId("filter").value.trim()];
  let fault = "";
  try {
    selected = text ? new Set(rowsOf(text).map((row) => row[0])) : null;
    if (!text) conditions = [];
    byId("status").value = conditions?.find(({ column, operator }) => column === "status" && operator === "=")?.value ?? "";
  } catch (error) {
    fault = error.message;
  }
  byId("fault").textContent = fault;
  box.setAttribute("aria-invalid", String(Boolean(fault)));
  const all = `${table.rows.length} trial${table.rows.length === 1 ? "" : "s"}`;
  byId("count").textContent = selected ? `${selected.size} of ${all}` : all;
  byId("clear").hidden = !box.value;
  table.element.classList.toggle("every", byId("every").checked);
  drawTable(table, most);
  document.dispatchEvent(new Event("selected"));
}

// The address has the selection and the open trial, so that a link shows the same.
function writeAddress() {
  if (location.protocol === "about:") return; // a notebook's frame
  const parts = { where: byId("filter")?.value.trim(), trial: byId("trial").open && byId("trial").dataset.trial };
  const given = Object.entries(parts).filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  if (given.length || /^#(where|trial)=/.test(location.hash)) history.replaceState(null, "", given.length ? `#${given.join("&")}` : location.pathname + location.search);
}

/** Selects what the address asks for. @returns {string | null} the trial that it opens */
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  if (byId("filter") && given.has("where")) byId("filter").value = given.get("where");
  applySelection();
  return given.get("trial");
}

// The exact value of a cell that shows three digits.
document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest?.("td[data-sort]");
  if (cell) cell.title = cell.dataset.sort;
});
document.addEventListener("input", (event) => {
  clearTimeout(typing);
  if (event.target.id === "status") setConditions("status", event.target.value ? [`status=${event.target.value}`] : []);
  else if (event.target.id === "filter" || event.target.id === "every") typing = setTimeout(applySelection, TYPING_MILLISECONDS);
});
document.addEventListener("click", (event) => {
  const head = event.target.closest("table.sortable th[data-column]");
  const row = event.target.closest("tr[data-trial]");
  if (head) sortTable(head);
  else if (row?.dataset.trial) openTrial(row.dataset.trial);
  else if (event.target.matches(".more")) showAll(tables.get(event.target.dataset.table));
  else if (event.target.id === "clear") {
    byId("filter").value = "";
    applySelection();
  }
});
document.addEventListener("selected", writeAddress);

function showAll(table) {
  table.most = Infinity;
  drawTable(table);
}

readTables();
const opened = readAddress();
