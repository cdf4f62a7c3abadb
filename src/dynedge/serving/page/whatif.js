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
  const label = "What if the next event were with this item?";
  const field = finder(label, "an item's id …", ["items"], (_, item) => suppose(item));
  const asked = make("span", { "aria-hidden": "true" }, "What if the next event were with");
  const result = make("div");
  const element = card(
    "What if",
    { class: "what-if" },
    note("Suppose one more event of this user, now. Nothing of it is stored: no journal, no state."),
    make("div", { class: "suppose" }, asked, field),
    result,
  );
  const self = { element, item: null, ask, show, suppose };

  async function suppose(item) {
    self.item = item;
    await changed();
    if (item === null) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    element.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
    say(result.querySelector("p").textContent);
  }

  async function ask(filterSeen, signal) {
    if (self.item === null) return null;
    const body = { item_id: self.item, k: KNOWN, filter_seen: filterSeen };
    return tried(at("users", user, "/what-if"), { body, signal });
  }

  function show(found) {
    if (found === null) {
      replace(result, note("Choose an item, here or beside a recommendation: the ten before and after stand here."));
    } else if (found instanceof Problem) replace(result, wrong(found));
    else replace(result, compared(self.item, found), make("p", { class: "note end" }, clear(), ENDS));
  }

  function clear() {
    const end = () => suppose(null).then(() => field.field.focus());
    return make("button", { class: "quiet", "data-key": "clear", onclick: end }, "Clear");
  }

  return self;
}

const ENDS = "Supposed only: nothing was stored. This view stands still until you clear it.";

function compared(item, { before, after }) {
  const left = before.slice(0, TEN).map((one) => one.item_id);
  const right = after.slice(0, TEN);
  const later = new Map(after.map((one, k) => [one.item_id, k + 1]));
  const rank = (k) => make("span", { class: "rank" }, String(k + 1));
  const name = (id) => make("span", { class: "name" }, itemLink(id));
  return [
    make("p", { class: "outcome" }, "After ", make("b", {}, String(item)), `: ${outcome(right)}`),
    make(
      "div",
      { class: "sides" },
      make("h3", {}, "before"),
      make("span"),
      make("h3", {}, "after"),
      make("ol", {}, left.map((id, k) => make("li", {}, leaves(later.get(id)), name(id), rank(k)))),
      crossings(left, later),
      make("ol", {}, right.map((one, k) => make("li", {}, rank(k), name(one.item_id), move(one.rank_before, k + 1)))),
    ),
  ];
}

function outcome(right) {
  const moved = right.filter((one, k) => one.rank_before !== k + 1).length;
  const fresh = right.filter((one) => !one.rank_before || one.rank_before > TEN).length;
  if (!moved) return "the ten would stay as they are.";
  return `${many(moved, "place")} of ten would change hands, ${many(fresh, "item")} would be new among them.`;
}

/** Beside those that would leave the ten: to where. */
const leaves = (to) => (to <= TEN ? null : make("small", { class: "down" }, to ? `to ${to}` : "away"));

function move(before, now) {
  if (!before) return make("small", { class: "up" }, "new");
  if (before === now) return make("small", { "aria-label": "stays" }, "=");
  const [kind, sign] = before > now ? ["up", "▲"] : ["down", "▼"];
  const far = Math.abs(before - now);
  return make("small", { class: kind, "aria-label": `${kind} ${far}`, title: `it was at ${before}` }, `${sign} ${far}`);
}

/** From each place before to the place after, of those that stay among the ten. */
function crossings(left, later) {
  const middle = (rank) => (rank - 0.5) * ROW;
  const half = BETWEEN / 2;
  const paths = left.map((id, k) => {
    const [was, is] = [k + 1, later.get(id)];
    if (!(is <= TEN)) return null;
    const d = `M0 ${middle(was)}C${half} ${middle(was)} ${half} ${middle(is)} ${BETWEEN} ${middle(is)}`;
    return draw("path", { d, class: is === was ? "stays" : is < was ? "up" : "down" });
  });
  const size = { viewBox: `0 0 ${BETWEEN} ${TEN * ROW}`, height: TEN * ROW, preserveAspectRatio: "none" };
  return draw("svg", { class: "crossings", "aria-hidden": "true", ...size }, paths);
}
