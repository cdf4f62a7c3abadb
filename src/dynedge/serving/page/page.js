// The page's one script: which view is shown, and what they share.

import { ask, Problem } from "./ask.js";
import { itemView } from "./item.js";
import { begin, onNews } from "./live.js";
import { make, say, wrong } from "./make.js";
import { overview } from "./overview.js";
import { runView } from "./run.js";
import { finder } from "./search.js";
import { userView } from "./user.js";

const VIEWS = { "": overview, run: runView, users: userView, items: itemView };
const main = document.getElementById("main");
let leaving = new AbortController();

/** #/users/ID, #/items/ID, #/run, or nothing. */
function route() {
  const [, name = "", ...rest] = location.hash.split("/");
  return { name: name in VIEWS ? name : "", id: decoded(rest.join("/")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The old view stays until the new one is whole, so that nothing flickers. */
async function show(moved) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { name, id } = route();
  onNews(null);
  main.setAttribute("aria-busy", "true");
  const view = await shown(VIEWS[name], id, signal);
  if (signal.aborted) return;
  main.replaceChildren(view.element);
  main.removeAttribute("aria-busy");
  document.title = `${view.title} · dynedge`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  onNews(view.refresh && (() => view.refresh().catch(silent)));
  if (moved) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
    say(`${view.title}.`);
  }
}

async function shown(view, id, signal) {
  try {
    return await view(id, signal);
  } catch (error) {
    if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
    return { title: "Trouble", element: make("div", { class: "head" }, wrong(error)) };
  }
}

/** A view that could not be brought up to date stays as it is; what is wrong, the live part says. */
function silent(error) {
  if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
}

const search = finder("Search a user or an item", "Search a user or item …", ["users", "items"], (side, id) => {
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
addEventListener("hashchange", () => show(true));
begin();
show(false);
ask("/run")
  .then((run) => (document.getElementById("run-name").textContent = `${run.run}, ${run.model}`))
  .catch(silent);
