// The connection to the server: one stream of event changes, and whether it stands.

const HIDDEN_MS = 60_000;

export class LiveStream extends EventTarget {
  // Events: "state" (detail: connecting | live | lost | paused), "open", "change" (detail: the change).
  #source = null;
  #hiddenTimer = 0;

  constructor(kinds) {
    super();
    this.kinds = kinds;
    document.addEventListener("visibilitychange", () => this.#followVisibility());
    window.addEventListener("pagehide", () => this.stop());
  }

  start() {
    this.stop();
    this.#tell("connecting");
    const source = new EventSource("/api/stream");
    this.#source = source;
    source.onopen = () => {
      this.#tell("live");
      this.dispatchEvent(new Event("open"));
    };
    source.onerror = () => {
      this.#tell("lost");
      // A browser gives up for good after an answer other than 200 (a proxy's 502, our 503): try again ourselves.
      if (source.readyState === EventSource.CLOSED && this.#source === source) {
        this.#source = null;
        setTimeout(() => { if (this.#source === null && !document.hidden) this.start(); }, 3000);
      }
    };
    for (const kind of this.kinds) {
      source.addEventListener(kind, (message) => {
        this.dispatchEvent(new CustomEvent("change", { detail: JSON.parse(message.data) }));
      });
    }
  }

  stop() {
    this.#source?.close();
    this.#source = null;
  }

  /** A tab out of sight gives its connection back after a while: browsers allow only six to a server. */
  #followVisibility() {
    clearTimeout(this.#hiddenTimer);
    if (document.hidden) {
      this.#hiddenTimer = setTimeout(() => { this.stop(); this.#tell("paused"); }, HIDDEN_MS);
    } else if (this.#source === null) {
      this.start();
    }
  }

  #tell(state) {
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}

/** Calls `work` every `seconds` while the tab is visible, and at once when it becomes visible again. */
export function whileVisible(seconds, work) {
  let timer = 0;
  let running = false;
  const turn = async () => {
    clearTimeout(timer);
    if (document.hidden || running) return;
    running = true;
    try {
      await work();
    } finally {
      running = false;
      timer = setTimeout(turn, seconds * 1000);
    }
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return turn;
}
