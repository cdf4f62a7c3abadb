// Explanation of a score: the shares of its reasons as a stacked bar and as text.

import { legend } from "./charts.js";
import { html } from "./dom.js";
import { percent } from "./format.js";

const LABELS = {
  history: "Seen before",
  followed: "Often follows the last items",
  near: "Occurs near recent items",
  popular: "Popular",
  states: "User and item states",
};
const SHORT_LABELS = {
  history: "seen before",
  followed: "follows last items",
  near: "near recent items",
  popular: "popular",
  states: "states",
};
const MIN_TEXT_SHARE = 0.05; // smaller shares are shown in the bar only

/** Legend of the reasons that occur in these items. */
export function explanationLegend(items) {
  const occurs = (reason) => items.some((item) => item.explanation?.shares[reason] > 0);
  return legend(Object.entries(LABELS).filter(([reason]) => occurs(reason)));
}

function label(reason, similarTo) {
  return reason === "near" && similarTo !== null ? `near ${similarTo}` : (SHORT_LABELS[reason] ?? reason);
}

/** Stacked bar and text; null if the model gives no explanation. */
export function explanationBar(explanation) {
  if (!explanation) return null;
  const shares = Object.entries(explanation.shares).filter(([, share]) => share > 0);
  const text = ([reason, share]) => `${percent(share)} ${label(reason, explanation.similar_to)}`;
  const segments = shares.map((entry) => {
    const segment = html("i", { class: entry[0], title: text(entry) });
    segment.style.flexGrow = entry[1];
    return segment;
  });
  const largest = shares.filter(([, share]) => share >= MIN_TEXT_SHARE).sort((a, b) => b[1] - a[1]);
  const bar = html("span", { class: "shares", "aria-hidden": "true" }, segments);
  return html("span", { class: "explanation" }, bar, html("small", {}, largest.map(text).join(" · ")));
}
