// An item: how often it was met, which items lie near it, where its state went.

import { ask, at, Problem, tried } from "./ask.js";
import { drift } from "./drift.js";
import { card, itemLink, make, note, replace, wrong } from "./make.js";
import { fixed, many } from "./words.js";

export async function itemView(id, signal) {
  const head = make("div", { class: "head" });
  const near = make("div");
  const path = make("div");
  let events = null;

  async function load() {
    const [about, similar, moved] = await Promise.all(
      ["", "/similar?k=10", "/drift"].map((rest) => tried(at("items", id, rest), { signal })),
    );
    events = about.events;
    replace(head, heading(id, about));
    if (about instanceof Problem) return;
    replace(near, card("Neighbours", {}, neighbours(similar)));
    replace(path, drift(moved, "item"));
  }

  async function refresh() {
    if ((await ask(at("items", id), { signal })).events !== events) await load();
  }

  await load();
  const element = make("div", {}, head, make("div", { class: "columns even" }, near, path));
  return { title: String(id), element, refresh: events === undefined ? null : refresh };
}

function heading(id, about) {
  const title = make("h1", { tabindex: "-1" }, make("small", {}, "item"), String(id));
  if (about instanceof Problem) return [title, wrong(about), note("Search above by how its id begins.")];
  const since = about.new ? "Came after the run was trained" : "Known from training";
  return [title, note(`${since}; met ${about.events === 1 ? "once" : many(about.events, "time")}.`)];
}

function neighbours(similar) {
  if (similar instanceof Problem) return wrong(similar);
  if (!similar.items.length) return note("There is no other item.");
  return [
    note("Items whose vectors point the same way, by cosine: 1 is the same direction."),
    make("ol", { class: "ranked near" }, similar.items.map((item, k) => neighbour(item, k + 1))),
  ];
}

function neighbour(item, rank) {
  const bar = make("i");
  bar.style.width = `${100 * Math.max(0, item.score)}%`;
  return make(
    "li",
    {},
    make("span", { class: "rank" }, String(rank)),
    make("span", { class: "name" }, itemLink(item.item_id)),
    make("span", { class: "meter", "aria-hidden": "true" }, bar),
    make("span", { class: "score" }, fixed(item.score, 3)),
  );
}
