// Numbers, times and states in words.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayAndClock = new Intl.DateTimeFormat(undefined, {
  weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

export const CAMERA_STATES = {
  disabled: ["Off", "quiet"],
  connecting: ["Connecting", "busy"],
  online: ["Live", "good"],
  stalled: ["Stalled", "warn"],
  frozen: ["Frozen", "warn"],
  auth_failed: ["Login refused", "bad"],
  unreachable: ["Unreachable", "bad"],
  transport_refused: ["Transport refused", "bad"],
  unsupported: ["Not supported", "bad"],
  stopping: ["Stopping", "quiet"],
};

export const EVENT_STATES = {
  active: ["In view", "good"],
  ended: ["Left", "quiet"],
  interrupted: ["Interrupted", "warn"],
};

export const DESCRIPTION_STATES = {
  queued: "Waiting to be described",
  running: "Being described",
  draft: "First description; a better picture may follow",
  final: "",
  expired: "Not described in time",
  failed: "Could not be described",
};

/** 0.24 -> "0.2 s", 75 -> "1 min 15 s", 8000 -> "2 h 13 min". */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 10) return `${minutes} min ${Math.floor(s % 60)} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

/** The time of day, with the date when it is not today's. */
export function moment(iso) {
  const then = new Date(iso);
  const today = new Date().toDateString() === then.toDateString();
  return (today ? clock : dayAndClock).format(then);
}

export const moments = (iso) => full.format(new Date(iso));

export const secondsSince = (iso) => (Date.now() - Date.parse(iso)) / 1000;

/** "just now", "3 min ago": coarse, so that it need not be redrawn each second. */
export function ago(iso) {
  const seconds = secondsSince(iso);
  if (seconds < 10) return "just now";
  if (seconds < 60) return "less than a minute ago";
  return `${duration(seconds).replace(/ \d+ s$/, "")} ago`;
}

export const plural = (n, one, many) => `${n} ${n === 1 ? one : many}`;
