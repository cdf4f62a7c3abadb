// Where to begin: what this is, and some ids to look at.

import { Problem, tried } from "./ask.js";
import { card, itemLink, make, note, userLink, wrong } from "./make.js";

const SHOWN = 18;

export async function overview(_, signal) {
  const some = (side) => tried(`/search?side=${side}&limit=${SHOWN}`, { signal });
  const [users, items] = await Promise.all([some("users"), some("items")]);
  const words =
    "Search a user to see what to recommend and why, what one more event would change, and where their state went; " +
    "an item, to see its neighbours.";
  const element = make(
    "div",
    {},
    make("div", { class: "head" }, make("h1", { tabindex: "-1" }, "States that move with every event"), note(words)),
    make("div", { class: "columns even" }, begun("Users", users, userLink), begun("Items", items, itemLink)),
    card(
      "Send an event",
      {},
      note("States move as soon as it is on the disk; the plots above show it."),
      make("pre", { tabindex: "0" }, command(first(users, "ann"), first(items, "A New Song"))),
    ),
  );
  return { title: "Overview", element };
}

const first = (found, other) => (found instanceof Problem ? other : (found.ids[0] ?? other));

function begun(title, found, link) {
  if (found instanceof Problem) return card(title, {}, wrong(found));
  if (!found.ids.length) return card(title, {}, note("Nobody yet: send an event."));
  const chips = make("ul", { class: "chips" }, found.ids.map((id) => make("li", {}, link(id))));
  const rest = found.ids.length === SHOWN && note("The first by their ids; the search finds every other.");
  return card(title, {}, chips, rest);
}

/** As a shell takes it, whatever the ids are. */
function command(user, item) {
  const event = { user_id: user, item_id: item, timestamp: `${new Date().toISOString().slice(0, 19)}Z` };
  const body = JSON.stringify({ events: [event] }).replaceAll("'", "'\\''");
  return `curl -X POST ${location.origin}/events \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}
