// User view: recommendations with explanations, what-if, history, embedding drift.

import { ApiError, entityPath, request, tryRequest } from "./api.js";
import { card, errorNote, html, itemDetails, itemLink, note, replaceChildren } from "./dom.js";
import { driftCard } from "./drift.js";
import { explanationBar, explanationLegend } from "./explanation.js";
import { clock, date, dateTime, exactTime, fixed, plural } from "./format.js";
import { whatIfCard } from "./what_if.js";

const MAX_EVENTS = 50;

export async function userView(id, signal) {
  const head = html("div", { class: "head" });
  const list = html("div");
  const historyCard = card("User history", { class: "history" });
  const driftPart = html("div");
  const hideSeen = html("input", { type: "checkbox", onchange: () => load() });
  const whatIf = whatIfCard(id, () => load());
  let lastEvent = null;
  let loads = 0;

  /** Loads all parts at once, so that they agree with each other; a response that was overtaken is dropped. */
  async function load() {
    const number = (loads += 1);
    const query = `/recommendations?k=10&explain=true&filter_seen=${hideSeen.checked}`;
    const paths = ["", query, `/history?limit=${MAX_EVENTS}`, "/drift"];
    const [user, recommendations, history, drift, comparison] = await Promise.all([
      ...paths.map((rest) => tryRequest(entityPath("users", id, rest), { signal })),
      whatIf.request(hideSeen.checked, signal),
    ]);
    if (number !== loads) return user;
    lastEvent = JSON.stringify(user.last_event);
    replaceChildren(head, heading(id, user));
    replaceChildren(list, recommendationList(recommendations, (item) => whatIf.select(item)));
    const restoreScroll = keepScroll(historyCard);
    replaceChildren(historyCard, html("h2", {}, "User history"), historyList(history));
    restoreScroll();
    replaceChildren(driftPart, user instanceof ApiError ? null : driftCard(drift, "user"));
    whatIf.show(comparison);
    return user;
  }

  async function refresh() {
    if (whatIf.item !== null) return; // a comparison stays as it is until it is cleared
    const user = await request(entityPath("users", id), { signal });
    if (JSON.stringify(user.last_event) !== lastEvent && whatIf.item === null) await load();
  }

  const isKnown = !((await load()) instanceof ApiError);
  const filter = html("label", { class: "check" }, hideSeen, "Hide items already seen");
  const recommended = card("Recommendations", { class: "recommended" }, isKnown && filter, list);
  const right = isKnown && html("div", {}, historyCard, driftPart);
  const columns = [html("div", {}, recommended, isKnown && whatIf.element), right];
  const element = html("div", {}, head, html("div", { class: "columns" }, columns));
  return { title: String(id), element, refresh: isKnown ? refresh : null };
}

function heading(id, user) {
  const title = html("h1", { tabindex: "-1" }, html("small", {}, "User"), String(id));
  if (user instanceof ApiError) return [title, errorNote(user)];
  const origin = user.in_training_log ? "In the training log" : "Added after training";
  if (!user.last_event) return [title, note(`${origin}. No events since the service started.`)];
  const { item_id: item, time } = user.last_event;
  return [title, note(`${origin}. Last event: `, itemLink(item), `, ${dateTime(time)}.`)];
}

const KNOWN_USER = "Top 10 at the time of the newest event. Only differences between scores are meaningful.";
const UNKNOWN_USER = "Unknown user: the most popular items, with their shares of all events as scores.";

function recommendationList(recommendations, selectWhatIf) {
  if (recommendations instanceof ApiError) return errorNote(recommendations);
  const { known, items } = recommendations;
  if (!items.length) return note("There are no items left to recommend.");
  const explained = items.some((item) => item.explanation);
  return [
    note(known ? KNOWN_USER : UNKNOWN_USER),
    known && explained && explanationLegend(items),
    html("ol", { class: "ranked" }, items.map((item, k) => recommendation(item, k + 1, known, selectWhatIf))),
  ];
}

function recommendation(item, rank, known, selectWhatIf) {
  const button = {
    class: "quiet",
    "data-key": `what if ${item.item_id}`,
    "aria-label": `What if the next event were with ${item.item_id}?`,
    title: "What would change if this were the user's next event?",
    onclick: () => selectWhatIf(item.item_id),
  };
  return html(
    "li",
    {},
    html("span", { class: "rank" }, String(rank)),
    html("span", { class: "name" }, itemLink(item.item_id), itemDetails(item.metadata)),
    html("span", { class: "score", title: String(item.score) }, fixed(item.score, known ? 2 : 4)),
    explanationBar(item.explanation),
    known && html("button", button, "What if"),
  );
}

/** Events grouped by day, newest first. */
function historyList(history) {
  if (history instanceof ApiError) return errorNote(history);
  const { events } = history;
  if (!events.length) {
    const sources = [html("code", {}, "POST /events"), " or ", html("code", {}, "--replay LOG"), "."];
    const reason = "No events since the service started; earlier ones are in the training log. Add some with ";
    return note(reason, ...sources);
  }
  const days = new Map();
  for (const event of events) days.set(date(event.time), [...(days.get(date(event.time)) ?? []), event]);
  const complete = events.length < MAX_EVENTS;
  const dayGroup = ([day, group]) => [html("h3", {}, day), html("ul", {}, group.map(historyEntry))];
  const groups = [...days].flatMap(dayGroup);
  return [
    note(complete ? `${plural(events.length, "event")} since the service started.` : `Latest ${MAX_EVENTS} events.`),
    html("div", { class: "days", tabindex: "0", role: "group", "aria-label": "Events, newest first" }, groups),
  ];
}

/** Returns a function that restores the scroll position relative to the end, once the list has changed. */
function keepScroll(historyCard) {
  const old = historyCard.querySelector(".days");
  const fromEnd = old?.scrollTop ? old.scrollHeight - old.scrollTop : null;
  return () => {
    const list = historyCard.querySelector(".days");
    if (fromEnd !== null && list) list.scrollTop = list.scrollHeight - fromEnd;
  };
}

const historyEntry = (event) =>
  html("li", {}, html("time", { title: exactTime(event.time) }, clock(event.time)), itemLink(event.item_id));
