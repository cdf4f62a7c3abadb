// Run view: metrics, learning curve, loss, longest paths, d-node residuals, config.

import { ApiError, tryRequest } from "./api.js";
import { dot, legend, lineChart, rule, scale } from "./charts.js";
import { card, errorNote, html, note, svg } from "./dom.js";
import { fixed, plural, significant } from "./format.js";

const METRICS = {
  mrr: "MRR",
  "recall@1": "Recall@1",
  "recall@5": "Recall@5",
  "recall@10": "Recall@10",
  "recall@20": "Recall@20",
  "ndcg@10": "NDCG@10",
  mean_rank: "Mean rank",
};
const PARTS = { test: "Test", valid: "Validation" };
const DECILE = "decile";
const HEIGHT = 190;

export async function runView(_, signal) {
  const run = await tryRequest("/run", { signal });
  const title = html("h1", { tabindex: "-1" }, html("small", {}, "Run"), run.run ?? "Run");
  if (run instanceof ApiError) return { title: "Run", element: html("div", {}, title, errorNote(run)) };
  const summary = [
    `Model: ${run.model}`,
    run.parameters && plural(run.parameters, "parameter"),
    plural(run.users, "user"),
    plural(run.items, "item"),
    run.features.length > 0 && plural(run.features.length, "event feature"),
  ];
  const cards = [
    learningCurve(run.learning_curve),
    lossCurve(run.learning_curve),
    longestPaths(run),
    residuals(run.learning_curve),
    accuracyOverTime(run.metrics),
    configuration(run.config),
  ];
  const head = html("div", { class: "head" }, title, note(summary.filter(Boolean).join(" · ")));
  const element = html("div", {}, head, metricsCard(run), html("div", { class: "tiles" }, cards));
  return { title: `Run ${run.run}`, element };
}

// ---- metrics

function metricsCard({ metrics, run }) {
  const title = "Metrics";
  if (!metrics) {
    const evaluate = html("code", {}, `dynedge evaluate ${run}`);
    const reload = html("code", {}, "POST /reload");
    const reason = "This run has not been evaluated, or its log no longer exists. Run ";
    return card(title, {}, note(reason, evaluate, ", then ", reload, ", to show its metrics here."));
  }
  const parts = Object.keys(PARTS).filter((part) => metrics[part]);
  const summaries = parts.map((part) => metrics[part]);
  const headers = parts.map((part) => {
    const counts = `${plural(metrics[part].events, "event")}, ${plural(metrics[part].users, "user")}`;
    return html("th", { scope: "col" }, PARTS[part], html("small", {}, counts));
  });
  const rows = Object.entries(METRICS).map(([key, name]) => metricRow(name, key, summaries));
  const groups = new Set(summaries.flatMap(({ breakdown }) => groupsWithEvents(breakdown)));
  const groupRows = [...groups]
    .filter((group) => !group.startsWith(DECILE))
    .map((group) => metricRow(`MRR, ${group}`, "mrr", summaries.map((one) => one.breakdown?.[group]), "sub"));
  return card(
    title,
    {},
    note(
      "The item of each event is ranked among all items, given only earlier events. ",
      "95\u202f% bootstrap confidence intervals over users.",
    ),
    html(
      "div",
      { class: "scroll" },
      html("table", {}, html("thead", {}, html("tr", {}, html("td"), headers)), html("tbody", {}, rows, groupRows)),
    ),
  );
}

const groupsWithEvents = (breakdown = {}) =>
  Object.keys(breakdown).filter((group) => Number.isFinite(breakdown[group].mrr));

function metricRow(name, key, summaries, style = "") {
  const digits = key === "mean_rank" ? 1 : 3;
  const cells = summaries.map((summary) => {
    if (!Number.isFinite(summary?.[key])) return html("td", {}, "–");
    const interval = summary.intervals?.[key];
    const range = interval ? `${fixed(interval[0], digits)} – ${fixed(interval[1], digits)}` : "";
    const picture = interval && key !== "mean_rank" ? intervalBar(summary[key], interval) : html("i");
    return html("td", {}, html("div", {}, fixed(summary[key], digits), html("small", {}, range), picture));
  });
  return html("tr", { class: style }, html("th", { scope: "row" }, name), cells);
}

