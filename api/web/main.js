// Puts the page together.

import { HttpError, change, onUnauthorized, signIn, signOut } from "./api.js";
import { CameraForm } from "./camera_form.js";
import { CameraGrid } from "./cameras.js";
import { Details } from "./details.js";
import { byId, setShown, setText } from "./dom.js";
import { EventFeed } from "./events.js";
import { LiveStream, whileVisible } from "./live.js";
import { QueueStrip } from "./queue.js";

const CONNECTION_WORDS = { connecting: "Connecting", live: "Live", lost: "Reconnecting", paused: "Paused" };
const CHANGES = [
  "event.created", "event.updated", "event.ended", "description.partial", "description.final", "description.failed",
];

const grid = new CameraGrid();
const cameraForm = new CameraForm();
const feed = new EventFeed();
const details = new Details();
const strip = new QueueStrip();
const stream = new LiveStream(CHANGES);
const notice = byId("notice");

const troubles = new Map();

/** Runs `work`; what goes wrong is said on the page until the same work succeeds. */
async function attempt(name, work) {
  try {
    await work();
    troubles.delete(name);
  } catch (error) {
    if (error instanceof HttpError) troubles.set(name, error.message);
    // fetch's word for "no connection", which the indicator tells already
    else if (!(error instanceof TypeError)) throw error;
  }
  const [first] = troubles.values();
  setText(notice, first ?? "");
  setShown(notice, first !== undefined);
}

grid.addEventListener("cameras", ({ detail }) => {
  const names = new Map(detail.map((camera) => [camera.id, camera.name]));
  feed.showCameras(names);
  strip.names = names;
});
grid.addEventListener("settings", ({ detail }) => cameraForm.open(detail));
grid.addEventListener("back", ({ detail }) => attempt("back", async () => {
  await change("POST", `/api/cameras/${encodeURIComponent(detail)}/reset`);
  await grid.refresh();
}));
byId("camera-add").addEventListener("click", () => cameraForm.open());
cameraForm.addEventListener("changed", () => attempt("cameras", () => grid.refresh()));
feed.addEventListener("select", ({ detail }) => details.open(detail, feed.nameOf(detail.camera)));
feed.addEventListener("changed", ({ detail }) => details.update(detail));
stream.addEventListener("state", ({ detail }) => {
  byId("link").dataset.state = detail;
  setText(byId("link-text"), CONNECTION_WORDS[detail]);
});
stream.addEventListener("open", () => attempt("events", () => feed.refresh()));
stream.addEventListener("change", ({ detail }) => feed.apply(detail));

const dialog = byId("sign-in");
const form = byId("sign-in-form");
let asking = null;

onUnauthorized(() => {
  asking ??= new Promise((resolve) => {
    dialog.showModal();
    form.onsubmit = async (submit) => {
      submit.preventDefault();
      const wrong = await signIn(byId("key").value);
      setText(byId("sign-in-wrong"), wrong ?? "");
      setShown(byId("sign-in-wrong"), wrong !== null);
      if (wrong !== null) return;
      form.reset();
      dialog.close();
      sessionStorage.setItem("signed-in", "yes");
      setShown(byId("sign-out"), true);
      asking = null;
      resolve();
    };
  });
  return asking;
});
dialog.addEventListener("cancel", (cancel) => cancel.preventDefault()); // nothing works without a key
setShown(byId("sign-out"), sessionStorage.getItem("signed-in") === "yes");
byId("sign-out").addEventListener("click", async () => {
  await signOut();
  sessionStorage.removeItem("signed-in");
  location.reload();
});

/** A server for chats alone has nothing to poll; the page says so. */
function showWithoutCameras() {
  setText(byId("cameras-empty-title"), "No cameras here");
  setText(byId("cameras-empty-text"), "This server was started without cameras: it answers the OpenAI API alone.");
  setShown(byId("cameras-empty"), true);
  setShown(byId("camera-add"), false);
  setShown(byId("events"), false);
  setShown(byId("link"), false);
  strip.hideQueue();
}

function watchCameras() {
  stream.start();
  whileVisible(2, () => attempt("cameras", () => grid.refresh()));
  whileVisible(2, () => attempt("queue", () => strip.refreshQueue()));
  whileVisible(10, () => attempt("deliveries", () => strip.refreshTargets()));
  whileVisible(30, () => attempt("events", () => feed.refresh()));
  setInterval(() => { if (!document.hidden) feed.tick(); }, 10_000);
}

whileVisible(5, () => attempt("engine", () => strip.refreshEngine()));
try {
  await grid.refresh(); // asks for a key, if one is needed, before the stream opens
  watchCameras();
} catch (error) {
  if (error instanceof HttpError && error.code === "no_cameras") showWithoutCameras();
  else watchCameras(); // which says what is wrong, and goes on trying
}
