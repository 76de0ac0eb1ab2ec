// What a description says of a person, as small labelled chips; a chip is also a filter.

import { h } from "./dom.js";

const MOST = 12;
const NOTHING_SAID = new Set(["", "unknown", "none"]);

/** [path, value] of every attribute that says something; items of a list have the path of the list. */
export function leavesOf(value, path = "") {
  if (Array.isArray(value)) return value.flatMap((item) => leavesOf(item, path));
  if (value !== null && typeof value === "object") {
    return Object.entries(value).flatMap(([key, item]) => leavesOf(item, path ? `${path}.${key}` : key));
  }
  const text = typeof value === "boolean" ? (value ? "yes" : "no") : String(value ?? "");
  return NOTHING_SAID.has(text.trim().toLowerCase()) ? [] : [[path, text]];
}

/** Chips as buttons; `choose(path, value)` is called for the one that is clicked. */
export function chipsOf(attributes, choose) {
  return leavesOf(attributes).slice(0, MOST).map(([path, value]) => {
    const label = labelOf(path);
    const chip = h("button", { class: "chip", type: "button", title: `Only events with ${label}: ${value}` }, h("b", {}, label), value);
    chip.addEventListener("click", () => choose(path, value));
    return chip;
  });
}

/** "upper.colours" -> "upper": what stands beside the value tells the rest. */
export const labelOf = (path) => path.split(".")[0].replaceAll("_", " ");
