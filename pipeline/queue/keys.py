"""Names of everything in Redis, in one place. Prefix ``ww:``; values are bytes, never decoded by the client."""

from __future__ import annotations

GROUP = "describers"
TRACKS = "ww:tracks"
TRACKS_GROUP = "serve"
COMMANDS = "ww:commands"
CAMERA_CHANGES = "ww:camera-changes"
"""String: all that the API changed of the cameras (:class:`pipeline.config.overlay.ChangeSet`). Holds passwords."""
EVENTS = "ww:events"
DROPS = "ww:drops"
DEAD = "ww:dead"
"""Dead letters; the picture of one lies under :func:`dead_picture`."""
CAMERAS = "ww:cameras"
"""Set of the ids of all cameras that have a status or a crop stream, so that a reader knows which keys there are."""


def crops(camera: str) -> str:
    """Stream of a camera's crops."""
    return f"ww:crops:{camera}"


def picture(crop_id: str) -> str:
    """JPEG of a crop; has a TTL."""
    return f"ww:crop:{crop_id}"


def extra_picture(crop_id: str, which: str) -> str:
    """JPEG of another picture of the crop's track, its ``first`` or ``last`` one; lives and goes with the crop."""
    return f"ww:crop:{crop_id}.{which}"


def outcome(picture_key: str) -> str:
    """What became of a publication: ``queued``, ``described`` or the reason of its drop. Has a TTL.

    A picture's key is what tells one publication of a crop from another.
    """
    return "ww:outcome:" + picture_key.removeprefix(picture(""))


def dead_picture(letter_id: str) -> str:
    """JPEG of a dead letter; has a TTL."""
    return f"{DEAD}:{letter_id}"


def crop_bytes(camera_id: str) -> str:
    """Sum of the bytes of a camera's queued pictures."""
    return f"ww:bytes:{camera_id}"


def counted(token: str) -> str:
    """Says that the drops with this token are in ``ww:drops``. Has a TTL."""
    return f"ww:counted:{token}"


def newest(camera_id: str) -> str:
    """Hash: track -> id of its newest entry in the camera's crop stream, to find what a new crop supersedes."""
    return f"ww:newest:{camera_id}"


def failures(camera_id: str) -> str:
    """Hash: entry id -> recorded failures of that crop."""
    return f"ww:failures:{camera_id}"


def camera(camera_id: str) -> str:
    """Hash with a camera's :class:`pipeline.messages.CameraStatus`; has a TTL."""
    return f"ww:camera:{camera_id}"


def preview(camera_id: str) -> str:
    """Newest preview JPEG with boxes; short TTL."""
    return f"ww:preview:{camera_id}"


def drop_field(camera_id: str, reason: str) -> str:
    """Field of the hash ``ww:drops``."""
    return f"{camera_id}|{reason}"
