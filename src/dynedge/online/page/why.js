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

export const reasonLegend = () => legend(Object.entries(WORDS));

const words = (kind, near) => (kind === "near" && near !== null ? `near ${near}` : BRIEF[kind] ?? WORDS[kind] ?? kind);

/** Nothing where the model cannot say. */
export function reasons(why) {
  if (!why) return null;
  const shares = Object.entries(why.shares).filter(([, share]) => share > 0);
  const bar = make("span", { class: "shares", "aria-hidden": "true" }, shares.map(([kind, share]) => part(kind, share, why.near)));
  const said = shares.filter(([, share]) => share >= SAID).sort((a, b) => b[1] - a[1]);
  return make("span", { class: "why" }, bar, make("small", {}, said.map(([kind, share]) => `${percent(share)} ${words(kind, why.near)}`).join(" · ")));
}

function part(kind, share, near) {
  const element = make("i", { class: kind, title: `${percent(share)} ${words(kind, near)}` });
  element.style.flexGrow = share;
  return element;
}
