// The cameras: a card each with its live picture, state, numbers and reason in words.

import { getJson } from "./api.js";
import { removedLine } from "./camera_form.js";
import { byId, h, setShown, setText } from "./dom.js";
import { CAMERA_STATES, duration, moment, plural } from "./words.js";

const FRAME_MS = 300;
const NO_FRAME_MS = 2000;

export class CameraGrid extends EventTarget {
  // Events: "cameras" (detail: the list), "settings" (detail: a camera's id), "back" (detail: a removed camera's id).
  #cards = new Map();

  constructor() {
    super();
    this.list = byId("cameras");
    this.empty = byId("cameras-empty");
    this.count = byId("cameras-count");
    this.problem = byId("cameras-problem");
    this.removed = byId("cameras-removed");
  }

  async refresh() {
    const { cameras, removed, problem } = await getJson("/api/cameras");
    const seen = new Set();
    for (const camera of cameras) {
      seen.add(camera.id);
      let card = this.#cards.get(camera.id);
      if (!card) {
        card = new CameraCard(camera.id, () => this.#tell("settings", camera.id));
        this.#cards.set(camera.id, card);
        this.list.append(card.element);
      }
      card.show(camera);
    }
    for (const [id, card] of this.#cards) {
      if (seen.has(id)) continue;
      card.remove();
      this.#cards.delete(id);
    }
    const live = cameras.filter((camera) => camera.state === "online" && !camera.stale).length;
    setText(this.count, cameras.length ? `${live} of ${cameras.length} live` : "");
    setShown(this.empty, cameras.length === 0);
    setText(this.problem, problem ? `The configuration file is not taken over.\n${problem}` : "");
    setShown(this.problem, Boolean(problem));
    if (removed.join() !== this.removed.dataset.ids) {
      this.removed.dataset.ids = removed.join();
      this.removed.replaceChildren(...removedLine(removed, (id) => this.#tell("back", id)));
      setShown(this.removed, removed.length > 0);
    }
    this.#tell("cameras", cameras);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

class CameraCard {
  constructor(id, onSettings) {
    this.id = id;
    this.settings = h("button", { class: "settings", type: "button" }, "Settings");
    this.settings.addEventListener("click", onSettings);
    this.picture = h("img", { class: "picture", hidden: true, alt: "" });
    this.placeholder = h("p", { class: "placeholder" });
    this.badge = h("span", { class: "badge" });
    this.people = h("span", { class: "badge people", hidden: true });
    this.name = h("h3", { class: "camera-name" });
    this.numbers = h("p", { class: "numbers" });
    this.reason = h("p", { class: "reason", hidden: true });
    this.element = h("li", { class: "camera", "data-camera": id },
      h("div", { class: "screen" }, this.placeholder, this.picture, this.badge, this.people),
      h("div", { class: "camera-text" },
        h("div", { class: "camera-head" }, this.name, this.settings), this.numbers, this.reason));
    this.preview = new Preview(id, this.picture, (shown) => this.#showPicture(shown));
    this.observer = new IntersectionObserver((entries) => this.preview.onScreen(entries.at(-1).isIntersecting));
    this.observer.observe(this.element);
  }

  show(camera) {
    const [label, tone] = camera.stale ? ["No report", "warn"] : CAMERA_STATES[camera.state] ?? [camera.state, "quiet"];
    this.preview.wanted(camera.enabled && !camera.stale);
    this.element.dataset.tone = tone;
    setText(this.badge, label);
    this.badge.dataset.tone = tone;
    setText(this.name, camera.name);
    this.settings.setAttribute("aria-label", `Settings of ${camera.name}`);
    setShown(this.settings, camera.origin !== null);
    this.picture.alt = `Live picture of ${camera.name}`;
    setShown(this.people, camera.tracks > 0 && tone === "good");
    setText(this.people, plural(camera.tracks, "person", "people"));
    setText(this.numbers, numbers(camera));
    const reason = reasonWords(camera);
    setText(this.reason, reason);
    setShown(this.reason, reason !== "");
    setText(this.placeholder, placeholderWords(camera));
  }

  #showPicture(shown) {
    setShown(this.picture, shown);
    setShown(this.placeholder, !shown);
  }

  remove() {
    this.observer.disconnect();
    this.preview.stop();
    this.element.remove();
  }
}

/** Fetches one preview after the other while the card is on screen and the tab visible; each asks for the next. */
class Preview {
  #timer = 0;
  #busy = false;
  #visible = false;
  #wanted = false;
  #stopped = false;
  #url = null;

  constructor(id, image, onShown) {
    this.path = `/api/cameras/${encodeURIComponent(id)}/preview.jpg`;
    this.image = image;
    this.onShown = onShown;
    this.onVisibility = () => this.#turn();
    document.addEventListener("visibilitychange", this.onVisibility);
  }

  onScreen(visible) {
    this.#visible = visible;
    this.#turn();
  }

  wanted(wanted) {
    if (wanted === this.#wanted) return;
    this.#wanted = wanted;
    if (!wanted) this.#clear();
    this.#turn();
  }

  stop() {
    this.#stopped = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.#clear();
  }

  async #turn() {
    clearTimeout(this.#timer);
    if (this.#busy || this.#stopped || !this.#wanted || !this.#visible || document.hidden) return;
    this.#busy = true;
    const started = performance.now();
    let pause = NO_FRAME_MS;
    try {
      const response = await fetch(this.path, { cache: "no-store" });
      if (response.status === 200) {
        await this.#show(await response.blob());
        pause = Math.max(50, FRAME_MS - (performance.now() - started));
      } else {
        this.#clear();
      }
    } catch {
      this.#clear(); // The server is away or the picture broken; the connection indicator says the rest.
    }
    this.#busy = false;
    this.#timer = setTimeout(() => this.#turn(), pause);
  }

  async #show(blob) {
    const url = URL.createObjectURL(blob);
    const next = new Image();
    next.src = url;
    try {
      await next.decode(); // Swapped only once decoded, so that nothing flickers.
    } catch (error) {
      URL.revokeObjectURL(url);
      throw error;
    }
    if (this.#stopped || !this.#wanted) {
      URL.revokeObjectURL(url);
      return;
    }
    this.image.src = url;
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = url;
    this.onShown(true);
  }

  #clear() {
    this.onShown(false);
    if (!this.#url) return;
    this.image.removeAttribute("src");
    URL.revokeObjectURL(this.#url);
    this.#url = null;
  }
}

function numbers(camera) {
  if (camera.stale || camera.state === null || camera.state === "disabled") return "";
  const parts = [];
  if (camera.state === "online") parts.push(`${camera.fps.toFixed(1)} fps`);
  if (camera.frame_age !== null) parts.push(`picture ${duration(camera.frame_age)} old`);
  if (camera.width) parts.push(`${camera.width}×${camera.height}`);
  if (camera.reconnects) parts.push(plural(camera.reconnects, "reconnect", "reconnects"));
  return parts.join(" · ");
}

function reasonWords(camera) {
  const said = camera.reason_text && camera.reason !== "switched_off"; // that one stands in the picture's place
  const words = said ? [camera.reason_text] : [];
  if (camera.problem) words.push(`What was changed here is not in force: ${camera.problem}.`);
  if (camera.state === "disabled" && camera.enabled && camera.next_change) {
    words.push(`On again ${moment(camera.next_change)}.`);
  }
  if (camera.next_retry && !camera.stale) {
    const seconds = (Date.parse(camera.next_retry) - Date.now()) / 1000;
    words.push(seconds > 1 ? `Next try in ${duration(seconds)}.` : "Trying again now.");
  }
  return words.join(" ");
}

function placeholderWords(camera) {
  if (!camera.enabled) return "Switched off";
  if (camera.state === "disabled" && !camera.stale) return "Outside its hours";
  return camera.state === "online" && !camera.stale ? "Waiting for a picture" : "No picture";
}
