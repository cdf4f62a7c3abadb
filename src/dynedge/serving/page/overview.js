// Overview: what the page offers, and some ids to start from.

import { ApiError, tryRequest } from "./api.js";
import { card, errorNote, html, itemLink, note, userLink } from "./dom.js";

const LISTED = 18;

export async function overview(_, signal) {
  const listIds = (side) => tryRequest(`/search?side=${side}&limit=${LISTED}`, { signal });
  const [users, items] = await Promise.all([listIds("users"), listIds("items")]);
  const introduction =
    "Select a user for recommendations with explanations, what-if analysis, history and embedding drift; select an " +
    "item for similar items and its drift.";
  const element = html(
    "div",
    {},
    html("div", { class: "head" }, html("h1", { tabindex: "-1" }, "Recommendation service"), note(introduction)),
    html("div", { class: "columns even" }, idList("Users", users, userLink), idList("Items", items, itemLink)),
    card(
      "Send an event",
      {},
      note("The states of its user and item are updated as soon as the event is stored; the charts above show it."),
      html("pre", { tabindex: "0" }, curlCommand(firstId(users, "ann"), firstId(items, "A New Song"))),
    ),
  );
  return { title: "Overview", element };
}

const firstId = (list, fallback) => (list instanceof ApiError ? fallback : (list.ids[0] ?? fallback));

function idList(title, list, link) {
  if (list instanceof ApiError) return card(title, {}, errorNote(list));
  if (!list.ids.length) return card(title, {}, note(`No ${title.toLowerCase()} yet. Send an event to add one.`));
  const chips = html("ul", { class: "chips" }, list.ids.map((id) => html("li", {}, link(id))));
  const more = list.ids.length === LISTED && note(`The first ${LISTED} by id. Use the search for others.`);
  return card(title, {}, chips, more);
}

/** A curl command, quoted for a shell. */
function curlCommand(user, item) {
  const event = { user_id: user, item_id: item, timestamp: `${new Date().toISOString().slice(0, 19)}Z` };
  const body = JSON.stringify({ events: [event] }).replaceAll("'", "'\\''");
  return `curl -X POST ${location.origin}/events \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}
