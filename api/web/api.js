// Talking to the server.

export class HttpError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answers ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

let askForKey = async () => {};

/** `ask` shows the sign-in dialog and resolves when the server accepted a key. */
export function onUnauthorized(ask) {
  askForKey = ask;
}

/** GET as JSON. Asks for a key when one is needed. Throws HttpError, or TypeError when the server can't be reached. */
export function getJson(path) {
  return fetchJson("GET", path);
}

/** POST without a body, otherwise as `getJson`. */
export function postJson(path) {
  return fetchJson("POST", path);
}

async function fetchJson(method, path) {
  const response = await fetch(path, { method, headers: { Accept: "application/json" }, cache: "no-store" });
  if (response.status === 401) {
    await askForKey();
    return fetchJson(method, path);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new HttpError(response.status, body?.error);
  return body;
}

/** Exchanges a key for the page's cookie. Gives null, or what is wrong with the key, in words. */
export async function signIn(key) {
  const response = await fetch("/api/session", { method: "POST", headers: { Authorization: `Bearer ${key}` } });
  if (response.ok) return null;
  return response.status === 403 ? "That key may not see cameras (it lacks the role viewer)." : "That key is not accepted.";
}

export async function signOut() {
  await fetch("/api/session", { method: "DELETE" });
}
