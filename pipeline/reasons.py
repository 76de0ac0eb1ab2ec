"""One enum of reasons for every drop and error: log field, metric label, and text on the operator page alike."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why something was dropped, failed or is not working. The value is stable: stored, counted and shown."""

    # Cameras
    NONE = "none"
    REFUSED = "connection_refused"
    TIMEOUT = "timeout"
    HOST = "host_unreachable"
    FIRST_FRAME_TIMEOUT = "first_frame_timeout"
    STREAM_ENDED = "stream_ended"
    NO_FRAMES = "no_frames"
    AUTH = "auth_failed"
    NOT_FOUND = "not_found"
    TRANSPORT = "transport_refused"
    BUSY = "camera_busy"
    TLS = "tls_failed"
    CODEC = "codec_unsupported"
    DECODER = "decoder_unavailable"
    NETWORK = "detector_unavailable"
    FROZEN = "picture_frozen"
    BAD_SOURCE = "bad_source"
    SECRET = "password_unreadable"
    SWITCHED_OFF = "switched_off"
    SCHEDULE = "outside_schedule"
    SHUTDOWN = "shutdown"
    # Frames, boxes
    FRAME_STALE = "frame_stale"
    FRAME_TAINTED = "frame_tainted"
    FRAME_STILL = "frame_still"
    BOX_INVALID = "box_invalid"
    DETECTOR = "detector_error"
    # Tracks
    TRACK_LOST = "track_lost"
    TRACK_STATIONARY = "track_stationary"
    TRACK_MAX_DURATION = "track_max_duration"
    # Crops and queue
    SUPERSEDED = "superseded"
    SAME_PICTURE = "same_picture"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline_passed"
    PICTURE_EXPIRED = "picture_expired"
    NO_PICTURE = "no_picture"
    TRIMMED = "trimmed"
    BUFFER_FULL = "buffer_full"
    REDIS_DOWN = "redis_down"
    REDIS_MEMORY = "redis_memory"
    MALFORMED = "malformed"
    POISON = "failed_too_often"
    STORE = "store_error"
    # Descriptions
    ENGINE_DOWN = "engine_down"
    ENGINE_BUSY = "engine_busy"
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"
    INTERRUPTED = "interrupted"
    # Delivery
    TARGET_UNREACHABLE = "target_unreachable"
    TARGET_TIMEOUT = "target_timeout"
    TARGET_TLS = "target_tls_failed"
    TARGET_AUTH = "target_auth_failed"
    TARGET_STATUS = "target_error"
    TARGET_REDIRECT = "target_redirects"
    TARGET_GONE = "target_gone"
    DELIVERY_QUEUE_FULL = "delivery_queue_full"
    DELIVERY_EXPIRED = "delivery_expired"
    DELIVERY_EVENT_GONE = "delivery_event_gone"
    PICTURE_TOO_LARGE = "picture_too_large"


REASON_TEXT: dict[Reason, str] = {
    Reason.NONE: "",
    Reason.REFUSED: "The camera refuses connections on that port.",
    Reason.TIMEOUT: "The camera does not answer in time.",
    Reason.HOST: "The camera's host name can't be resolved, or no way leads to it.",
    Reason.FIRST_FRAME_TIMEOUT: "The camera answers but sends no picture.",
    Reason.STREAM_ENDED: "The camera closed the stream.",
    Reason.NO_FRAMES: "No new picture for too long.",
    Reason.AUTH: "The camera refuses the user name or password.",
    Reason.NOT_FOUND: "The camera has no stream at that path.",
    Reason.TRANSPORT: "The camera refuses this transport; try the other of tcp and udp.",
    Reason.BUSY: "The camera serves as many clients as it can.",
    Reason.TLS: "The camera's certificate is not trusted (see tls_ca_file, tls_verify), or it does not speak TLS.",
    Reason.DECODER: "The chosen decoder can't be used here; decode can be auto or cpu.",
    Reason.NETWORK: "The camera's weights, quantize or classes can't be used; ingest's log says why.",
    Reason.FROZEN: "The camera sends the same picture again and again.",
    Reason.CODEC: "The stream's video codec can't be decoded here.",
    Reason.BAD_SOURCE: "The camera's URL can't be used.",
    Reason.SECRET: "The camera's password_file can't be read.",
    Reason.SWITCHED_OFF: "Switched off.",
    Reason.SCHEDULE: "Outside the hours in which it is watched.",
    Reason.SHUTDOWN: "Shutting down.",
    Reason.FRAME_STALE: "The picture was too old to use.",
    Reason.FRAME_TAINTED: "The decoder reported damage; waiting for the next keyframe.",
    Reason.FRAME_STILL: "Nothing moved; the detector did not have to look.",
    Reason.BOX_INVALID: "The detector gave a box without area or outside numbers.",
    Reason.DETECTOR: "The detector failed on this picture.",
    Reason.TRACK_LOST: "The person is no longer seen.",
    Reason.TRACK_STATIONARY: "It has not moved for too long; when it moves, a new event begins.",
    Reason.TRACK_MAX_DURATION: "The track reached its longest duration; a new event goes on.",
    Reason.SUPERSEDED: "A newer crop of the same track took its place.",
    Reason.SAME_PICTURE: "The better picture looks like the one that was sent before.",
    Reason.QUEUE_FULL: "The queue was full; the oldest waiting crop made room.",
    Reason.DEADLINE: "Its deadline passed before it could be described.",
    Reason.PICTURE_EXPIRED: "Its picture was gone before it could be described.",
    Reason.NO_PICTURE: "No picture of the person reached the describer.",
    Reason.TRIMMED: "Its entry was taken out of the queue from outside.",
    Reason.BUFFER_FULL: "Redis was away for long; the oldest buffered crop made room.",
    Reason.REDIS_DOWN: "Redis can't be reached.",
    Reason.REDIS_MEMORY: "Redis is out of memory.",
    Reason.MALFORMED: "The entry could not be read.",
    Reason.POISON: "It failed too often and was put aside.",
    Reason.STORE: "The database or the disk failed.",
    Reason.ENGINE_DOWN: "The engine is not ready.",
    Reason.ENGINE_BUSY: "The engine's queue is full.",
    Reason.ENGINE_ERROR: "The engine failed on this crop.",
    Reason.ENGINE_TIMEOUT: "The engine took too long for this crop.",
    Reason.INTERRUPTED: "The process stopped while the person was in view.",
    Reason.TARGET_UNREACHABLE: "The target can't be reached.",
    Reason.TARGET_TIMEOUT: "The target does not answer in time.",
    Reason.TARGET_TLS: "The target's certificate is not trusted (tls_ca_file, tls_verify), or it does not speak TLS.",
    Reason.TARGET_AUTH: "The broker refuses the user name or password.",
    Reason.TARGET_STATUS: "The target refuses messages.",
    Reason.TARGET_REDIRECT: "The target answers with a redirect, which is not followed; configure its new address.",
    Reason.TARGET_GONE: "The target says that it is gone for good (410).",
    Reason.DELIVERY_QUEUE_FULL: "Too much waited for this target; the oldest made room.",
    Reason.DELIVERY_EXPIRED: "It could not be delivered for too long.",
    Reason.DELIVERY_EVENT_GONE: "Its event was deleted before it could be delivered.",
    Reason.PICTURE_TOO_LARGE: "The picture was larger than mqtt.max_image_bytes.",
}
