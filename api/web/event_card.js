// One event in the list: picture, camera, time, state, words.

import { chipsOf } from "./attributes.js";
import { h, setShown, setText } from "./dom.js";
import { DESCRIPTION_STATES, EVENT_STATES, ago, duration, moment, moments } from "./words.js";

const FADE_MS = 400;

export class EventCard {
  #shownAttributes = "";

  /** `choose(path, value)` is called when an attribute is clicked. */
  constructor(event, cameraName, fresh, choose) {
    this.event = event;
    this.choose = choose;
    this.crop = h("div", { class: "crop none" });
    this.button = h("button", { class: "event-camera", type: "button" });
    this.time = h("time");
    this.badge = h("span", { class: "badge" });
    this.words = h("p", { class: "words" });
    this.rules = h("p", { class: "rules", hidden: true });
    this.chips = h("div", { class: "chips", "aria-label": "Attributes" });
    this.status = h("p", { class: "status" });
    this.element = h("li", { class: fresh ? "event fresh" : "event", "data-event": event.id, "data-seen": event.first_seen },
      this.crop,
      h("div", { class: "event-text" },
        h("div", { class: "event-head" }, this.button, this.time, this.badge), this.words, this.chips, this.rules, this.status));
    this.writer = new Writer(this.words);
    this.show(event, cameraName);
  }

  show(event, cameraName) {
    const partial = this.#partialOf(event);
    this.event = event;
    setText(this.button, cameraName);
    this.time.dateTime = event.first_seen;
    this.time.title = moments(event.first_seen);
    const [label, tone] = EVENT_STATES[event.state] ?? [event.state, "quiet"];
    setText(this.badge, label);
    this.badge.dataset.tone = tone;
    this.#showCrop(event, cameraName);
    this.writer.set(event.description ?? partial);
    this.#showAttributes();
    const rules = event.rules ?? [];
    setText(this.rules, rules.length ? `Alert: ${rules.join(", ")}` : "");
    setShown(this.rules, rules.length > 0);
    this.#showStatus();
    this.tick();
  }

  /** The words so far, while they are being made. */
  write(text) {
    if (this.event.description !== null && this.event.description_state === "final") return;
    this.event = { ...this.event, description_state: "running", partial: text };
    this.writer.set(text);
    this.#showStatus();
  }

  /** Times that grow by themselves. */
  tick() {
    const { first_seen, last_seen, state } = this.event;
    const seconds = (Date.parse(last_seen) - Date.parse(first_seen)) / 1000;
    const stay = state === "active" || seconds < 1 ? "" : `, ${duration(seconds)} in view`;
    setText(this.time, `${moment(first_seen)}${stay}`);
    this.time.title = `${moments(first_seen)}, ${ago(first_seen)}`;
  }

  /** A list page fetched while words are coming knows none yet: those already on the page stay. */
  #partialOf(event) {
    const writing = event.description_state === "queued" || event.description_state === "running";
    return writing ? this.event.partial ?? "" : "";
  }

  #showStatus() {
    const { description_state: state, reason_text: reason } = this.event;
    const failed = state === "failed" || state === "expired";
    const words = DESCRIPTION_STATES[state] ?? state;
    this.element.toggleAttribute("data-writing", state === "running");
    this.element.toggleAttribute("data-failed", failed);
    setText(this.status, failed && reason ? `${words}. ${reason}` : words);
    setShown(this.status, words !== "" && !(state === "running" && this.words.textContent !== ""));
  }

  #showAttributes() {
    // Drawn anew only when they have changed, so that a chip under the keyboard's focus stays.
    const attributes = JSON.stringify(this.event.attributes ?? null);
    if (attributes === this.#shownAttributes) return;
    this.#shownAttributes = attributes;
    this.chips.replaceChildren(...chipsOf(this.event.attributes, this.choose));
    setShown(this.chips, this.chips.childElementCount > 0);
  }

  #showCrop(event, cameraName) {
    // The picture behind the address changes when a better one comes; its id makes browsers ask again.
    const source = event.crop_url ? `${event.crop_url}?crop=${encodeURIComponent(event.crop_id)}` : null;
    if (source === null) {
      if (this.crop.tagName !== "DIV") this.#replaceCrop(h("div", { class: "crop none" }));
      setText(this.crop, event.state === "active" ? "Choosing the best picture" : "No picture");
      return;
    }
    const alt = `Person at ${cameraName}, ${moment(event.first_seen)}`;
    if (this.crop.tagName === "IMG") {
      if (this.crop.getAttribute("src") !== source) this.crop.src = source;
      this.crop.alt = alt;
      return;
    }
    const image = h("img", { class: "crop", src: source, alt, loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => {
      const gone = h("div", { class: "crop none" }, "Picture no longer kept");
      if (this.crop === image) this.#replaceCrop(gone);
    });
    this.#replaceCrop(image);
  }

  #replaceCrop(element) {
    this.crop.replaceWith(element);
    this.crop = element;
  }
}

/** Text that grows: what is new fades in, what was there stays untouched. */
export class Writer {
  #text = "";

  constructor(element) {
    this.element = element;
  }

  set(text) {
    if (text === this.#text) return;
    if (this.#text !== "" && text.startsWith(this.#text)) {
      const piece = h("span", { class: "new" }, text.slice(this.#text.length));
      this.element.append(piece);
      setTimeout(() => {
        piece.replaceWith(...piece.childNodes);
        this.element.normalize();
      }, FADE_MS);
    } else {
      this.element.replaceChildren(text);
    }
    this.#text = text;
  }
}
