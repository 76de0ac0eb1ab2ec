// Adding a camera, and changing, switching off and removing one: a dialog over what the API takes.

import { HttpError, change, getJson, useAnotherKey } from "./api.js";
import { byId, h, setShown, setText } from "./dom.js";

// The keys with a field of their own; all others are written as JSON, in the words of the configuration.
const TEXTS = ["name", "url", "substream_url", "username"];
const NOT_HERE = ["password_file", "tls_ca_file"]; // only the configuration file may set them

export class CameraForm extends EventTarget {
  // Events: "changed" when a camera was added, changed or removed.
  #camera = null; // as the API gave it; null for a new one
  #sure = false;

  constructor() {
    super();
    this.dialog = byId("camera-dialog");
    this.form = byId("camera-form");
    this.fields = this.form.elements;
    this.wrong = byId("camera-wrong");
    this.otherKey = byId("camera-other-key");
    this.remove = byId("camera-remove");
    this.reset = byId("camera-reset");
    this.form.addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.#send(() => this.#save());
    });
    this.remove.addEventListener("click", () => this.#askAndRemove());
    this.reset.addEventListener("click", () => this.#send(() => change("POST", `${this.#path()}/reset`)));
    this.otherKey.addEventListener("click", async () => {
      await useAnotherKey();
      this.#say("");
      if (this.dialog.dataset.camera && !this.#camera) this.open(this.dialog.dataset.camera);
    });
    byId("camera-cancel").addEventListener("click", () => this.dialog.close());
  }

  /** A dialog for a new camera, or for the one with that id. */
  async open(id = null) {
    this.#camera = null;
    this.dialog.dataset.camera = id ?? "";
    setText(byId("camera-title"), id ? `Camera ${id}` : "Add a camera");
    this.#show(null);
    if (!this.dialog.open) this.dialog.showModal();
    if (!id) return;
    this.#busy(true);
    try {
      this.#camera = await getJson(`/api/cameras/${encodeURIComponent(id)}`);
      this.#show(this.#camera);
      this.#busy(false);
    } catch (error) {
      this.#complain(error); // stays disabled: what isn't known can't be changed
    }
  }

  #path() {
    return `/api/cameras/${encodeURIComponent(this.#camera.id)}`;
  }

  #show(camera) {
    const settings = camera?.settings ?? {};
    this.#sure = false;
    this.form.reset();
    this.#busy(false);
    this.#say("");
    setShown(byId("camera-id-field"), !this.dialog.dataset.camera);
    this.fields.id.required = !this.dialog.dataset.camera;
    for (const key of TEXTS) this.fields[key].value = settings[key] ?? "";
    this.fields.password.value = "";
    this.fields.password.placeholder = camera?.password_set ? "unchanged" : "";
    this.fields.transport.value = settings.transport ?? "tcp";
    this.fields.fps.value = settings.fps ?? "";
    this.fields.enabled.checked = camera?.enabled ?? true;
    const rest = Object.fromEntries(Object.entries(settings).filter(([key]) => !this.#hasField(key)));
    this.fields.rest.value = Object.keys(rest).length ? JSON.stringify(rest, null, 2) : "";
    byId("camera-more").open = this.fields.rest.value !== "";
    setText(this.remove, "Remove");
    setShown(this.remove, camera !== null);
    setShown(this.reset, camera?.origin === "file" && camera.changed.length > 0);
    setText(byId("camera-origin"), originWords(camera));
    setShown(byId("camera-origin"), camera !== null);
  }

  #hasField(key) {
    return [...TEXTS, ...NOT_HERE, "transport", "fps", "enabled", "password"].includes(key);
  }

  /** What the form says, under the API's keys; a key that is left empty is left out. */
  #settings() {
    const settings = {};
    const rest = this.fields.rest.value.trim();
    if (rest) {
      let parsed;
      try {
        parsed = JSON.parse(rest);
      } catch (error) {
        throw new FormError("rest", `More settings: ${error.message}`);
      }
      if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) {
        throw new FormError("rest", "More settings: must be an object, such as {\"idle_after_s\": 20}.");
      }
      Object.assign(settings, parsed);
    }
    for (const key of TEXTS) if (this.fields[key].value.trim()) settings[key] = this.fields[key].value.trim();
    if (this.fields.password.value) settings.password = this.fields.password.value;
    if (this.fields.transport.value !== "tcp" || this.#camera?.settings.transport) {
      settings.transport = this.fields.transport.value;
    }
    if (this.fields.fps.value) settings.fps = Number(this.fields.fps.value);
    if (!this.fields.enabled.checked || this.#camera?.settings.enabled !== undefined) {
      settings.enabled = this.fields.enabled.checked;
    }
    return settings;
  }

  async #save() {
    const settings = this.#settings();
    if (!this.#camera) return change("POST", "/api/cameras", { id: this.fields.id.value.trim(), ...settings });
    const before = this.#camera.settings;
    const gone = Object.keys(before).filter((key) => !(key in settings) && !NOT_HERE.includes(key));
    if (gone.length) return change("PUT", this.#path(), settings); // a key that is taken out has its default again
    const changed = Object.entries(settings).filter(([key, value]) => !same(value, before[key]));
    return changed.length ? change("PATCH", this.#path(), Object.fromEntries(changed)) : null;
  }

  #askAndRemove() {
    if (!this.#sure) {
      this.#sure = true;
      setText(this.remove, "Really remove");
      return;
    }
    this.#send(() => change("DELETE", this.#path()));
  }

  async #send(work) {
    this.#busy(true);
    this.#say("");
    try {
      await work();
      this.dialog.close();
      this.dispatchEvent(new Event("changed"));
    } catch (error) {
      this.#busy(false);
      this.#complain(error);
    }
  }

  #complain(error) {
    if (!(error instanceof HttpError || error instanceof FormError || error instanceof TypeError)) throw error;
    this.#say(error instanceof TypeError ? "The server can't be reached." : error.message);
    setShown(this.otherKey, error.code === "insufficient_role");
    const key = (error.param ?? "").split(/[.[]/)[0];
    const field = this.fields[key] ?? (key ? this.fields.rest : null);
    if (!field) return;
    if (field === this.fields.rest) byId("camera-more").open = true;
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }

  #say(text) {
    for (const field of this.form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    setText(this.wrong, text);
    setShown(this.wrong, text !== "");
    setShown(this.otherKey, false);
  }

  #busy(busy) {
    for (const element of [byId("camera-save"), this.remove, this.reset]) element.disabled = busy;
  }
}

/** The cameras of the configuration file that were removed here, each with a way back. */
export function removedLine(ids, onBack) {
  return ids.flatMap((id, index) => {
    const back = h("button", { class: "plain", type: "button", "data-back": id }, `Bring ${id} back`);
    back.addEventListener("click", () => onBack(id));
    return [index ? " · " : "Removed here: ", back];
  });
}

class FormError extends Error {
  constructor(param, message) {
    super(message);
    this.param = param;
  }
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

function originWords(camera) {
  if (!camera) return "";
  if (camera.origin === "api") return "Added here.";
  if (!camera.changed.length) return "As in the configuration file.";
  return `From the configuration file; changed here: ${camera.changed.join(", ")}.`;
}
