// Where a state went: how far from where it was first seen, and its way on a map.

import { Problem } from "./ask.js";
import { card, draw, make, note, wrong } from "./make.js";
import { axes, chart, dot, line, margin, scale } from "./plot.js";
import { clock, day, fixed, many, moment, short } from "./words.js";

const HEIGHT = 180;
const MARKED = 60; // moves; of more, only the way

/** `found`: the answer of …/drift, or its Problem. */
export function drift(found, whose) {
  if (found instanceof Problem) return card("Drift", {}, wrong(found));
  const path = found.path;
  if (!path.length) {
    const words = [`The state of this ${whose} has not moved since the service started. `, "It moves with each event."];
    return card("Drift", {}, note(...words));
  }
  if (path.length === 1) {
    return card("Drift", {}, note(`One move seen so far, at ${moment(path[0].time)}; the next event begins a way.`));
  }
  const last = path.at(-1);
  const words =
    `${many(path.length, "move")} seen since the service started, ${short(last.from_first)} away from the first; ` +
    `the latest step was ${short(last.step)}, the state is ${short(last.norm)} long.`;
  const far = figure("Distance from the first, over time", distance(path));
  return card("Drift", {}, note(words), make("div", { class: "two" }, far, figure("Its way on a map", map(path))));
}

const figure = (caption, picture) => make("figure", {}, make("figcaption", {}, caption), picture);

/** In steps: a state stays where it is until its next event. */
function distance(path) {
  return chart("Distance of the state from where it was first seen, over time", HEIGHT, (width) => {
    const y = scale(0, Math.max(...path.map((point) => point.from_first)) * 1.08 || 1, HEIGHT - 24, 8);
    const x = scale(path[0].time, path.at(-1).time, margin(y), width - 8);
    const points = path.flatMap(({ time, from_first: far }, k) => {
      const before = path[Math.max(k - 1, 0)].from_first;
      return [[x(time), y(before)], [x(time), y(far)]];
    });
    const [px, py] = points.at(-1);
    const name = width > 300 ? moment : day(x.low) === day(x.high) ? clock : day;
    const now = dot(px, py, "first", told(path.at(-1)));
    return [axes(x, y, { below: [x.low, x.high], name }), line(points, "second"), now];
  });
}

/** The two directions in which states differ most; one unit is as long upwards as sideways. */
function map(path) {
  return chart("The way of the state in the two directions in which states differ most", HEIGHT, (width) => {
    const [x, y] = ["x", "y"].map((key) => extent(path.map((one) => one[key])));
    const unit = Math.min((width - 32) / x.length, (HEIGHT - 32) / y.length);
    const points = path.map((one) => [width / 2 + (one.x - x.middle) * unit, HEIGHT / 2 - (one.y - y.middle) * unit]);
    const marks = path.length > MARKED ? [] : path.map((one, k) => dot(...points[k], "step", told(one), 2.5));
    return [
      draw("rect", { class: "frame", x: 0.5, y: 0.5, width: width - 1, height: HEIGHT - 1 }),
      line(points, "second"),
      marks,
      dot(...points[0], "start", `first: ${told(path[0])}`),
      dot(...points.at(-1), "first", `now: ${told(path.at(-1))}`),
    ];
  });
}

function extent(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return { middle: (low + high) / 2, length: high - low || 1e-6 };
}

const told = ({ time, from_first: far, step }) =>
  `${moment(time)}: ${fixed(far, 2)} from the first, step ${fixed(step, 2)}`;
