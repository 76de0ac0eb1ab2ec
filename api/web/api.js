// Talking to the server.

export class HttpError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answers ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
    this.param = error?.param ?? null;
  }
}

let askForKey = async () => {};

/** `ask` shows the sign-in dialog and resolves when the server accepted a key. */
export function onUnauthorized(ask) {
  askForKey = ask;
}

/** GET as JSON. Asks for a key when one is needed. Throws HttpError, or TypeError when the server can't be reached. */
export function getJson(path) {
  return fetchJson("GET", path, undefined);
}

/** POST without a body, otherwise as `change`. */
export function postJson(path) {
  return change("POST", path);
}

// The page's cookie can only read. For changes the key itself goes along, which lives here and nowhere else.
let key = null;

/** Changes something; gives the answer's JSON, null where there is none. Asks for a key when one is needed. */
export function change(method, path, body) {
  return fetchJson(method, path, body);
}

/** Asks for a key though there is one: it lacks a role. */
export function useAnotherKey() {
  return askForKey();
}

async function fetchJson(method, path, body) {
  const headers = { Accept: "application/json" };
  if (key && method !== "GET") headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: sent, cache: "no-store" });
  if (response.status === 401) {
    await askForKey();
    return fetchJson(method, path, body);
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new HttpError(response.status, answer?.error);
  return answer;
}

/** Exchanges a key for the page's cookie. Gives null, or what is wrong with the key, in words. */
export async function signIn(given) {
  const response = await fetch("/api/session", { method: "POST", headers: { Authorization: `Bearer ${given}` } });
  if (response.ok) {
    key = given;
    return null;
  }
  return response.status === 403 ? "That key may not see cameras (it lacks the role viewer)." : "That key is not accepted.";
}

export async function signOut() {
  await fetch("/api/session", { method: "DELETE" });
}
