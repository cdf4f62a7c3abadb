// Elements from values. Strings become text, never markup: ids are whatever people send.

const SVG = "http://www.w3.org/2000/svg";

/** make("a", {href, class: "x", onclick: f}, "text", child, null): null and false leave no trace. */
export function make(tag, given = {}, ...children) {
  return filled(document.createElement(tag), given, children);
}

/** The same for what stands inside a picture. */
export function draw(tag, given = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), given, children);
}

function filled(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put children in the place of the old ones; whoever had the focus keeps it, known by its data-key. */
export function replace(place, ...children) {
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...children.flat().filter(Boolean));
  if (held) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === held)?.focus();
}

/** A titled part of a page. */
export function card(title, given, ...children) {
  return make("section", { ...given, class: `card ${given.class ?? ""}` }, make("h2", {}, title), ...children);
}

export const note = (...words) => make("p", { class: "note" }, ...words);

/** What a model cannot do (422) is no trouble, only said. */
export const wrong = (problem) => make("p", { class: problem.status === 422 ? "note" : "wrong" }, problem.message);

export const userLink = (id) => make("a", { href: `#/users/${encodeURIComponent(id)}`, "data-key": id }, String(id));
export const itemLink = (id) => make("a", { href: `#/items/${encodeURIComponent(id)}`, "data-key": id }, String(id));

/** Told to those who do not see the page. */
export function say(sentence) {
  document.getElementById("said").textContent = sentence;
}
