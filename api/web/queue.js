// The strip in the header: what waits, what was dropped, and how the engine is.

import { getJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { duration } from "./words.js";

const ENGINE_WORDS = {
  ready: ["Ready", "good"],
  loading: ["Loading", "busy"],
  stopped: ["Starting", "busy"],
  failed: ["Failed", "bad"],
  dead: ["Stopped", "bad"],
};

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
    setText(this.dropped, String(queue.dropped));
    const rows = queue.drops.map((drop) => row(this.names.get(drop.camera) ?? drop.camera, drop.reason_text, drop.count));
    if (queue.dead) rows.push(row("All", "Put aside after failing too often.", queue.dead));
    if (!rows.length) rows.push(row("", "Nothing was dropped.", ""));
    this.drops.replaceChildren(...rows);
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
