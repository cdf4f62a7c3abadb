// Item view: number of events, similar items, embedding drift.

import { ApiError, entityPath, request, tryRequest } from "./api.js";
import { card, errorNote, html, itemDetails, itemLink, note, replaceChildren } from "./dom.js";
import { driftCard } from "./drift.js";
import { fixed, plural } from "./format.js";

export async function itemView(id, signal) {
  const head = html("div", { class: "head" });
  const similarPart = html("div");
  const driftPart = html("div");
  let events = null;

  async function load() {
    const [item, similar, drift] = await Promise.all(
      ["", "/similar?k=10", "/drift"].map((rest) => tryRequest(entityPath("items", id, rest), { signal })),
    );
    events = item.events;
    replaceChildren(head, heading(id, item));
    if (item instanceof ApiError) return;
    replaceChildren(similarPart, card("Similar items", {}, similarItems(similar)));
    replaceChildren(driftPart, driftCard(drift, "item"));
  }

  async function refresh() {
    if ((await request(entityPath("items", id), { signal })).events !== events) await load();
  }

  await load();
  const element = html("div", {}, head, html("div", { class: "columns even" }, similarPart, driftPart));
  return { title: String(id), element, refresh: events === undefined ? null : refresh };
}

function heading(id, item) {
  const title = html("h1", { tabindex: "-1" }, html("small", {}, "Item"), String(id));
  if (item instanceof ApiError) return [title, errorNote(item), note("Search for ids by their first letters.")];
  const origin = item.in_training_log ? "In the training log" : "Added after training";
  return [title, itemDetails(item.metadata), note(`${origin}. ${plural(item.events, "event")}.`)];
}

function similarItems(similar) {
  if (similar instanceof ApiError) return errorNote(similar);
  if (!similar.items.length) return note("There are no other items.");
  return [
    note("Items with the most similar vectors, by cosine similarity (1: same direction)."),
    html("ol", { class: "ranked similar" }, similar.items.map((item, k) => similarItem(item, k + 1))),
  ];
}

function similarItem(item, rank) {
  const bar = html("i");
  bar.style.width = `${100 * Math.max(0, item.score)}%`;
  return html(
    "li",
    {},
    html("span", { class: "rank" }, String(rank)),
    html("span", { class: "name" }, itemLink(item.item_id), itemDetails(item.metadata)),
    html("span", { class: "meter", "aria-hidden": "true" }, bar),
    html("span", { class: "score" }, fixed(item.score, 3)),
  );
}
