// One event at full size, in a dialog that follows its changes.

import { HttpError, getJson, postJson } from "./api.js";
import { leavesOf } from "./attributes.js";
import { byId, h, setShown, setText } from "./dom.js";
import { Writer } from "./event_card.js";
import { DESCRIPTION_STATES, EVENT_STATES, duration, moments } from "./words.js";

export class Details {
  #id = null;
  #parts = null;

  constructor() {
    this.dialog = byId("details");
    this.body = byId("details-body");
    this.dialog.addEventListener("close", () => { this.#id = null; });
    // A click on the backdrop hits the dialog itself.
    this.dialog.addEventListener("click", (click) => { if (click.target === this.dialog) this.dialog.close(); });
  }

  open(event, cameraName) {
    this.#id = event.id;
    const words = h("p", { class: "words" });
    const picture = h("div");
    const views = h("div", { class: "views", "aria-label": "Further pictures of this person" });
    const facts = h("dl", { class: "facts" });
    const button = h("button", { class: "button", type: "button" });
    const note = h("p", { role: "status" });
    const again = h("div", { class: "again" }, button, note);
    button.addEventListener("click", () => this.#describe(event.id, button, note));
    this.#parts = { cameraName, picture, views, facts, again, button, note, writer: new Writer(words), source: undefined };
    this.body.replaceChildren(h("div", { class: "details-grid" },
      h("div", {}, picture, views),
      h("div", {}, h("h2", { id: "details-title" }, cameraName), words, facts, again)));
    this.#show(event);
    this.dialog.showModal();
  }

  update(event) {
    if (event.id === this.#id) this.#show(event);
  }

  #show(event) {
    const { cameraName, picture, views, facts, writer, again, button, note } = this.#parts;
    const source = event.crop_url ? `${event.crop_url}?crop=${encodeURIComponent(event.crop_id)}` : null;
    if (source !== this.#parts.source) {
      this.#parts.source = source;
      picture.replaceChildren(source
        ? h("img", { src: source, alt: `Person at ${cameraName}` })
        : h("div", { class: "empty" }, "No picture of this person is kept."));
      this.#showViews(event, views);
    }
    setShown(again, source !== null);
    setText(button, event.description === null ? "Describe" : "Describe again");
    if (this.#parts.description !== event.description) {
      this.#parts.description = event.description;
      button.disabled = false;
      setText(note, "");
    }
    writer.set(event.description ?? event.partial ?? "");
    facts.replaceChildren(...factsOf(event).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }

  /** The person's first and last views, where the model was shown several. */
  async #showViews(event, views) {
    const { pictures } = await getJson(`/api/events/${encodeURIComponent(event.id)}`).catch(() => ({ pictures: [] }));
    if (event.id !== this.#id || views !== this.#parts.views) return;
    views.replaceChildren(...(pictures.length > 1 ? pictures : []).map(({ url }, n) =>
      h("img", { src: url, alt: `View ${n + 1} of ${pictures.length}`, loading: "lazy" })));
  }

  /** Asks for words; they come as a change of the event, like any others. */
  async #describe(id, button, note) {
    button.disabled = true;
    setText(note, "");
    try {
      await postJson(`/api/events/${encodeURIComponent(id)}/describe?force=true`);
      setText(note, "Asked for. The words appear here once they are written.");
    } catch (error) {
      button.disabled = false;
      setText(note, error instanceof HttpError ? error.message : "The server can't be reached.");
    }
  }
}

function factsOf(event) {
  const seconds = (Date.parse(event.last_seen) - Date.parse(event.first_seen)) / 1000;
  const words = DESCRIPTION_STATES[event.description_state] || "Described";
  const facts = [
    ["State", EVENT_STATES[event.state]?.[0] ?? event.state],
    ["First seen", moments(event.first_seen)],
    ["Last seen", moments(event.last_seen)],
    ["In view", duration(seconds)],
    ["Description", event.reason_text ? `${words}. ${event.reason_text}` : words],
    ["Detector score", `${Math.round(event.score * 100)} %`],
  ];
  const said = new Map();
  for (const [path, value] of leavesOf(event.attributes)) {
    const name = path.replaceAll(/[._]/g, " ");
    said.set(name, said.has(name) ? `${said.get(name)}, ${value}` : value);
  }
  for (const [name, value] of said) facts.push([name[0].toUpperCase() + name.slice(1), value]);
  if (event.model) facts.push(["Described by", event.model]);
  if (event.image_tokens) facts.push(["Picture read as", `${event.image_tokens} tokens`]);
  if (event.rules?.length) facts.push(["Alerts", event.rules.join(", ")]);
  facts.push(["Event", event.id]);
  return facts;
}
