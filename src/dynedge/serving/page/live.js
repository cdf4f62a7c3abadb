// What happens now: asked each second, shown where it always stands. Views that look at one thing hear of news.

import { ask, Problem } from "./ask.js";
import { make } from "./make.js";
import { above, area, axes, chart, line, margin, scale } from "./plot.js";
import { count, exact, fixed, many, moment } from "./words.js";

const EVERY = 1000; // milliseconds
const NEWS = 2000; // and no oftener than this is a view told
const HEIGHT = 104;
const RECENT = 5; // seconds whose mean is "now"

const place = document.getElementById("live");
const trouble = document.getElementById("trouble");
let told = null;
let paused = false;
let hear = null;
let heard = { events: -1, when: 0 };

/** `listener` is called when events have come; one view at a time. */
export function onNews(listener) {
  hear = listener;
  heard = { events: told?.events ?? -1, when: performance.now() };
}

const rates = [
  rate("events", "events a second", "first"),
  rate("states", "states moved a second", "second"),
];
const facts = { events: fact("events"), newest: fact("newest event"), users: fact("users"), items: fact("items") };
const pause = make("button", { class: "quiet", onclick: toggle }, "Pause");

export function begin() {
  place.append(...rates.map((one) => one.element), make("div", { class: "facts" }, Object.values(facts), pause));
  loop();
}

function toggle() {
  paused = !paused;
  pause.textContent = paused ? "Go on" : "Pause";
}

async function loop() {
  if (!paused && !document.hidden) await look();
  setTimeout(loop, EVERY);
}

async function look() {
  try {
    told = await ask("/live");
    trouble.hidden = true;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    trouble.textContent = `${error.message} Trying again …`;
    trouble.hidden = false;
    return;
  }
  rates.forEach((one) => one.show(told.seconds));
  const since = "since this service started";
  const odd = `${count(told.duplicates)} came twice, ${count(told.late)} late`;
  tell(facts.events, count(told.events), `${many(told.accepted, "event")} ${since}; ${odd}`);
  if (told.newest === null) tell(facts.newest, "none yet", "");
  else tell(facts.newest, moment(told.newest), exact(told.newest));
  tell(facts.users, count(told.users), `${many(told.users_moved, "state")} of users moved ${since}`);
  tell(facts.items, count(told.items), `${many(told.items_moved, "state")} of items moved ${since}`);
  if (hear && told.events !== heard.events && performance.now() - heard.when > NEWS) {
    heard = { events: told.events, when: performance.now() };
    hear();
  }
}

function fact(name) {
  return make("p", {}, make("small", {}, name), make("b", {}, "–"));
}

/** `more` is shown where a mouse rests on it. */
function tell(fact, words, more) {
  fact.lastChild.textContent = words;
  fact.title = more;
}

/** One number that changes and where it came from in two minutes. */
function rate(key, name, kind) {
  let seconds = [];
  let top = 1;
  const value = make("strong", {}, "–");
  const picture = chart(`${name}, the last two minutes`, HEIGHT, (width) => {
    const y = scale(0, top, HEIGHT - 22, 8);
    const x = scale(0, 119, margin(y, 2), width - 2);
    const points = seconds.map((one, k) => [x(k), y(one[key])]);
    const words = { 0: "2 min ago", 59: "1 min", 119: "now" };
    return [
      axes(x, y, { below: width > 200 ? [0, 59, 119] : [0, 119], name: (k) => words[k], about: 2 }),
      points.length > 0 && [area(points, y.start, kind), line(points, kind)],
    ].flat();
  });
  const show = (latest) => {
    seconds = latest;
    const most = Math.max(...seconds.map((one) => one[key]), 1);
    if (most > top || most < top / 5) top = above(most);
    const now = seconds.slice(-RECENT).reduce((sum, one) => sum + one[key], 0) / RECENT;
    value.textContent = now < 100 ? fixed(now, 1) : count(now);
    picture.paint();
  };
  return { element: make("div", { class: "rate" }, make("p", {}, value, ` ${name}`), picture), show };
}
