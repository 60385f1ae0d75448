// Conditions such as lr<0.01, as --where takes them. Python has the same in tuner/values.py, which also gives the
// patterns and units here; both are tested with the same cases.
"use strict";

/**
 * A value of a table: nothing, a text or a number; a number as Python writes it, where that is not as here; or the
 * label and the JSON of anything else, such as a list.
 * @typedef {null | string | number | [string] | [string, string]} Cell
 * @typedef {{ column: string, operator: string, value: string, number: number | null, fault: string }} Condition
 */

const GRAMMAR = JSON.parse(document.querySelector("script.grammar").textContent);
const whole = (pattern) => new RegExp(`^(?:${pattern})$`, "s");
const [CONDITION, QUANTITY, WHOLE, DECIMAL] = ["condition", "quantity", "whole", "decimal"].map((name) => whole(GRAMMAR[name]));
const COMPARE = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

const isBlank = (/** @type {Cell} */ cell) => cell === null || cell === "";
const isNumber = (/** @type {Cell} */ cell) => typeof cell === "number" || (Array.isArray(cell) && cell.length === 1);
const toNumber = (/** @type {Cell} */ cell) => (typeof cell === "number" ? cell : parseFloat(cell[0].replace("inf", "Infinity")));
const fold = (/** @type {string} */ text) => text.toUpperCase().toLowerCase().replaceAll("ς", "σ"); // as "ß" equals "SS"

/** A cell as Python writes its value. @param {Cell} cell @returns {string} */
function label(cell) {
  if (typeof cell !== "number") return isBlank(cell) ? "" : Array.isArray(cell) ? cell[0] : cell;
  const [digits, exponent] = cell.toExponential().split("e");
  if (cell === 0 || Number.isInteger(cell) || (exponent >= -4 && exponent < 16)) return String(cell);
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** A cell with three significant digits, or more if it is whole: number_text of texts.py. @param {Cell} cell */
function shortLabel(cell) {
  const value = isNumber(cell) ? Number(label(cell).replace("inf", "Infinity")) : NaN;
  if (!Number.isFinite(value)) return label(cell);
  const size = Math.abs(value);
  if ((Number.isInteger(value) && size < 1e6) || (size >= 1000 && size < 1e6)) return value.toFixed(0);
  const [digits, exponent] = value.toExponential(2).split("e");
  const isExact = Math.abs(Number(`${digits}e${exponent}`) - value) <= 1e-9 * size;
  if (exponent < -4 || exponent >= 3) return `${String(Number(digits))}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  const text = value.toFixed(2 - exponent);
  return isExact && text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** What a person means by a text: parse of values.py. @param {string} text */
function parseValue(text) {
  if (Object.hasOwn(GRAMMAR.constants, text)) return GRAMMAR.constants[text];
  if (WHOLE.test(text) || (DECIMAL.test(text) && Number.isFinite(Number(text)))) return Number(text);
  try {
    return '"[{'.includes(text[0]) ? JSON.parse(text) : text;
  } catch {
    return text;
  }
}

/** The conditions that "and" joins. @param {string} text @returns {string[]} */
function splitConditions(text) {
  const [first, ...others] = text.split(new RegExp(GRAMMAR.and));
  const parts = [first];
  for (let at = 0; at < others.length; at += 2) {
    if (CONDITION.test(parts.at(-1)) && CONDITION.test(others[at + 1])) parts.push(others[at + 1]);
    else parts.push(parts.pop() + others[at] + others[at + 1]);
  }
  return parts;
}

/** Throws an Error that says what is wrong. @param {string} text @param {(name: string) => string} column @returns {Condition} */
function parseCondition(text, column) {
  const match = CONDITION.exec(text);
  if (!match || typeof parseValue(match[1]) === "number") throw new Error(GRAMMAR.expected);
  const name = column(match[1]);
  const quoted = /^["']/.test(match[3]);
  const value = quoted ? match[3].slice(1, -1) : match[3].trim();
  const units = GRAMMAR.units[Object.keys(GRAMMAR.units).find((ending) => name.endsWith(ending))];
  const [, digits, unit] = QUANTITY.exec(value) ?? ["", "", ""];
  const found = digits.endsWith("inf") ? Number(digits.replace("inf", "Infinity")) : parseValue(digits);
  const isPlain = typeof found === "number" && digits !== "";
  const known = isPlain && (!unit || Object.hasOwn(units, unit));
  const wrong = isPlain ? `${name} has the units ${Object.keys(units).join(", ")}, not ${unit}` : `${name} holds numbers, and '${value}' is not a number`;
  return { column: name, operator: match[2] === "==" ? "=" : match[2], value, number: known ? found * (unit ? units[unit] : 1) : null, fault: known ? "" : wrong };
}

const sorted = (_, value) => (value?.constructor === Object ? Object.fromEntries(Object.entries(value).sort()) : value);

/** Whether a condition holds for a value. @param {Condition} condition @param {Cell} cell @returns {boolean} */
function holds({ operator, value, number }, cell) {
  let same = false;
  if (isBlank(cell) || !value) same = isBlank(cell) && !value;
  else if (operator === "~") return fold(label(cell)).includes(fold(value));
  else if (typeof cell === "string") return COMPARE[operator](cell, value);
  else if (isNumber(cell)) {
    if (Array.isArray(cell) && WHOLE.test(cell[0]) && WHOLE.test(value)) return COMPARE[operator](BigInt(cell[0]), BigInt(value.replace("+", "")));
    if (number !== null) return COMPARE[operator](toNumber(cell), number);
  } else {
    const canonical = (content) => JSON.stringify(content, sorted);
    same = canonical(parseValue(value)) === canonical(JSON.parse(cell[1])) || fold(value) === fold(cell[0]);
  }
  return operator === "=" ? same : operator === "!=" && !same;
}
