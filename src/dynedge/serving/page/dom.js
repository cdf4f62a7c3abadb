// Builders for HTML and SVG elements. Strings become text, never markup: ids can be any text.

const SVG = "http://www.w3.org/2000/svg";

/** html("a", {href, class: "x", onclick: f}, "text", child, null): null and false children are skipped. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG elements. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces the children of an element; the focus stays on the child with the same data-key. */
export function replaceChildren(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children.flat().filter(Boolean));
  if (focused) [...parent.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

/** A titled section. */
export function card(title, attributes, ...children) {
  const options = { ...attributes, class: `card ${attributes.class ?? ""}` };
  return html("section", options, html("h2", {}, title), ...children);
}

export const note = (...content) => html("p", { class: "note" }, ...content);

/** 422 means that the model does not support a request, which is a note rather than an error. */
export const errorNote = (error) => html("p", { class: error.status === 422 ? "note" : "error" }, error.message);

export const userLink = (id) => html("a", { href: `#/users/${encodeURIComponent(id)}`, "data-key": id }, String(id));
export const itemLink = (id) => html("a", { href: `#/items/${encodeURIComponent(id)}`, "data-key": id }, String(id));

/** The columns that describe an item, such as its title: their values, with the names in a tooltip. */
export function itemDetails(metadata) {
  const entries = Object.entries(metadata ?? {});
  if (!entries.length) return null;
  const title = entries.map(([name, value]) => `${name}: ${value}`).join("\n");
  return html("small", { class: "details", title }, entries.map(([, value]) => String(value)).join(" · "));
}

/** Announces a sentence to screen readers. */
export function announce(sentence) {
  document.getElementById("announcement").textContent = sentence;
}
