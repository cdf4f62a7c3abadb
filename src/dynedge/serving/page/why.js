// Why an item is recommended: the shares of its score as one bar, and in words.

import { make } from "./make.js";
import { legend } from "./plot.js";
import { percent } from "./words.js";

const WORDS = {
  history: "had before",
  followed: "followed the last items",
  near: "near recent items",
  popular: "popular",
  states: "evolving states",
};
const BRIEF = { followed: "followed", near: "near", states: "states" };
const SAID = 0.05; // smaller shares are in the bar only

/** Of the reasons that these items have. */
export function reasonLegend(items) {
  const has = (kind) => items.some((item) => item.why?.shares[kind] > 0);
  return legend(Object.entries(WORDS).filter(([kind]) => has(kind)));
}

const words = (kind, near) => (kind === "near" && near !== null ? `near ${near}` : BRIEF[kind] ?? WORDS[kind] ?? kind);

/** Nothing where the model cannot say. */
export function reasons(why) {
  if (!why) return null;
  const shares = Object.entries(why.shares).filter(([, share]) => share > 0);
  const told = ([kind, share]) => `${percent(share)} ${words(kind, why.near)}`;
  const parts = shares.map((one) => {
    const part = make("i", { class: one[0], title: told(one) });
    part.style.flexGrow = one[1];
    return part;
  });
  const said = shares.filter(([, share]) => share >= SAID).sort((one, other) => other[1] - one[1]);
  const bar = make("span", { class: "shares", "aria-hidden": "true" }, parts);
  return make("span", { class: "why" }, bar, make("small", {}, said.map(told).join(" · ")));
}
