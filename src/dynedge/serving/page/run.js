// The run that is served: how good it is, how it learned, how deep its windows were.

import { Problem, tried } from "./ask.js";
import { card, draw, make, note, wrong } from "./make.js";
import { dot, legend, lines, rule, scale } from "./plot.js";
import { fixed, many, short } from "./words.js";

const NAMES = {
  mrr: "MRR",
  "recall@1": "Recall@1",
  "recall@5": "Recall@5",
  "recall@10": "Recall@10",
  "recall@20": "Recall@20",
  "ndcg@10": "NDCG@10",
  mean_rank: "Mean rank",
};
const PARTS = { test: "test", valid: "validation" };
const DECILE = "decile";
const HEIGHT = 190;

export async function runView(_, signal) {
  const run = await tried("/run", { signal });
  const title = make("h1", { tabindex: "-1" }, make("small", {}, "run"), run.run ?? "The run");
  if (run instanceof Problem) return { title: "The run", element: make("div", {}, title, wrong(run)) };
  const told = [
    `A trained ${run.model}`,
    run.parameters && many(run.parameters, "parameter"),
    many(run.users, "user"),
    many(run.items, "item"),
    run.features.length > 0 && many(run.features.length, "event feature"),
  ];
  const tiles = [
    learning(run.curve),
    losses(run.curve),
    paths(run),
    residuals(run.curve),
    ages(run.metrics),
    settings(run.config),
  ];
  const head = make("div", { class: "head" }, title, note(told.filter(Boolean).join(" · ")));
  const element = make("div", {}, head, verdict(run), make("div", { class: "tiles" }, tiles));
  return { title: `Run ${run.run}`, element };
}

// ---- how good it is

function verdict({ metrics, run }) {
  const title = "How good it is";
  if (!metrics) {
    const command = make("code", {}, `dynedge evaluate ${run}`);
    const reload = make("code", {}, "POST /reload");
    const words = ["This run has not been evaluated, or its log is gone. ", command, " ranks its validation and test "];
    return card(title, {}, note(...words, "events; then ", reload, " shows them here."));
  }
  const parts = Object.keys(PARTS).filter((part) => metrics[part]);
  const found = parts.map((part) => metrics[part]);
  const heads = parts.map((part) => {
    const of = `${many(metrics[part].events, "event")} of ${many(metrics[part].users, "user")}`;
    return make("th", { scope: "col" }, PARTS[part], make("small", {}, of));
  });
  const rows = Object.entries(NAMES).map(([key, name]) => measured(name, key, found));
  const kinds = new Set(found.flatMap(({ breakdown }) => met(breakdown)).filter((kind) => !kind.startsWith(DECILE)));
  const split = [...kinds].map((kind) =>
    measured(`MRR, ${kind}`, "mrr", found.map((one) => one.breakdown?.[kind]), "sub"),
  );
  return card(
    title,
    {},
    note(
      "Each event's item is ranked among all items, as of just before the event. ",
      "Intervals hold 95\u202f% of the means when users are drawn again.",
    ),
    make(
      "div",
      { class: "scroll" },
      make("table", {}, make("thead", {}, make("tr", {}, make("td"), heads)), make("tbody", {}, rows, split)),
    ),
  );
}

/** Kinds of events that there were any of. */
const met = (breakdown = {}) => Object.keys(breakdown).filter((kind) => Number.isFinite(breakdown[kind].mrr));

function measured(name, key, found, kind = "") {
  const digits = key === "mean_rank" ? 1 : 3;
  const cells = found.map((one) => {
    if (!Number.isFinite(one?.[key])) return make("td", {}, "–");
    const range = one.intervals?.[key];
    const words = range ? `${fixed(range[0], digits)} to ${fixed(range[1], digits)}` : "";
    const picture = range && key !== "mean_rank" ? whisker(one[key], range) : make("i");
    return make("td", {}, make("div", {}, fixed(one[key], digits), make("small", {}, words), picture));
  });
  return make("tr", { class: kind }, make("th", { scope: "row" }, name), cells);
}

function whisker(value, [low, high]) {
  const x = scale(0, 1, 4, 156);
  const parts = [rule(4, 8, 156, 8), rule(x(low), 8, x(high), 8, "second"), dot(x(value), 8, "second", null, 2.5)];
  return draw("svg", { viewBox: "0 0 160 16", width: 160, height: 16, "aria-hidden": "true" }, parts);
}

// ---- how it learned

/** A card with lines in it and what they are. */
function plotted(title, words, label, series, more) {
  const named = legend(series.map((one) => [one.kind, one.name]));
  return card(title, {}, note(words), lines(label, HEIGHT, series, more), named);
}

function learning(curve) {
  const series = [
    { name: "MRR", kind: "first", values: column(curve, "valid_mrr") },
    { name: "Recall@10", kind: "second", values: column(curve, "valid_recall@10") },
  ].filter((one) => one.values.length);
  if (!series.length) return card("Learning curve", {}, note("Nothing was validated while this model learned."));
  const best = 1 + series[0].values.indexOf(Math.max(...series[0].values));
  const words = `Validation events after each epoch; epoch ${best} was kept.`;
  return plotted("Learning curve", words, "Validation MRR and Recall@10 by epoch", series);
}

function losses(curve) {
  const series = [
    { name: "recurrence", kind: "second", values: column(curve, "loss") },
    { name: "memory", kind: "first", values: column(curve, "memory_loss") },
  ].filter((one) => one.values.some(Boolean));
  if (!series.length) return card("Loss", {}, note("This model counts; it has no loss."));
  if (series.length === 1) series[0].name = "loss";
  return plotted("Loss", "Of the training events, by epoch.", "Training loss by epoch", series);
}

/** Steps that must wait for each other, in each training window. */
function paths({ longest_path: found, dnodes }) {
  if (!found.with.length) return card("Longest path", {}, note("This model's training has no chain of states to cut."));
  const [before, after] = [mean(found.without), mean(found.with)];
  const cut = `${short(mean(dnodes))} d-nodes a window cut it from ${short(before)} to ${short(after)} steps`;
  const series = [
    { name: "without d-nodes", kind: "other", values: found.without },
    { name: "with them", kind: "second", values: found.with },
  ];
  const label = "Longest path of each training window, without and with d-nodes";
  const more = { unit: "window", dots: false };
  return plotted("Longest path", `${cut} on average: ${short(before / after)} times shorter.`, label, series, more);
}

function residuals(curve) {
  const values = column(curve, "residual");
  if (!values.length) return card("D-node residuals", {}, note("This run has no d-nodes."));
  const words = "How far the vectors read at d-nodes are from the states they stand for, on average, by epoch.";
  const series = [{ name: "mean ‖φ − state‖", kind: "second", values }];
  return plotted("D-node residuals", words, "D-node residual by epoch", series);
}

/** The states live on after training, the parameters stay: does it hold? */
function ages(metrics) {
  const found = metrics?.test?.breakdown;
  const values = met(found).filter((kind) => kind.startsWith(DECILE)).map((kind) => found[kind].mrr);
  if (!values.length) return null;
  const words = "In each tenth of the test events, the earliest first: states live on, parameters stay.";
  const series = [{ name: "MRR, test events", kind: "first", values }];
  return plotted("Accuracy over time", words, "MRR in each tenth of the test events", series, { unit: "tenth" });
}

function settings(config) {
  const text = make("pre", { class: "config", tabindex: "0" }, config);
  return card("Settings", {}, note("As the run's config.toml has them."), text);
}

const column = (curve, key) => curve.map((row) => row[key]).filter((value) => Number.isFinite(value));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
