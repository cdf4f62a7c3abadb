// What-if analysis: the top 10 before and after one hypothetical event, side by side. Nothing is stored.

import { ApiError, entityPath, tryRequest } from "./api.js";
import { announce, card, errorNote, html, itemLink, note, replaceChildren, svg } from "./dom.js";
import { plural } from "./format.js";
import { searchField } from "./search.js";

const TOP = 10;
const MAX_RANK = 100; // ranks below this are not shown
const ROW_HEIGHT = 36; // pixels, as in page.css
const GAP = 56;

/** `changed()` is called when another item, or none, is selected; the view then calls `request` and `show`. */
export function whatIfCard(user, changed) {
  const question = "What if the next event were with this item?";
  const search = searchField(question, "Item id …", ["items"], (_, item) => select(item));
  const label = html("span", { "aria-hidden": "true" }, "What if the next event were with");
  const result = html("div");
  const element = card(
    "What if",
    { class: "what-if" },
    note("Recommendations after one hypothetical event of this user. Nothing is stored."),
    html("div", { class: "hypothetical" }, label, search),
    result,
  );
  const self = { element, item: null, request, show, select };

  async function select(item) {
    self.item = item;
    await changed();
    if (item === null) return;
    const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    element.scrollIntoView({ block: "nearest", behavior: reducedMotion ? "auto" : "smooth" });
    announce(result.querySelector("p").textContent);
  }

  async function request(filterSeen, signal) {
    if (self.item === null) return null;
    const body = { item_id: self.item, k: MAX_RANK, filter_seen: filterSeen };
    return tryRequest(entityPath("users", user, "/what-if"), { body, signal });
  }

  function show(comparison) {
    if (comparison === null) {
      replaceChildren(result, note("Select an item here or next to a recommendation to compare the top 10."));
    } else if (comparison instanceof ApiError) replaceChildren(result, errorNote(comparison));
    else {
      const footer = html("p", { class: "note end" }, clearButton(), FOOTER);
      replaceChildren(result, compare(self.item, comparison), footer);
    }
  }

  function clearButton() {
    const clear = () => select(null).then(() => search.field.focus());
    return html("button", { class: "quiet", "data-key": "clear", onclick: clear }, "Clear");
  }

  return self;
}

const FOOTER = "Hypothetical: nothing was stored. This view is not refreshed until you clear it.";

function compare(item, { before, after }) {
  const left = before.slice(0, TOP).map((one) => one.item_id);
  const right = after.slice(0, TOP);
  const rankAfter = new Map(after.map((one, k) => [one.item_id, k + 1]));
  const rank = (k) => html("span", { class: "rank" }, String(k + 1));
  const name = (id) => html("span", { class: "name" }, itemLink(id));
  const leftRows = left.map((id, k) => html("li", {}, departure(rankAfter.get(id)), name(id), rank(k)));
  const rightRows = right.map((one, k) => html("li", {}, rank(k), name(one.item_id), change(one.rank_before, k + 1)));
  return [
    html("p", { class: "outcome" }, "After ", html("b", {}, String(item)), `: ${summary(right)}`),
    html(
      "div",
      { class: "sides" },
      html("h3", {}, "Before"),
      html("span"),
      html("h3", {}, "After"),
      html("ol", {}, leftRows),
      rankLines(left, rankAfter),
      html("ol", {}, rightRows),
    ),
  ];
}

function summary(right) {
  const changed = right.filter((one, k) => one.rank_before !== k + 1).length;
  const added = right.filter((one) => !one.rank_before || one.rank_before > TOP).length;
  if (!changed) return "no recommendation would change.";
  const share = changed === right.length ? `all ${changed}` : `${changed} of ${right.length}`;
  return `${share} recommendations would change, with ${added ? plural(added, "new item") : "no new items"}.`;
}

/** For an item that would leave the top 10: its rank after the event. */
function departure(rank) {
  if (rank <= TOP) return null;
  const title = rank ? `Rank after: ${rank}` : `Not in the top ${MAX_RANK} after`;
  return html("small", { class: "down", title }, rank ? `→ ${rank}` : "removed");
}

function change(before, now) {
  if (!before) return html("small", { class: "up" }, "new");
  if (before === now) return html("small", { "aria-label": "unchanged" }, "=");
  const [direction, sign] = before > now ? ["up", "▲"] : ["down", "▼"];
  const distance = Math.abs(before - now);
  const options = { class: direction, "aria-label": `${direction} ${distance}`, title: `Rank before: ${before}` };
  return html("small", options, `${sign} ${distance}`);
}

/** Lines from the rank before to the rank after, for items that stay in the top 10. */
function rankLines(left, rankAfter) {
  const middle = (rank) => (rank - 0.5) * ROW_HEIGHT;
  const half = GAP / 2;
  const paths = left.map((id, k) => {
    const [was, is] = [k + 1, rankAfter.get(id)];
    if (!(is <= TOP)) return null;
    const d = `M0 ${middle(was)}C${half} ${middle(was)} ${half} ${middle(is)} ${GAP} ${middle(is)}`;
    return svg("path", { d, class: is === was ? "unchanged" : is < was ? "up" : "down" });
  });
  const size = { viewBox: `0 0 ${GAP} ${TOP * ROW_HEIGHT}`, height: TOP * ROW_HEIGHT, preserveAspectRatio: "none" };
  return svg("svg", { class: "rank-lines", "aria-hidden": "true", ...size }, paths);
}
