// Requests to the service; errors come back as one sentence.

import { capitalize } from "./format.js";

const TOKEN_KEY = "dynedge token";
const MAX_TRIES = 3;

export class ApiError extends Error {
  constructor(detail, status) {
    super(capitalize(detail));
    this.status = status;
  }
}

/** Returns the JSON at `path`; `body` makes it a POST. Retries on 503, asks for a token on 401. */
export async function request(path, { body, signal } = {}) {
  for (let tries = 1; ; tries += 1) {
    const response = await send(path, body, signal);
    if (response.ok) return parseJson(await response.text());
    if (response.status === 401) await askForToken(response.token);
    else if (response.status === 503 && tries < MAX_TRIES) await pause(retryAfter(response));
    else throw new ApiError(await errorDetail(response), response.status);
  }
}

/** Returns the JSON at `path`, or the ApiError as a value: for requests that run in parallel. */
export const tryRequest = (path, options) =>
  request(path, options).catch((error) => {
    if (error instanceof ApiError) return error;
    throw error;
  });

/** The path of a user or an item: entityPath("users", id, "/history"). */
export const entityPath = (side, id, rest = "") => `/${side}/${encodeURIComponent(id)}${rest}`;

async function send(path, body, signal) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  try {
    const method = body ? "POST" : "GET";
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    return Object.assign(response, { token });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the service does not respond; is it still running?", 0);
  }
}

/** Ids may be 64-bit integers, which a JavaScript number cannot hold: long integers become strings. */
function parseJson(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  return JSON.parse(text.replace(token, (match) => (/^-?\d{16,}$/.test(match) ? `"${match}"` : match)));
}

async function errorDetail(response) {
  const problem = await response.json().catch(() => ({}));
  return problem.detail ?? `the service answered ${response.status} ${response.statusText}.`;
}

const retryAfter = (response) => Number(response.headers.get("Retry-After")) || 1;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

let tokenPrompt = null;

/** Shows the token dialog once for all waiting requests. `refused` is the token that was sent, if any. */
function askForToken(refused) {
  if (sessionStorage.getItem(TOKEN_KEY) !== refused) return Promise.resolve();
  tokenPrompt ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const form = dialog.querySelector("form");
    document.getElementById("token-error").textContent = refused ? "This token is not valid." : "";
    dialog.oncancel = (event) => event.preventDefault();
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN_KEY, form.elements.token.value.trim());
      form.reset();
      dialog.close();
      tokenPrompt = null;
      resolve();
    };
    dialog.showModal();
  });
  return tokenPrompt;
}
