"""A foreign RTSP server: GStreamer's, from Debian. Run by the system's own Python, which alone has its bindings.

    /usr/bin/python3 gst_server.py FOLDER h264|h265 FPS [USER PASSWORD]

Serves the access units FOLDER/00000, 00001 ... (Annex B), from the first again after the last, to every client, at
rtsp://127.0.0.1:PORT/gst over TCP and UDP; prints PORT. With a user name it asks for Digest. Ends with its stdin.
"""

import sys
import threading
from pathlib import Path

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402

PAY = {"h264": "rtph264pay", "h265": "rtph265pay"}
REALM = "gst"


def feed(media: GstRtspServer.RTSPMedia, units: list[bytes], fps: int) -> None:
    """Pushes an access unit per frame time for as long as the media is there."""
    source = media.get_element().get_by_name("source")
    position = 0

    def push() -> bool:
        nonlocal position
        unit = units[position % len(units)]
        position += 1
        return source.emit("push-buffer", Gst.Buffer.new_wrapped(unit)) == Gst.FlowReturn.OK

    GLib.timeout_add(1000 // fps, push)


def main(folder: str, codec: str, fps: str, *credentials: str) -> None:
    Gst.init(None)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(
        "( appsrc name=source is-live=true format=time do-timestamp=true "
        f'caps="video/x-{codec},stream-format=byte-stream,alignment=au,framerate={fps}/1" '
        f"! {PAY[codec]} name=pay0 pt=96 config-interval=-1 )"
    )
    factory.set_shared(True)
    units = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    factory.connect("media-configure", lambda _, media: feed(media, units, int(fps)))
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service("0")
    if credentials:
        auth = GstRtspServer.RTSPAuth()
        token = GstRtspServer.RTSPToken()
        token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "viewer")
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.set_realm(REALM)
        auth.add_digest(credentials[0], credentials[1], token)
        server.set_auth(auth)
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_permission_for_role("viewer", GstRtspServer.RTSP_PERM_MEDIA_FACTORY_ACCESS, True)
        permissions.add_permission_for_role("viewer", GstRtspServer.RTSP_PERM_MEDIA_FACTORY_CONSTRUCT, True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory("/gst", factory)
    server.attach(None)
    loop = GLib.MainLoop()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.quit()), daemon=True).start()
    print(server.get_bound_port(), flush=True)
    loop.run()


main(*sys.argv[1:])
