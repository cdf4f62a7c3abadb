// Small SVG charts, drawn at their actual width so that text keeps its size on a phone.

import { html, svg } from "./dom.js";
import { significant } from "./format.js";

const MAX_POINTS = 480; // of a line

/** Linear scale from the values `low` to `high` to the pixels `start` to `stop`. */
export function scale(low, high, start, stop) {
  const position = (value) => start + ((value - low) / (high - low || 1)) * (stop - start);
  return Object.assign(position, { low, high, start, stop });
}

/** About `count` ticks at multiples of 1, 2 or 5 times a power of ten. */
export function ticks({ low, high }, count = 4, integers = false) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const nice = [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) * power;
  const step = Math.max(nice, integers ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
}

/** The next 1, 2 or 5 times a power of ten: an axis limit that stays constant while values vary below it. */
export function niceLimit(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

/** A chart of this height; `paint(width)` returns its elements and is called again when the width changes. */
export function chart(label, height, paint) {
  const picture = svg("svg", { role: "img", "aria-label": label, height });
  const frame = html("div", { class: "chart" }, picture);
  frame.style.height = `${height}px`;
  frame.paint = () => {
    const width = frame.clientWidth;
    if (!width) return;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...paint(width).flat(Infinity).filter(Boolean));
  };
  new ResizeObserver(frame.paint).observe(frame);
  return frame;
}

export const text = (x, y, content, anchor = "start") => svg("text", { x, y, "text-anchor": anchor }, content);
export const rule = (x1, y1, x2, y2, style = "grid") => svg("line", { x1, y1, x2, y2, class: style });
const pair = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
export const line = (points, style) => svg("polyline", { points: thin(points).map(pair).join(" "), class: style });

/** A dot with a tooltip. */
export const dot = (x, y, style, tooltip, r = 4) =>
  svg("circle", { cx: x, cy: y, r, class: style }, tooltip && svg("title", {}, tooltip));

/** The area under a line, down to `floor`. */
export function area(points, floor, style) {
  const shape = [[points[0][0], floor], ...points, [points.at(-1)[0], floor]];
  return svg("polygon", { points: shape.map(pair).join(" "), class: style });
}

/** Drops points of a long line; the first and the last stay. */
function thin(points) {
  const every = Math.ceil(points.length / MAX_POINTS);
  return points.filter((_, k) => k % every === 0 || k === points.length - 1);
}

/** Horizontal grid lines with their values, and the labels of `below` on the x axis. */
export function axes(x, y, { below = [], format = significant, count = 3 } = {}) {
  const grid = ticks(y, count).map((value) => [
    rule(x.start, y(value), x.stop, y(value)),
    text(x.start - 6, y(value) + 4, significant(value), "end"),
  ]);
  const anchor = (value) => (x(value) > x.stop - 24 ? "end" : x(value) < x.start + 24 ? "start" : "middle");
  return [grid, below.map((value) => text(x(value), y.start + 17, format(value), anchor(value)))];
}

/** Left margin for the longest label of the y axis. */
export const leftMargin = (y, count = 3) =>
  12 + 7 * Math.max(...ticks(y, count).map((value) => significant(value).length));

/** Line chart of several series over 1, 2, 3 …, from zero upwards: [{name, style, values}]. */
export function lineChart(label, height, series, { unit = "epoch", dots = true } = {}) {
  return chart(label, height, (width) => {
    const longest = Math.max(...series.map((one) => one.values.length));
    const padding = longest > 1 ? 0 : 0.5;
    const y = scale(0, 1.08 * Math.max(...series.flatMap((one) => one.values)) || 1, height - 24, 10);
    const x = scale(1 - padding, longest + padding, leftMargin(y, 4), width - 8);
    const lines = series.map(({ name, style, values }) => {
      const points = values.map((value, k) => [x(k + 1), y(value)]);
      const tooltip = (k) => `${unit} ${k + 1}: ${name} ${significant(values[k])}`;
      return [line(points, style), dots && points.map((point, k) => dot(...point, style, tooltip(k), 3.5))];
    });
    return [axes(x, y, { below: ticks(x, Math.max(2, width / 90), true), format: String, count: 4 }), lines];
  });
}

/** Legend of [style, label] pairs. */
export function legend(entries) {
  const entry = ([style, label]) => html("span", {}, html("i", { class: style }), label);
  return html("p", { class: "legend" }, entries.map(entry));
}
