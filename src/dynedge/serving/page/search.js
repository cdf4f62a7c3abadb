// Search field (ARIA combobox) that finds ids by prefix, for mouse and keyboard.

import { ApiError, request } from "./api.js";
import { announce, html } from "./dom.js";
import { plural } from "./format.js";

const DELAY_MS = 120; // after a key press
const LISTED = 8; // ids per side
const SINGULAR = { users: "user", items: "item" };
let fields = 0;

/** Returns an element with the input as `.field`. `select(side, id)` is called with the chosen id. */
export function searchField(label, placeholder, sides, select) {
  const name = `results-${(fields += 1)}`;
  const field = html("input", {
    type: "search", role: "combobox", placeholder, "aria-label": label, autocomplete: "off", spellcheck: "false",
    autocapitalize: "off", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": name,
  });
  const list = html("ul", { id: name, role: "listbox", "aria-label": label, hidden: true });
  let active = -1;
  let timer = 0;
  let listedPrefix = null;
  let controller = new AbortController();

  const options = () => [...list.querySelectorAll("[role=option]")];

  function toggle(open) {
    list.hidden = !open;
    field.setAttribute("aria-expanded", String(open));
    if (!open) highlight(-1);
  }

  function highlight(index) {
    active = index;
    options().forEach((option, k) => option.setAttribute("aria-selected", String(k === index)));
    const option = options()[index];
    if (option) field.setAttribute("aria-activedescendant", option.id);
    else field.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  function choose(option) {
    toggle(false);
    field.value = "";
    select(option.side, option.externalId);
  }

  async function search() {
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    const prefix = field.value.trim();
    const path = (side) => `/search?side=${side}&limit=${LISTED}&prefix=${encodeURIComponent(prefix)}`;
    try {
      const results = await Promise.all(sides.map((side) => request(path(side), { signal: controller.signal })));
      const matches = sides.flatMap((side, k) => results[k].ids.map((id) => [side, id]));
      list.replaceChildren(...matches.map(([side, id], k) => listOption(side, id, prefix, `${name}-${k}`)));
      if (!matches.length) list.append(html("li", { class: "none" }, `No id starts with “${prefix}”.`));
      const count = `${plural(matches.length, "result")}; use the arrow keys.`;
      announce(matches.length ? count : `No id starts with ${prefix}.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      list.replaceChildren(html("li", { class: "none" }, error.message));
    }
    listedPrefix = prefix;
    highlight(-1);
    if (document.activeElement === field) toggle(true);
  }

  function listOption(side, id, prefix, key) {
    const text = String(id);
    const option = html(
      "li",
      { role: "option", id: key, "aria-selected": "false", onclick: () => choose(option) },
      html("span", {}, html("b", {}, text.slice(0, prefix.length)), text.slice(prefix.length)),
      sides.length > 1 && html("small", {}, SINGULAR[side]),
    );
    return Object.assign(option, { side, externalId: id });
  }

  /** Chooses the highlighted or the first result, after waiting for the results of the current text. */
  async function confirm() {
    while (listedPrefix !== field.value.trim()) await search();
    const option = options()[Math.max(active, 0)];
    if (!list.hidden && option) choose(option);
  }

  function onKey(event) {
    const last = options().length - 1;
    if (event.key === "Escape") {
      if (list.hidden) field.value = "";
      toggle(false);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) search();
      else if (event.key === "ArrowDown") highlight(active < last ? active + 1 : 0);
      else highlight(active > 0 ? active - 1 : last);
    } else if (event.key === "Enter") confirm();
    else return;
    event.preventDefault();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, DELAY_MS);
  });
  field.addEventListener("click", search);
  field.addEventListener("blur", () => toggle(false));
  field.addEventListener("keydown", onKey);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus until the click
  return Object.assign(html("div", { class: "search-field" }, field, list), { field });
}
