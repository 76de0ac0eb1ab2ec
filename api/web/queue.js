// The strip in the header: what waits, what was dropped, and how the engine is.

import { getJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { ago, duration } from "./words.js";

const ENGINE_WORDS = {
  ready: ["Ready", "good"],
  loading: ["Loading", "busy"],
  stopped: ["Starting", "busy"],
  failed: ["Failed", "bad"],
  dead: ["Stopped", "bad"],
};

// Frames in which nothing moved and the detector did not have to look: in the table, but nothing to worry about.
const NO_LOSS = "frame_still";

export class QueueStrip {
  constructor() {
    const strip = byId("strip");
    this.engine = item(strip, "Engine");
    this.waiting = item(strip, "Waiting");
    this.oldest = item(strip, "Oldest");
    this.pending = item(strip, "Describing");
    this.detail = item(strip, "Detail");
    this.dropped = h("button", { type: "button", popovertarget: "drops" }, "–");
    item(strip, "Dropped").replaceChildren(this.dropped);
    this.drops = byId("drops-rows");
    this.told = h("button", { type: "button", popovertarget: "targets" }, "–");
    this.toldItem = item(strip, "Delivery");
    this.toldItem.replaceChildren(this.told);
    this.toldItem.closest("div").hidden = true;
    this.targets = byId("targets-rows");
    this.names = new Map();
  }

  async refreshQueue() {
    const queue = await getJson("/api/queue");
    setText(this.waiting, String(queue.waiting));
    setText(this.oldest, queue.oldest_age === null ? "–" : duration(queue.oldest_age));
    setText(this.pending, String(queue.pending));
    setText(this.detail, queue.image_tokens === null ? "Full" : `${queue.image_tokens} tokens`);
    this.detail.dataset.tone = queue.image_tokens === null ? "quiet" : "busy";
    this.detail.title = queue.image_tokens === null ? ""
      : `Crops wait too long, so pictures are read more coarsely (step ${queue.image_step} of ${queue.image_steps}).`;
    this.detail.closest("div").hidden = queue.image_steps === 0;
    const lost = queue.drops.filter((drop) => drop.reason !== NO_LOSS).reduce((sum, drop) => sum + drop.count, 0);
    setText(this.dropped, String(lost));
    const rows = queue.drops.map((drop) => row(this.names.get(drop.camera) ?? drop.camera, drop.reason_text, drop.count));
    if (queue.dead) rows.push(row("All", "Put aside after failing too often.", queue.dead));
    if (!rows.length) rows.push(row("", "Nothing was dropped.", ""));
    this.drops.replaceChildren(...rows);
  }

  /** Who is told of events, and whether that works; nothing where nobody is. */
  async refreshTargets() {
    const { targets } = await getJson("/api/deliveries");
    this.toldItem.closest("div").hidden = targets.length === 0;
    const failing = targets.filter((target) => !target.ok).length;
    setText(this.told, failing ? `${failing} failing` : "Working");
    this.toldItem.dataset.tone = failing ? "bad" : "good";
    this.targets.replaceChildren(...targets.map((target) => {
      const dropped = target.dropped.reduce((sum, drop) => sum + drop.count, 0);
      const state = target.ok ? (target.last_success ? `Worked ${ago(target.last_success)}` : "Nothing sent yet") : target.last_error;
      const name = h("td", {}, target.name);
      name.title = target.address;
      return h("tr", {}, name, h("td", {}, state), h("td", {}, String(target.waiting)), h("td", {}, String(dropped)));
    }));
  }

  hideQueue() {
    for (const value of [this.waiting, this.oldest, this.pending, this.detail, this.dropped]) value.closest("div").hidden = true;
  }

  async refreshEngine() {
    // 503 is an answer here: it carries the reasons.
    const response = await fetch("/health/ready", { cache: "no-store" });
    const { parts } = await response.json();
    const engine = parts.engine;
    const [word, tone] = engine ? ENGINE_WORDS[engine.state] ?? [engine.state, "quiet"] : ["Elsewhere", "quiet"];
    setText(this.engine, word);
    this.engine.dataset.tone = tone;
    this.engine.title = engine?.reason ?? "";
  }
}

function item(strip, label) {
  const value = h("dd", {}, "–");
  strip.append(h("div", {}, h("dt", {}, label), value));
  return value;
}

function row(camera, reason, count) {
  return h("tr", {}, h("td", {}, camera), h("td", {}, reason), h("td", {}, String(count)));
}
