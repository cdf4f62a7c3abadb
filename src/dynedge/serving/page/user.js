// A user: what to recommend and why, what one more event would change, what they did, where their state went.

import { ask, at, Problem, tried } from "./ask.js";
import { drift } from "./drift.js";
import { card, itemLink, make, note, replace, wrong } from "./make.js";
import { reasonLegend, reasons } from "./why.js";
import { whatIf } from "./whatif.js";
import { clock, day, exact, fixed, many, moment } from "./words.js";

const SHOWN = 50;

export async function userView(id, signal) {
  const head = make("div", { class: "head" });
  const best = make("div");
  const events = card("Timeline", { class: "timeline" });
  const path = make("div");
  const seen = make("input", { type: "checkbox", onchange: () => load() });
  const supposed = whatIf(id, () => load());
  let last = null;
  let loads = 0;

  /** Everything at once, so that the lists are of one moment; an answer that was overtaken is dropped. */
  async function load() {
    const mine = (loads += 1);
    const list = `/recommendations?k=10&why=true&filter_seen=${seen.checked}`;
    const paths = ["", list, `/timeline?limit=${SHOWN}`, "/drift"];
    const [about, found, timeline, moved, answer] = await Promise.all([
      ...paths.map((rest) => tried(at("users", id, rest), { signal })),
      supposed.ask(seen.checked, signal),
    ]);
    if (mine !== loads) return about;
    last = JSON.stringify(about.last);
    replace(head, heading(id, about));
    replace(best, recommended(found, (item) => supposed.suppose(item)));
    const scrolled = fromEnd(events);
    replace(events, make("h2", {}, "Timeline"), timelineOf(timeline));
    scrolled();
    replace(path, about instanceof Problem ? null : drift(moved, "user"));
    supposed.show(answer);
    return about;
  }

  async function refresh() {
    if (supposed.item !== null) return; // who compares two lists wants them to stand still
    const about = await ask(at("users", id), { signal });
    if (JSON.stringify(about.last) !== last && supposed.item === null) await load();
  }

  const about = await load();
  const isKnown = !(about instanceof Problem);
  const filter = make("label", { class: "check" }, seen, "leave out what they have had");
  const lists = card("Recommendations", { class: "recommended" }, isKnown && filter, best);
  const sides = [make("div", {}, lists, isKnown && supposed.element), isKnown && make("div", {}, events, path)];
  const element = make("div", {}, head, make("div", { class: "columns" }, sides));
  return { title: String(id), element, refresh: isKnown ? refresh : null };
}

function heading(id, about) {
  const title = make("h1", { tabindex: "-1" }, make("small", {}, "user"), String(id));
  if (about instanceof Problem) return [title, wrong(about)];
  const since = about.new ? "Came after the run was trained" : "Known from training";
  if (!about.last) return [title, note(`${since}; no event here yet.`)];
  return [title, note(`${since}; last event here: `, itemLink(about.last.item_id), `, ${moment(about.last.time)}.`)];
}

const KNOWN = "The ten best items as of the newest event. Scores order them; only their differences mean something.";
const UNKNOWN = "Whoever is unknown gets the popular list; a score is the item's share of all events.";

function recommended(found, suppose) {
  if (found instanceof Problem) return wrong(found);
  if (!found.items.length) return note("Nothing is left to recommend.");
  const explained = found.items.some((item) => item.why);
  return [
    note(found.known ? KNOWN : UNKNOWN),
    found.known && explained && reasonLegend(found.items),
    make("ol", { class: "ranked" }, found.items.map((item, k) => entry(item, k + 1, found, suppose))),
  ];
}

function entry(item, rank, found, suppose) {
  const more = {
    class: "quiet",
    "data-key": `what if ${item.item_id}`,
    "aria-label": `What if the next event were with ${item.item_id}?`,
    onclick: () => suppose(item.item_id),
  };
  return make(
    "li",
    {},
    make("span", { class: "rank" }, String(rank)),
    make("span", { class: "name" }, itemLink(item.item_id)),
    make("span", { class: "score", title: String(item.score) }, fixed(item.score, found.known ? 2 : 4)),
    reasons(item.why),
    found.known && make("button", more, "what if"),
  );
}

/** Under each day what was met, the newest first. */
function timelineOf(timeline) {
  if (timeline instanceof Problem) return wrong(timeline);
  const events = timeline.events;
  if (!events.length) {
    const ways = [make("code", {}, "POST /events"), " brings some, or ", make("code", {}, "--replay LOG"), "."];
    return note("No events of this user since the service began; earlier ones are in the run's log. ", ...ways);
  }
  const days = new Map();
  for (const event of events) days.set(day(event.time), [...(days.get(day(event.time)) ?? []), event]);
  const all = events.length < SHOWN;
  const parts = [...days].flatMap(([name, own]) => [make("h3", {}, name), make("ul", {}, own.map(happened))]);
  return [
    note(all ? `${many(events.length, "event")} since the service began.` : `The latest ${SHOWN} events.`),
    make("div", { class: "days", tabindex: "0", role: "group", "aria-label": "Events, the newest first" }, parts),
  ];
}

/** Call what comes back once the list has changed: whoever had scrolled down sees the same events as before. */
function fromEnd(events) {
  const old = events.querySelector(".days");
  const left = old?.scrollTop ? old.scrollHeight - old.scrollTop : null;
  return () => {
    const list = events.querySelector(".days");
    if (left !== null && list) list.scrollTop = list.scrollHeight - left;
  };
}

const happened = (event) =>
  make("li", {}, make("time", { title: exact(event.time) }, clock(event.time)), itemLink(event.item_id));
