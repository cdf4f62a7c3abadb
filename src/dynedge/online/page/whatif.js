// One more event, supposed: the ten before it and after it, side by side. The service stores nothing of it.

import { at, Problem, tried } from "./ask.js";
import { card, draw, itemLink, make, note, replace, say, wrong } from "./make.js";
import { finder } from "./search.js";
import { many } from "./words.js";

const TEN = 10;
const KNOWN = 100; // ranks that are told of who comes in and who leaves
const ROW = 36; // pixels, as the style has it
const BETWEEN = 56;

/** `changed()` is called when another item is supposed, or none: then `ask` and `show` what follows from it. */
export function whatIf(user, changed) {
  const result = make("div", {}, START());
  const field = finder("What if the next event were with this item?", "an item's id …", ["items"], (_, item) => suppose(item));
  const element = card(
    "What if",
    { class: "what-if" },
    note("Suppose one more event of this user, now. Nothing of it is stored: no journal, no state."),
    make("div", { class: "suppose" }, make("span", { "aria-hidden": "true" }, "What if the next event were with"), field),
    result,
  );
  const self = { element, item: null, ask: answer, show, suppose };

  async function suppose(item) {
    self.item = item;
    await changed();
    if (item === null) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    element.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
    say(result.querySelector("p").textContent);
  }

  async function answer(filterSeen, signal) {
    if (self.item === null) return null;
    const body = { item_id: self.item, k: KNOWN, filter_seen: filterSeen };
    return tried(at("users", user, "/what-if"), { body, signal });
  }

  function show(found) {
    const clear = make("button", { class: "quiet", "data-key": "clear", onclick: () => suppose(null).then(() => field.field.focus()) }, "Clear");
    if (found === null) replace(result, START());
    else if (found instanceof Problem) replace(result, wrong(found));
    else replace(result, compared(self.item, found), make("p", { class: "note end" }, clear, "Supposed only: nothing was stored. This view stands still until you clear it."));
  }

  return self;
}

const START = () => note("Choose an item, here or beside a recommendation: the ten before and after stand here.");

function compared(item, { before, after }) {
  const left = before.slice(0, TEN).map((one) => one.item_id);
  const right = after.slice(0, TEN);
  const later = new Map(after.map((one, k) => [one.item_id, k + 1]));
  const moved = right.filter((one, k) => one.rank_before !== k + 1).length;
  const fresh = right.filter((one) => !one.rank_before || one.rank_before > TEN).length;
  const change = moved ? `${many(moved, "place")} of ten would change hands, ${many(fresh, "item")} would be new among them.` : "the ten would stay as they are.";
  return [
    make("p", { class: "outcome" }, "After ", make("b", {}, String(item)), `: ${change}`),
    make(
      "div",
      { class: "sides" },
      make("h3", {}, "before"), make("span"), make("h3", {}, "after"),
      make("ol", {}, left.map((id, k) => make("li", {}, leaves(later.get(id)), make("span", { class: "name" }, itemLink(id)), rank(k)))),
      crossings(left, later),
      make("ol", {}, right.map((one, k) => make("li", {}, rank(k), make("span", { class: "name" }, itemLink(one.item_id)), move(one.rank_before, k + 1)))),
    ),
  ];
}

const rank = (k) => make("span", { class: "rank" }, String(k + 1));

/** Beside those that would leave the ten: to where. */
const leaves = (to) => (to <= TEN ? null : make("small", { class: "down" }, to ? `to ${to}` : "away"));

function move(before, now) {
  if (!before) return make("small", { class: "up" }, "new");
  if (before > TEN) return make("small", { class: "up", title: `it was at ${before}` }, `from ${before}`);
  if (before === now) return make("small", { "aria-label": "stays" }, "=");
  const up = before > now;
  const far = Math.abs(before - now);
  return make("small", { class: up ? "up" : "down", "aria-label": `${up ? "up" : "down"} ${far}` }, `${up ? "▲" : "▼"} ${far}`);
}

function crossings(left, later) {
  const middle = (rank) => (rank - 0.5) * ROW;
  const height = TEN * ROW;
  const paths = left.map((id, k) => {
    const to = later.get(id) <= TEN ? later.get(id) : null;
    if (!to) return null;
    const kind = to === k + 1 ? "stays" : to < k + 1 ? "up" : "down";
    const [from, end, half] = [middle(k + 1), middle(to), BETWEEN / 2];
    return draw("path", { d: `M0 ${from}C${half} ${from} ${half} ${end} ${BETWEEN} ${end}`, class: kind });
  });
  return draw("svg", { class: "crossings", viewBox: `0 0 ${BETWEEN} ${height}`, preserveAspectRatio: "none", height, "aria-hidden": "true" }, paths);
}
