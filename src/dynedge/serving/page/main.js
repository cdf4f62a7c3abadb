// Entry point: routes between views and sets up search and live activity.

import { onNewEvents, startPolling } from "./activity.js";
import { ApiError, request } from "./api.js";
import { announce, errorNote, html } from "./dom.js";
import { itemView } from "./item.js";
import { overview } from "./overview.js";
import { runView } from "./run.js";
import { searchField } from "./search.js";
import { userView } from "./user.js";

const VIEWS = { "": overview, run: runView, users: userView, items: itemView };
const main = document.getElementById("main");
let controller = new AbortController();

/** #/users/ID, #/items/ID, #/run, or the overview. */
function route() {
  const [, name = "", ...rest] = location.hash.split("/");
  return { name: name in VIEWS ? name : "", id: decode(rest.join("/")) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Shows the view of the current address; the old view stays until the new one is complete. */
async function showView(navigated) {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  const { name, id } = route();
  onNewEvents(null);
  main.setAttribute("aria-busy", "true");
  const view = await load(VIEWS[name], id, signal);
  if (signal.aborted) return;
  main.replaceChildren(view.element);
  main.removeAttribute("aria-busy");
  document.title = `${view.title} · dynedge`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  onNewEvents(view.refresh && (() => view.refresh().catch(ignoreApiError)));
  if (navigated) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
    announce(`${view.title}.`);
  }
}

async function load(view, id, signal) {
  try {
    return await view(id, signal);
  } catch (error) {
    if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
    return { title: "Error", element: html("div", { class: "head" }, errorNote(error)) };
  }
}

/** A view that cannot be refreshed stays as it is; live activity reports the error. */
function ignoreApiError(error) {
  if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
}

const search = searchField("Search users and items", "Search users and items …", ["users", "items"], (side, id) => {
  location.hash = `#/${side}/${encodeURIComponent(id)}`;
});
document.getElementById("search").append(search);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  search.field.focus();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => showView(true));
startPolling();
showView(false);
request("/run")
  .then((run) => (document.getElementById("run-name").textContent = `${run.run} (${run.model})`))
  .catch(ignoreApiError);
