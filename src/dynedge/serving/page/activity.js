// Live activity at the top of every view, polled each second. A view can register to be refreshed on new events.

import { ApiError, request } from "./api.js";
import { area, axes, chart, leftMargin, line, niceLimit, scale } from "./charts.js";
import { html } from "./dom.js";
import { dateTime, exactTime, fixed, integer, plural } from "./format.js";

const POLL_MS = 1000;
const REFRESH_MS = 2000; // minimum time between two refreshes of a view
const HEIGHT = 104;
const MEAN_SECONDS = 5; // the current rate is the mean over these

const container = document.getElementById("activity");
const banner = document.getElementById("connection-error");
let activity = null;
let paused = false;
let refreshView = null;
let refreshed = { events: -1, when: 0 };

/** Registers the function that is called when events have arrived; one view at a time. */
export function onNewEvents(refresh) {
  refreshView = refresh;
  refreshed = { events: activity?.journal_events ?? -1, when: performance.now() };
}

const rates = [
  rateChart("events", "events per second", "first"),
  rateChart("state_updates", "state updates per second", "second"),
];
const facts = { events: fact("Events"), newest: fact("Newest event"), users: fact("Users"), items: fact("Items") };
const pauseButton = html("button", { class: "quiet", onclick: togglePause }, "Pause");

export function startPolling() {
  const summary = html("div", { class: "facts" }, Object.values(facts), pauseButton);
  container.append(...rates.map((one) => one.element), summary);
  poll();
}

function togglePause() {
  paused = !paused;
  pauseButton.textContent = paused ? "Resume" : "Pause";
}

async function poll() {
  if (!paused && !document.hidden) await update();
  setTimeout(poll, POLL_MS);
}

async function update() {
  try {
    activity = await request("/activity");
    banner.hidden = true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    banner.textContent = `${error.message} Retrying …`;
    banner.hidden = false;
    return;
  }
  rates.forEach((one) => one.show(activity.per_second));
  showFacts();
  const { journal_events: events } = activity;
  if (refreshView && events !== refreshed.events && performance.now() - refreshed.when > REFRESH_MS) {
    refreshed = { events, when: performance.now() };
    refreshView();
  }
}

function showFacts() {
  const since = "since this service started";
  const counts = `${integer(activity.duplicates)} duplicates, ${integer(activity.late)} late`;
  show(facts.events, integer(activity.journal_events), `${plural(activity.accepted, "event")} ${since}; ${counts}`);
  const newest = activity.newest_event_time;
  if (newest === null) show(facts.newest, "none yet", "");
  else show(facts.newest, dateTime(newest), exactTime(newest));
  show(facts.users, integer(activity.users), `${plural(activity.user_state_updates, "state update")} ${since}`);
  show(facts.items, integer(activity.items), `${plural(activity.item_state_updates, "state update")} ${since}`);
}

function fact(name) {
  return html("p", {}, html("small", {}, name), html("b", {}, "–"));
}

function show(element, value, tooltip) {
  element.lastChild.textContent = value;
  element.title = tooltip;
}

/** The current rate and its chart over the last two minutes. */
function rateChart(key, name, style) {
  let seconds = [];
  let limit = 1;
  const value = html("strong", {}, "–");
  const picture = chart(`${name}, last two minutes`, HEIGHT, (width) => {
    const y = scale(0, limit, HEIGHT - 22, 8);
    const x = scale(0, 119, leftMargin(y, 2), width - 2);
    const points = seconds.map((one, k) => [x(k), y(one[key])]);
    const labels = { 0: "2 min ago", 59: "1 min", 119: "now" };
    return [
      axes(x, y, { below: width > 200 ? [0, 59, 119] : [0, 119], format: (k) => labels[k], count: 2 }),
      points.length > 0 && [area(points, y.start, style), line(points, style)],
    ].flat();
  });
  const update = (latest) => {
    seconds = latest;
    const largest = Math.max(...seconds.map((one) => one[key]), 1);
    if (largest > limit || largest < limit / 5) limit = niceLimit(largest);
    const mean = seconds.slice(-MEAN_SECONDS).reduce((sum, one) => sum + one[key], 0) / MEAN_SECONDS;
    value.textContent = mean < 100 ? fixed(mean, 1) : integer(mean);
    picture.paint();
  };
  return { element: html("div", { class: "rate" }, html("p", {}, value, ` ${name}`), picture), show: update };
}
