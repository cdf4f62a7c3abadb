// The run that is served: how good it is, how it learned, how deep its windows were.

import { Problem, tried } from "./ask.js";
import { card, draw, make, note, wrong } from "./make.js";
import { dot, legend, lines, rule, scale } from "./plot.js";
import { fixed, many, short } from "./words.js";

const NAMES = {
  mrr: "MRR", "recall@1": "Recall@1", "recall@5": "Recall@5", "recall@10": "Recall@10", "recall@20": "Recall@20",
  "ndcg@10": "NDCG@10", mean_rank: "Mean rank",
};
const DECILE = "decile";
const HEIGHT = 190;
const PARTS = [["test", "test"], ["valid", "validation"]];

export async function runView(_, signal) {
  const run = await tried("/run", { signal });
  const title = make("h1", { tabindex: "-1" }, make("small", {}, "run"), run.run ?? "The run");
  if (run instanceof Problem) return { title: "The run", element: make("div", {}, title, wrong(run)) };
  const parts = [
    `A trained ${run.model}`, run.parameters && `${many(run.parameters, "parameter")}`, many(run.users, "user"), many(run.items, "item"),
    run.features.length > 0 && many(run.features.length, "event feature"),
  ];
  const element = make(
    "div",
    {},
    make("div", { class: "head" }, title, note(parts.filter(Boolean).join(" · "))),
    verdict(run),
    make("div", { class: "tiles" }, learning(run.curve), losses(run.curve), paths(run), residuals(run.curve), ages(run.metrics), settings(run.config)),
  );
  return { title: `Run ${run.run}`, element };
}

function verdict({ metrics, run }) {
  if (!metrics) {
    return card("How good it is", {}, note("This run has not been evaluated, or its log is gone. ", make("code", {}, `dynedge evaluate ${run}`), " ranks its validation and test events; then ", make("code", {}, "POST /reload"), " shows them here."));
  }
  const shown = PARTS.filter(([part]) => metrics[part]);
  const of = (part) => `${many(metrics[part].events, "event")} of ${many(metrics[part].users, "user")}`;
  const head = shown.map(([part, name]) => make("th", { scope: "col" }, name, make("small", {}, of(part))));
  const rows = Object.entries(NAMES).map(([key, name]) => measured(name, key, shown.map(([part]) => metrics[part])));
  const kinds = new Set(shown.flatMap(([part]) => told(metrics[part].breakdown)));
  const split = [...kinds].filter((kind) => !kind.startsWith(DECILE)).map((kind) => measured(`MRR, ${kind}`, "mrr", shown.map(([part]) => metrics[part].breakdown?.[kind]), "sub"));
  return card(
    "How good it is",
    {},
    note("Each event's item is ranked among all items, as of just before the event. Intervals hold 95\u202f% of the means when users are drawn again."),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("td"), head)), make("tbody", {}, rows, split))),
  );
}

/** Kinds of events that there were any of. */
const told = (breakdown = {}) => Object.keys(breakdown).filter((kind) => Number.isFinite(breakdown[kind].mrr));

function measured(name, key, found, kind = "") {
  const digits = key === "mean_rank" ? 1 : 3;
  const cells = found.map((one) => {
    if (!Number.isFinite(one?.[key])) return make("td", {}, "–");
    const range = one.intervals?.[key];
    const words = range && make("small", {}, `${fixed(range[0], digits)} to ${fixed(range[1], digits)}`);
    return make("td", {}, make("div", {}, fixed(one[key], digits), words, range && key !== "mean_rank" ? whisker(one[key], range) : make("i")));
  });
  return make("tr", { class: kind }, make("th", { scope: "row" }, name), cells);
}

function whisker(value, [low, high]) {
  const x = scale(0, 1, 4, 156);
  return draw("svg", { viewBox: "0 0 160 16", width: 160, height: 16, "aria-hidden": "true" },
    rule(4, 8, 156, 8), rule(x(low), 8, x(high), 8, "second"), dot(x(value), 8, "second", null, 2.5));
}

function learning(curve) {
  const series = [
    { name: "MRR", kind: "first", values: column(curve, "valid_mrr") },
    { name: "Recall@10", kind: "second", values: column(curve, "valid_recall@10") },
  ].filter((one) => one.values.length);
  if (!series.length) return card("Learning curve", {}, note("Nothing was validated while this model learned."));
  const best = series[0].values.indexOf(Math.max(...series[0].values));
  return card("Learning curve", {}, note(`Validation events after each epoch; epoch ${best + 1} was kept.`), lines("Validation MRR and Recall@10 by epoch", HEIGHT, series), legend(series.map((one) => [one.kind, one.name])));
}

function losses(curve) {
  const series = [
    { name: "recurrence", kind: "second", values: column(curve, "loss") },
    { name: "memory", kind: "first", values: column(curve, "memory_loss") },
  ].filter((one) => one.values.length);
  if (!series.length) return card("Loss", {}, note("This model counts; it has no loss."));
  if (series.length === 1) series[0].name = "loss";
  return card("Loss", {}, note("Of the training events, by epoch."), lines("Training loss by epoch", HEIGHT, series), legend(series.map((one) => [one.kind, one.name])));
}

/** Steps that must wait for each other, in each training window. */
function paths({ longest_path: found, dnodes }) {
  if (!found.with.length) return card("Longest path", {}, note("This model's training has no chain of states to cut."));
  const [before, after] = [mean(found.without), mean(found.with)];
  const cut = dnodes.length ? `${short(mean(dnodes))} d-nodes a window cut` : "Cuts bring";
  const series = [
    { name: "without d-nodes", kind: "other", values: found.without },
    { name: "with them", kind: "second", values: found.with },
  ];
  return card("Longest path", {}, note(`${cut} it from ${short(before)} to ${short(after)} steps on average: ${short(before / after)} times shorter.`),
    lines("Longest path of each training window, without and with d-nodes", HEIGHT, series, { unit: "window", dots: false }),
    legend(series.map((one) => [one.kind, one.name])));
}

function residuals(curve) {
  const values = column(curve, "residual");
  if (!values.length) return card("D-node residuals", {}, note("This run has no d-nodes."));
  return card("D-node residuals", {}, note("How far the vectors read at d-nodes are from the states they stand for, on average, by epoch."),
    lines("D-node residual by epoch", HEIGHT, [{ name: "residual", kind: "second", values }]), legend([["second", "mean ‖φ − state‖"]]));
}

/** A state grows old unless it moves: MRR in each tenth of the test events. */
function ages(metrics) {
  const found = metrics?.test?.breakdown;
  const tenths = told(found).filter((kind) => kind.startsWith(DECILE)).map((kind) => found[kind].mrr);
  if (!tenths.length) return card("Accuracy over time", {}, note("Not evaluated."));
  return card("Accuracy over time", {}, note("MRR in each tenth of the test events, the earliest first: the states live on, the parameters stay."),
    lines("MRR in each tenth of the test events", HEIGHT, [{ name: "MRR", kind: "first", values: tenths }], { unit: "tenth" }), legend([["first", "MRR, test events"]]));
}

const settings = (config) => card("Settings", {}, note("As the run's config.toml has them."), make("pre", { class: "config", tabindex: "0" }, config));

const column = (curve, key) => curve.map((row) => row[key]).filter((value) => Number.isFinite(value));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
