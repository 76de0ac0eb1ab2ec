"""What is asked about a crop: instructions that all crops share, and the camera's question with its placeholders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.config.camera import CameraConfig
from pipeline.config.engine import DescriberConfig
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.config.prompt_template import fill
from pipeline.messages import CropMessage
from pipeline.store import EventRecord

STRUCTURE = (
    'Answer with one JSON object that fits this JSON schema and with nothing else; "unknown" stands for what can\'t be '
    "seen:"
)
SEVERAL = "The pictures show the same person, oldest first."


@dataclass(frozen=True, slots=True)
class Prompt:
    """Instructions before the pictures, the question after them.

    Attributes:
        schema: what a structured answer must look like; None: plain words are wanted.
    """

    system: str
    question: str
    schema: Mapping[str, Any] | None

    @property
    def hash(self) -> str:
        """SHA-256 of both texts, for knowing which words were asked for."""
        return hashlib.sha256(f"{self.system}\0{self.question}".encode()).hexdigest()


class PromptBook:
    """Writes prompts as configured.

    The instructions with the schema come first and are the same for all crops of cameras with the same schema, so that
    the engine finds them in its prefix cache; what differs - pictures, then the question - comes last.

    Args:
        camera_of: a camera's configuration, None for one that is not known. Asked for each crop, so that a change takes
            effect at once.
    """

    def __init__(
        self, config: DescriberConfig, camera_of: Callable[[str], CameraConfig | None] = lambda camera: None
    ) -> None:
        self._config = config
        self._camera_of = camera_of

    def prompt(self, message: CropMessage, event: EventRecord, pictures: int) -> Prompt:
        """The prompt for a crop of ``event`` that is shown with ``pictures`` pictures in all."""
        config, camera = self._config, self._camera_of(message.camera)
        template = (camera.prompt if camera is not None else None) or config.prompt
        question = fill(template, _values(message, event, camera))
        if pictures > 1:
            question = f"{SEVERAL} {question}"
        schema = self._schema(camera)
        if schema is None:
            return Prompt(config.system_prompt, question, None)
        outline = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        parts = (config.system_prompt, f"{STRUCTURE}\n{outline}")
        return Prompt("\n\n".join(part for part in parts if part), question, schema)

    def _schema(self, camera: CameraConfig | None) -> Mapping[str, Any] | None:
        if self._config.output == "text":
            return None
        own = camera.output_schema if camera is not None else None
        return own or self._config.output_schema or DEFAULT_OUTPUT_SCHEMA


def _values(message: CropMessage, event: EventRecord, camera: CameraConfig | None) -> Mapping[str, str]:
    # A crop that is described once more says when it was queued; the store knows when it was taken.
    stored = event.crop if event.crop is not None and event.crop.crop_id == message.crop_id else None
    taken = datetime.fromtimestamp(stored.time if stored is not None else message.time).astimezone()
    return {
        "camera": camera.title if camera is not None else message.camera,
        "camera_id": message.camera,
        "label": message.label,
        "zones": ", ".join(message.zones or event.zones) or "none",
        "time": f"{taken:%Y-%m-%d %H:%M}",
    }
