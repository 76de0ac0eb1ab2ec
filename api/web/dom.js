// Small helpers around the DOM. Text only ever goes in as text: there is no innerHTML anywhere on this page.

/** Makes an element: h("p", {class: "x", hidden: true}, "text", child). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Changes the text only when it differs, so that screen readers and selections stay undisturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setShown(element, shown) {
  element.hidden = !shown;
}
