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
    picture.replaceChildren(...paint(width).flat(Infinity).filter(Boolean));
  };
  new ResizeObserver(frame.paint).observe(frame);
  return frame;
}

export const text = (x, y, words, anchor = "start") => draw("text", { x, y, "text-anchor": anchor }, words);
export const rule = (x1, y1, x2, y2, kind = "grid") => draw("line", { x1, y1, x2, y2, class: kind });
const pair = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
export const line = (points, kind) => draw("polyline", { points: thinned(points).map(pair).join(" "), class: kind });

/** `told` is shown where a mouse rests on it. */
export const dot = (x, y, kind, told, r = 4) =>
  draw("circle", { cx: x, cy: y, r, class: kind }, told && draw("title", {}, told));

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
  return [across, below.map((value) => text(x(value), y.start + 17, name(value), edge(value)))];
}

/** Room at the left for the longest number of an axis. */
export const margin = (y, about = 3) => 12 + 7 * Math.max(...ticks(y, about).map((value) => short(value).length));

/** Several lines from nought upwards, over 1, 2, 3 …: [{name, kind, values}]. */
export function lines(label, height, series, { unit = "epoch", dots = true } = {}) {
  return chart(label, height, (width) => {
    const longest = Math.max(...series.map((one) => one.values.length));
    const alone = longest > 1 ? 0 : 0.5;
    const y = scale(0, 1.08 * Math.max(...series.flatMap((one) => one.values)) || 1, height - 24, 10);
    const x = scale(1 - alone, longest + alone, margin(y, 4), width - 8);
    const drawn = series.map(({ name, kind, values }) => {
      const points = values.map((value, k) => [x(k + 1), y(value)]);
      const told = (k) => `${unit} ${k + 1}: ${name} ${short(values[k])}`;
      return [line(points, kind), dots && points.map((point, k) => dot(...point, kind, told(k), 3.5))];
    });
    return [axes(x, y, { below: ticks(x, Math.max(2, width / 90), true), name: String, about: 4 }), drawn];
  });
}

/** Which colour is what. */
export const legend = (entries) =>
  make("p", { class: "legend" }, entries.map(([kind, words]) => make("span", {}, make("i", { class: kind }), words)));
