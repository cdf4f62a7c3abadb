// Where a state went: how far from where it was first seen, and its way on a map.

import { card, make, note, wrong } from "./make.js";
import { axes, chart, dot, line, margin, rule, scale } from "./plot.js";
import { clock, day, fixed, many, moment, short } from "./words.js";
import { Problem } from "./ask.js";

const HEIGHT = 180;

/** `found`: the answer of …/drift, or its Problem. */
export function drift(found, whose) {
  if (found instanceof Problem) return card("Drift", {}, wrong(found));
  const path = found.path;
  if (!path.length) {
    return card("Drift", {}, note(`The state of this ${whose} has not moved since the service started. It moves with each of its events.`));
  }
  if (path.length === 1) {
    return card("Drift", {}, note(`One move seen so far, at ${moment(path[0].time)}; the next event begins a way.`));
  }
  const last = path.at(-1);
  return card(
    "Drift",
    { class: "drift" },
    note(`${many(path.length, "move")} seen since the service started, ${short(last.from_first)} away from the first; the latest step was ${short(last.step)}, the state is ${short(last.norm)} long.`),
    make("div", { class: "two" }, figure("Distance from the first, over time", distance(path)), figure("Its way on a map", map(path))),
  );
}

const figure = (caption, picture) => make("figure", {}, make("figcaption", {}, caption), picture);

/** In steps: a state stays where it is until its next event. */
function distance(path) {
  return chart("Distance of the state from where it was first seen, over time", HEIGHT, (width) => {
    const y = scale(0, Math.max(...path.map((point) => point.from_first)) * 1.08 || 1, HEIGHT - 24, 8);
    const x = scale(path[0].time, path.at(-1).time, margin(y), width - 8);
    const points = path.flatMap((point, k) => [[x(point.time), y(path[Math.max(k - 1, 0)].from_first)], [x(point.time), y(point.from_first)]]);
    const [px, py] = points.at(-1);
    const name = width > 300 ? moment : day(x.low) === day(x.high) ? clock : day;
    return [axes(x, y, { below: [x.low, x.high], name }), line(points, "second"), dot(px, py, "first", told(path.at(-1)))].flat();
  });
}

/** The two directions in which states differ most; one unit is as long upwards as sideways. */
function map(path) {
  return chart("The way of the state in the two directions in which states differ most", HEIGHT, (width) => {
    const middle = (key) => (Math.min(...path.map((one) => one[key])) + Math.max(...path.map((one) => one[key]))) / 2;
    const reach = (key) => Math.max(...path.map((one) => Math.abs(one[key] - middle(key)))) || 1e-6;
    const unit = Math.min((width - 32) / 2 / reach("x"), (HEIGHT - 32) / 2 / reach("y"));
    const spot = (one) => [width / 2 + (one.x - middle("x")) * unit, HEIGHT / 2 - (one.y - middle("y")) * unit];
    const points = path.map(spot);
    const marks = path.length > 60 ? [] : path.map((one, k) => dot(...points[k], "step", told(one), 2.5));
    return [
      rule(0.5, 0.5, width - 0.5, 0.5), rule(0.5, HEIGHT - 0.5, width - 0.5, HEIGHT - 0.5),
      rule(0.5, 0.5, 0.5, HEIGHT - 0.5), rule(width - 0.5, 0.5, width - 0.5, HEIGHT - 0.5),
      line(points, "second"), ...marks,
      dot(...points[0], "start", `first: ${told(path[0])}`), dot(...points.at(-1), "first", `now: ${told(path.at(-1))}`),
    ];
  });
}

const told = (point) => `${moment(point.time)}: ${fixed(point.from_first, 2)} from the first, step ${fixed(point.step, 2)}`;
