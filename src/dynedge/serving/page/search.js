// A field that finds ids by how they begin, for mouse and keyboard alike.

import { ask, Problem } from "./ask.js";
import { make, say } from "./make.js";
import { many } from "./words.js";

const WAIT = 120; // milliseconds after a key
const SHOWN = 8; // ids of each side
const ONE = { users: "user", items: "item" };
let fields = 0;

/** `sides`: where to look. `chosen(side, id)` hears what was taken. The field is `.field` of what comes back. */
export function finder(label, hint, sides, chosen) {
  const name = `found-${(fields += 1)}`;
  const field = make("input", {
    type: "search", role: "combobox", placeholder: hint, "aria-label": label, autocomplete: "off", spellcheck: "false",
    autocapitalize: "off", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": name,
  });
  const list = make("ul", { id: name, role: "listbox", "aria-label": label, hidden: true });
  let active = -1;
  let timer = 0;
  let listed = null; // the text that the list is of
  let asking = new AbortController();

  const options = () => [...list.querySelectorAll("[role=option]")];

  function show(open) {
    list.hidden = !open;
    field.setAttribute("aria-expanded", String(open));
    if (!open) mark(-1);
  }

  function mark(place) {
    active = place;
    options().forEach((option, k) => option.setAttribute("aria-selected", String(k === place)));
    const option = options()[place];
    if (option) field.setAttribute("aria-activedescendant", option.id);
    else field.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  function take(option) {
    show(false);
    field.value = "";
    chosen(option.side, option.own);
  }

  async function look() {
    clearTimeout(timer);
    asking.abort();
    asking = new AbortController();
    const prefix = field.value.trim();
    const path = (side) => `/search?side=${side}&limit=${SHOWN}&prefix=${encodeURIComponent(prefix)}`;
    try {
      const found = await Promise.all(sides.map((side) => ask(path(side), { signal: asking.signal })));
      const rows = sides.flatMap((side, k) => found[k].ids.map((id) => [side, id]));
      list.replaceChildren(...rows.map(([side, id], k) => row(side, id, prefix, `${name}-${k}`)));
      if (!rows.length) list.append(make("li", { class: "none" }, `No id begins with “${prefix}”.`));
      say(rows.length ? `${many(rows.length, "id")} found; arrow keys choose.` : `No id begins with ${prefix}.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      list.replaceChildren(make("li", { class: "none" }, error.message));
    }
    listed = prefix;
    mark(-1);
    if (document.activeElement === field) show(true);
  }

  function row(side, id, prefix, key) {
    const text = String(id);
    const option = make(
      "li",
      { role: "option", id: key, "aria-selected": "false", onclick: () => take(option) },
      make("span", {}, make("b", {}, text.slice(0, prefix.length)), text.slice(prefix.length)),
      sides.length > 1 && make("small", {}, ONE[side]),
    );
    return Object.assign(option, { side, own: id });
  }

  async function enter() {
    while (listed !== field.value.trim()) await look();
    const option = options()[Math.max(active, 0)];
    if (!list.hidden && option) take(option);
  }

  function key(event) {
    const last = options().length - 1;
    if (event.key === "Escape") {
      if (list.hidden) field.value = "";
      show(false);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) look();
      else if (event.key === "ArrowDown") mark(active < last ? active + 1 : 0);
      else mark(active > 0 ? active - 1 : last);
    } else if (event.key === "Enter") enter();
    else return;
    event.preventDefault();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, WAIT);
  });
  field.addEventListener("click", look);
  field.addEventListener("blur", () => show(false));
  field.addEventListener("keydown", key);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus until the click
  return Object.assign(make("div", { class: "finder" }, field, list), { field });
}
