// Small charts, drawn at the width they have, so that letters stay letters on a phone.

import { draw, make } from "./make.js";
import { short } from "./words.js";

const MOST = 480; // points of a line; more of them nobody sees

/** Values from `low` to `high` onto pixels from `start` to `stop`. */
export function scale(low, high, start, stop) {
  const place = (value) => start + ((value - low) / (high - low || 1)) * (stop - start);
  return Object.assign(place, { low, high, start, stop });
}

/** Multiples of 1, 2 or 5 times a power of ten, about so many. */
export function ticks({ low, high }, about = 4, whole = false) {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) * power, whole ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
}

/** The next 1, 2 or 5 times a power of ten: a top that stays while values wander below it. */
export function above(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

/** A picture of this height: `paint(width)` gives its parts, again whenever the width changes. */
export function chart(label, height, paint) {
  const picture = draw("svg", { role: "img", "aria-label": label, height });
  const frame = make("div", { class: "chart" }, picture);
  frame.style.height = `${height}px`;
  frame.paint = () => {
    const width = frame.clientWidth;
    if (!width) return;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...paint(width).flat().filter(Boolean));
  };
  new ResizeObserver(frame.paint).observe(frame);
  return frame;
}

export const text = (x, y, words, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, words);
export const rule = (x1, y1, x2, y2, kind = "grid") => draw("line", { x1, y1, x2, y2, class: kind });
const pair = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
export const line = (points, kind) => draw("polyline", { points: thinned(points).map(pair).join(" "), class: kind });

/** `told` is shown where a mouse rests on it. */
export const dot = (x, y, kind, told, r = 4) => draw("circle", { cx: x, cy: y, r, class: kind }, told && draw("title", {}, told));

/** What lies under a line, down to `floor`. */
export function area(points, floor, kind) {
  const shape = [[points[0][0], floor], ...points, [points.at(-1)[0], floor]];
  return draw("polygon", { points: shape.map(pair).join(" "), class: kind });
}

/** First and last stay. */
function thinned(points) {
  const every = Math.ceil(points.length / MOST);
  return points.filter((_, k) => k % every === 0 || k === points.length - 1);
}

/** Lines across with their numbers, at most a few; numbers below where asked. */
export function axes(x, y, { below = [], name = short, about = 3 } = {}) {
  const across = ticks(y, about).map((value) => [
    rule(x.start, y(value), x.stop, y(value)),
    text(x.start - 6, y(value) + 4, short(value), "end"),
  ]);
  const edge = (value) => (x(value) > x.stop - 24 ? "end" : x(value) < x.start + 24 ? "start" : "middle");
  return [across, below.map((value) => text(x(value), y.start + 17, name(value), edge(value)))].flat(2);
}

/** Room at the left for the longest number of an axis. */
export const margin = (y, about = 3) => 12 + 7 * Math.max(...ticks(y, about).map((value) => short(value).length));

/** Several lines over one axis of whole numbers: [{name, kind, values}], a name at each line's end. */
export function lines(label, height, series, { from = 1, unit = "epoch", zero = true, dots = true } = {}) {
  const shown = series.filter((one) => one.values.length && one.values.every(Number.isFinite));
  return chart(label, height, (width) => {
    const values = shown.flatMap((one) => one.values);
    const longest = Math.max(...shown.map((one) => one.values.length));
    const low = zero ? 0 : Math.min(...values);
    const y = scale(low, Math.max(...values) * (zero ? 1.08 : 1) || 1, height - 24, 10);
    const x = scale(from, from + longest - 1, margin(y, 4), width - 8);
    const below = ticks(x, Math.max(2, width / 90), true).filter((value) => value >= from);
    return [
      axes(x, y, { below, name: String, about: 4 }),
      shown.map(({ name, kind, values: own }) => {
        const points = own.map((value, k) => [longest > 1 ? x(from + k) : (x.start + x.stop) / 2, y(value)]);
        const marks = dots ? points.map(([px, py], k) => dot(px, py, kind, `${unit} ${from + k}: ${name} ${short(own[k])}`, 3.5)) : [];
        return [line(points, kind), ...marks];
      }).flat(),
    ];
  });
}

/** Which colour is what. */
export const legend = (entries) =>
  make("p", { class: "legend" }, entries.map(([kind, words]) => make("span", {}, make("i", { class: kind }), words)));
