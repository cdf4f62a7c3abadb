// Embedding drift: distance of a state from its first recorded value, and its trajectory in two dimensions.

import { ApiError } from "./api.js";
import { axes, chart, dot, leftMargin, line, scale } from "./charts.js";
import { card, errorNote, html, note, svg } from "./dom.js";
import { clock, date, dateTime, fixed, plural, significant } from "./format.js";

const TITLE = "Embedding drift";
const HEIGHT = 180;
const MAX_DOTS = 60; // longer trajectories are drawn without dots

/** `drift`: the response of …/drift, or its ApiError; `side`: "user" or "item". */
export function driftCard(drift, side) {
  if (drift instanceof ApiError) return card(TITLE, {}, errorNote(drift));
  const { points } = drift;
  if (!points.length) {
    const text = `No updates of this ${side}'s state since the service started. Each event updates it.`;
    return card(TITLE, {}, note(text));
  }
  if (points.length === 1) {
    const text = `One state update so far, at ${dateTime(points[0].time)}. The next event starts the trajectory.`;
    return card(TITLE, {}, note(text));
  }
  const last = points.at(-1);
  const summary =
    `${plural(points.length, "state update")} recorded since the service started. ` +
    `Distance from the first: ${significant(last.distance_from_first)}, last step: ${significant(last.step)}, ` +
    `norm: ${significant(last.norm)}.`;
  const distance = figure("Distance from the first recorded state", distanceChart(points));
  const trajectory = figure("Trajectory (first two principal components)", trajectoryChart(points));
  return card(TITLE, {}, note(summary), html("div", { class: "two" }, distance, trajectory));
}

const figure = (caption, picture) => html("figure", {}, html("figcaption", {}, caption), picture);

/** A step chart: a state is constant between events. */
function distanceChart(points) {
  return chart("Distance of the state from its first recorded value, over time", HEIGHT, (width) => {
    const farthest = Math.max(...points.map((point) => point.distance_from_first));
    const y = scale(0, farthest * 1.08 || 1, HEIGHT - 24, 8);
    const x = scale(points[0].time, points.at(-1).time, leftMargin(y), width - 8);
    const steps = points.flatMap(({ time, distance_from_first: distance }, k) => {
      const before = points[Math.max(k - 1, 0)].distance_from_first;
      return [[x(time), y(before)], [x(time), y(distance)]];
    });
    const [px, py] = steps.at(-1);
    const format = width > 300 ? dateTime : date(x.low) === date(x.high) ? clock : date;
    const current = dot(px, py, "first", tooltip(points.at(-1)));
    return [axes(x, y, { below: [x.low, x.high], format }), line(steps, "second"), current];
  });
}

/** Both axes have the same unit. */
function trajectoryChart(points) {
  return chart("Trajectory of the state in its first two principal components", HEIGHT, (width) => {
    const [x, y] = ["x", "y"].map((key) => extent(points.map((point) => point[key])));
    const unit = Math.min((width - 32) / x.length, (HEIGHT - 32) / y.length);
    const pixels = points.map((point) => [
      width / 2 + (point.x - x.middle) * unit,
      HEIGHT / 2 - (point.y - y.middle) * unit,
    ]);
    const dots =
      points.length > MAX_DOTS ? [] : points.map((point, k) => dot(...pixels[k], "step", tooltip(point), 2.5));
    return [
      svg("rect", { class: "frame", x: 0.5, y: 0.5, width: width - 1, height: HEIGHT - 1 }),
      line(pixels, "second"),
      dots,
      dot(...pixels[0], "start", `first: ${tooltip(points[0])}`),
      dot(...pixels.at(-1), "first", `now: ${tooltip(points.at(-1))}`),
    ];
  });
}

function extent(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return { middle: (low + high) / 2, length: high - low || 1e-6 };
}

const tooltip = ({ time, distance_from_first: distance, step }) =>
  `${dateTime(time)}: distance ${fixed(distance, 2)}, step ${fixed(step, 2)}`;
