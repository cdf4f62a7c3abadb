// Questions to the service. What goes wrong comes back as a sentence.

import { sentence } from "./words.js";

const KEPT = "dynedge token";
const TRIES = 3;

export class Problem extends Error {
  constructor(told, status) {
    super(sentence(told));
    this.status = status;
  }
}

/** The JSON at `path`, or a Problem. `body` makes it a POST. Busy: again after a while; no token: asked for once. */
export async function ask(path, { body, signal } = {}) {
  for (let tries = 1; ; tries += 1) {
    const response = await answer(path, body, signal);
    if (response.ok) return parse(await response.text());
    if (response.status === 401) await enterToken(response.token);
    else if (response.status === 503 && tries < TRIES) await pause(Number(response.headers.get("Retry-After")) || 1);
    else throw new Problem(await detail(response), response.status);
  }
}

/** The answer, or the Problem that there is none: for questions asked side by side. */
export const tried = (path, more) =>
  ask(path, more).catch((problem) => {
    if (problem instanceof Problem) return problem;
    throw problem;
  });

export const at = (side, id, rest = "") => `/${side}/${encodeURIComponent(id)}${rest}`;

async function answer(path, body, signal) {
  const token = sessionStorage.getItem(KEPT);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  try {
    const method = body ? "POST" : "GET";
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    return Object.assign(response, { token });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("the service does not answer; is it still running?", 0);
  }
}

/** Ids may be whole numbers of 64 bits, more than a number holds here: long ones stay texts. */
function parse(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  return JSON.parse(text.replace(token, (found) => (/^-?\d{16,}$/.test(found) ? `"${found}"` : found)));
}

async function detail(response) {
  const told = await response.json().catch(() => ({}));
  return told.detail ?? `the service answers ${response.status} ${response.statusText}.`;
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let entering = null;

/** All questions wait for one answer. `used`: the token that was refused, or none yet. */
function enterToken(used) {
  if (sessionStorage.getItem(KEPT) !== used) return Promise.resolve();
  entering ??= new Promise((done) => {
    const dialog = document.getElementById("token");
    const form = dialog.querySelector("form");
    document.getElementById("token-wrong").textContent = used ? "That was not it." : "";
    dialog.oncancel = (event) => event.preventDefault();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEPT, form.elements.token.value.trim());
      form.reset();
      dialog.close();
      entering = null;
      done();
    };
    dialog.showModal();
  });
  return entering;
}