function intervalBar(value, [low, high]) {
  const x = scale(0, 1, 4, 156);
  const parts = [rule(4, 8, 156, 8), rule(x(low), 8, x(high), 8, "second"), dot(x(value), 8, "second", null, 2.5)];
  return svg("svg", { viewBox: "0 0 160 16", width: 160, height: 16, "aria-hidden": "true" }, parts);
}

// ---- training

/** A card with a line chart and its legend. */
function chartCard(title, description, label, series, options) {
  const names = legend(series.map((one) => [one.style, one.name]));
  return card(title, {}, note(description), lineChart(label, HEIGHT, series, options), names);
}

function learningCurve(curve) {
  const title = "Learning curve";
  const series = [
    { name: "MRR", style: "first", values: column(curve, "valid_mrr") },
    { name: "Recall@10", style: "second", values: column(curve, "valid_recall@10") },
  ].filter((one) => one.values.length);
  if (!series.length) return card(title, {}, note("This model was trained without validation."));
  const best = 1 + series[0].values.indexOf(Math.max(...series[0].values));
  const description = `Validation metrics by epoch. Best epoch: ${best}.`;
  return chartCard(title, description, "Validation MRR and Recall@10 by epoch", series);
}

function lossCurve(curve) {
  const series = [
    { name: "recurrence", style: "second", values: column(curve, "loss") },
    { name: "count memory", style: "first", values: column(curve, "memory_loss") },
  ].filter((one) => one.values.some(Boolean));
  if (!series.length) return card("Training loss", {}, note("This model has no loss."));
  if (series.length === 1) series[0].name = "loss";
  return chartCard("Training loss", "Mean loss of the training events by epoch.", "Training loss by epoch", series);
}

/** Number of sequential steps of each training window. */
function longestPaths({ longest_path: paths, dnodes }) {
  const title = "Longest path";
  if (!paths.with_dnodes.length) return card(title, {}, note("Training of this model has no sequential steps."));
  const [before, after] = [mean(paths.without_dnodes), mean(paths.with_dnodes)];
  const label = "Longest path of each training window";
  const options = { unit: "window", dots: false };
  if (!dnodes.some(Boolean)) {
    const steps = `Sequential steps per training window: ${significant(before)} on average. This run has no d-nodes.`;
    return chartCard(title, steps, label, [{ name: "steps", style: "second", values: paths.with_dnodes }], options);
  }
  const description =
    `Sequential steps per training window: ${significant(before)} on average without d-nodes, ` +
    `${significant(after)} with ${significant(mean(dnodes))} d-nodes per window (${significant(before / after)} times fewer).`;
  const series = [
    { name: "without d-nodes", style: "other", values: paths.without_dnodes },
    { name: "with d-nodes", style: "second", values: paths.with_dnodes },
  ];
  return chartCard(title, description, label, series, options);
}

function residuals(curve) {
  const values = column(curve, "residual");
  if (!values.some(Boolean)) return card("D-node residuals", {}, note("This run has no d-nodes."));
  const description = "Mean distance between the vectors of d-nodes and the states that they replace, by epoch.";
  const series = [{ name: "mean ‖φ − state‖", style: "second", values }];
  return chartCard("D-node residuals", description, "D-node residual by epoch", series);
}

/** Test MRR over time: states are updated with every event, parameters are not. */
function accuracyOverTime(metrics) {
  const breakdown = metrics?.test?.breakdown;
  const deciles = groupsWithEvents(breakdown).filter((group) => group.startsWith(DECILE));
  if (!deciles.length) return null;
  const description = "MRR by decile of the test events in time order. States are updated, parameters are fixed.";
  const series = [{ name: "MRR, test events", style: "first", values: deciles.map((group) => breakdown[group].mrr) }];
  return chartCard("Accuracy over time", description, "MRR by decile of the test events", series, { unit: "decile" });
}

function configuration(config) {
  const text = html("pre", { class: "config", tabindex: "0" }, config);
  return card("Configuration", {}, note("The run's config.toml."), text);
}

const column = (curve, key) => curve.map((row) => row[key]).filter((value) => Number.isFinite(value));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
