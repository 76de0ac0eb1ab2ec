// The events: newest first, older ones on demand, descriptions written as they come.

import { getJson } from "./api.js";
import { labelOf } from "./attributes.js";
import { byId, h, setShown, setText } from "./dom.js";
import { EventCard } from "./event_card.js";

const PAGE = 40;
const MOST_SHOWN = 120; // a page left open for days stays light
const MOST_WITH_OLDER = 1000;
const LARGEST_PAGE = 200;
const TYPING_MS = 250;
const NOTHING = {
  title: "Nobody seen yet",
  text: "When a camera sees a person, their picture appears here, and a description is written beside it as you watch.",
};
const NOT_FOUND = {
  title: "Nothing found",
  text: "No event has all of this. Fewer words and attributes find more; quotes keep words together, and -word leaves out.",
};

export class EventFeed extends EventTarget {
  // Events: "select" (detail: the event), "changed" (detail: the event).
  #cards = new Map();
  #names = new Map();
  #camera = "";
  #query = "";
  #attributes = [];
  #typing = 0;
  #next = null;
  #askedForOlder = false;
  #trimmed = false;
  #epoch = 0;

  constructor() {
    super();
    this.list = byId("feed");
    this.empty = byId("events-empty");
    this.older = byId("older");
    this.filter = byId("filter");
    this.search = byId("search");
    this.chosen = byId("chosen");
    this.announcer = byId("announcer");
    this.search.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#searchFor(queryOf(this.search.value)), TYPING_MS);
    });
    this.older.addEventListener("click", () => this.#loadOlder());
    this.filter.addEventListener("change", () => {
      this.#camera = this.filter.value;
      this.#clear();
      this.refresh();
    });
  }

  /** The newest page, merged into what is shown. */
  async refresh() {
    const epoch = this.#epoch;
    const page = await getJson(this.#path({ limit: PAGE }));
    if (epoch !== this.#epoch) return;
    // Nothing in common after a long absence: what lies between is unknown, so the list begins anew.
    if (page.next && !page.events.some((event) => this.#cards.has(event.id))) this.#clear();
    if (this.#cards.size === 0) this.#next = page.next;
    this.#merge(page.events, { fresh: false });
    this.#settle();
  }

  /** A change that the server tells of. */
  apply(change) {
    const card = this.#cards.get(change.event_id);
    if (change.kind === "description.partial") {
      card?.write(change.event.description ?? "");
      if (card) this.dispatchEvent(new CustomEvent("changed", { detail: card.event }));
      return;
    }
    const event = change.event;
    if (!event.id || (this.#camera && event.camera !== this.#camera)) return;
    // Whether an event has what is searched for, only the server knows; it has them once they are final.
    if ((this.#query || this.#attributes.length) && !card) {
      if (change.kind === "description.final") this.refresh();
      return;
    }
    // Changes of events further back than the list goes are left to "Show older".
    if (!card && this.#next !== null && this.#olderThanShown(event)) return;
    this.#merge([event], { fresh: true });
    this.#settle();
    if (change.kind === "event.created") setText(this.announcer, `Somebody at ${this.nameOf(event.camera)}`);
  }

  /** Cameras by name, for the filter and the cards. */
  showCameras(names) {
    if (sameEntries(names, this.#names)) return;
    this.#names = names;
    const options = [new Option("All cameras", "")];
    for (const [id, name] of names) options.push(new Option(name, id, false, id === this.#camera));
    this.filter.replaceChildren(...options);
    for (const card of this.#cards.values()) card.show(card.event, this.nameOf(card.event.camera));
  }

  tick() {
    for (const card of this.#cards.values()) card.tick();
  }

  nameOf(camera) {
    return this.#names.get(camera) ?? camera;
  }

  #path(query) {
    const search = new URLSearchParams(query);
    if (this.#camera) search.set("camera", this.#camera);
    if (this.#query) search.set("q", this.#query);
    for (const [path, value] of this.#attributes) search.append("attribute", `${path}:${value}`);
    return `/api/events?${search}`;
  }

  #searchFor(query) {
    if (query === this.#query) return;
    this.#query = query;
    return this.#askAnew();
  }

  #askAnew() {
    this.#clear();
    this.list.setAttribute("aria-busy", "true");
    return this.refresh();
  }

  /** Only events with this attribute, and with those chosen before. */
  #choose(path, value) {
    if (this.#attributes.some(([p, v]) => p === path && v === value)) return;
    this.#attributes.push([path, value]);
    this.#showChosen();
    this.#askAnew();
  }

  #showChosen() {
    this.chosen.replaceChildren(...this.#attributes.map((pair) => {
      const [path, value] = pair;
      const label = labelOf(path);
      const chip = h("button", { class: "chip", type: "button", "aria-label": `Without the filter ${label}: ${value}` },
        h("b", {}, label), value, h("span", { "aria-hidden": "true" }, "\u00d7"));
      chip.addEventListener("click", () => {
        this.#attributes = this.#attributes.filter((other) => other !== pair);
        this.#showChosen();
        this.#askAnew();
      });
      return chip;
    }));
    setShown(this.chosen, this.#attributes.length > 0);
  }

  async #loadOlder() {
    this.older.disabled = true;
    const epoch = this.#epoch;
    try {
      // After trimming there is no cursor for the last card: the largest page reaches beyond it.
      const query = this.#trimmed ? { limit: LARGEST_PAGE } : { limit: PAGE, before: this.#next };
      const page = await getJson(this.#path(query));
      if (epoch !== this.#epoch) return;
      const last = this.list.lastElementChild;
      this.#askedForOlder = true;
      this.#trimmed = false;
      this.#next = page.next;
      this.#merge(page.events, { fresh: false });
      this.#settle();
      last?.nextElementSibling?.querySelector("button")?.focus();
    } finally {
      this.older.disabled = false;
    }
  }

  #merge(events, { fresh }) {
    for (const event of events) {
      let card = this.#cards.get(event.id);
      if (card) {
        card.show(event, this.nameOf(event.camera));
      } else {
        card = new EventCard(event, this.nameOf(event.camera), fresh, (path, value) => this.#choose(path, value));
        card.button.addEventListener("click", () => {
          this.dispatchEvent(new CustomEvent("select", { detail: card.event }));
        });
        this.#cards.set(event.id, card);
        this.#place(card);
      }
      this.dispatchEvent(new CustomEvent("changed", { detail: card.event }));
    }
  }

  #place(card) {
    const before = [...this.list.children].find((element) => element.dataset.seen <= card.element.dataset.seen);
    this.list.insertBefore(card.element, before ?? null);
  }

  #olderThanShown(event) {
    const last = this.list.lastElementChild;
    return last !== null && event.first_seen < last.dataset.seen;
  }

  #settle() {
    const most = this.#askedForOlder ? MOST_WITH_OLDER : MOST_SHOWN;
    while (this.#cards.size > most) {
      const last = this.list.lastElementChild;
      this.#cards.delete(last.dataset.event);
      last.remove();
      this.#trimmed = true;
    }
    this.list.setAttribute("aria-busy", "false");
    const { title, text } = this.#query || this.#attributes.length ? NOT_FOUND : NOTHING;
    setText(byId("events-empty-title"), title);
    setText(byId("events-empty-text"), text);
    setShown(this.empty, this.#cards.size === 0);
    setShown(this.older, this.#next !== null || this.#trimmed);
  }

  #clear() {
    this.#epoch += 1;
    this.#cards.clear();
    this.list.replaceChildren();
    this.#next = null;
    this.#askedForOlder = false;
    this.#trimmed = false;
  }
}

/** What is typed, with its last word as a beginning while it may go on: not in quotes, not before a blank. */
function queryOf(typed) {
  const text = typed.trimStart();
  const quoted = text.split('"').length % 2 === 0;
  return !quoted && /[\p{L}\p{N}]$/u.test(text) ? `${text}*` : text.trim();
}

function sameEntries(a, b) {
  return a.size === b.size && [...a].every(([key, value]) => b.get(key) === value);
}
