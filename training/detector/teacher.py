"""The real YOLO26n, which labels frames and photographs, and whose boxes ours are compared with."""

from __future__ import annotations

from pathlib import Path

from ingest.weights import prepare_ultralytics
from training.detector.people import Image

SURE = 0.4
"""Score from which a box is taken as a label."""
UNSURE = 0.12
"""A box between the two is smeared over: to call it either would teach a fault."""
PERSON = 0


class Teacher:
    """YOLO26n by Ultralytics (COCO, AGPL-3.0), on the CPU."""

    def __init__(self, folder: Path) -> None:
        """``folder``: holds ``yolo26n_dequantised.pt``. Raises FileNotFoundError."""
        prepare_ultralytics()
        from ultralytics import YOLO

        weights = folder / "yolo26n_dequantised.pt"
        if not weights.is_file():
            raise FileNotFoundError(weights)
        self._model = YOLO(str(weights))
        self._of: tuple[int, list[tuple[float, tuple[float, float, float, float]]]] | None = None

    def boxes(self, image: Image, least: float) -> list[tuple[float, float, float, float]]:
        """Boxes of people with at least that score, in pixels. The same picture asked twice is looked at once."""
        if self._of is None or self._of[0] != id(image):
            side = 32 * min(20, max(5, round(max(image.shape[:2]) / 32)))
            found = self._model.predict(image, conf=UNSURE, classes=[PERSON], imgsz=side, nms=False, verbose=False)[0]
            rows = zip(found.boxes.conf.tolist(), found.boxes.xyxy.tolist(), strict=True)
            self._of = id(image), [(score, (box[0], box[1], box[2], box[3])) for score, box in rows]
        return [box for score, box in self._of[1] if score >= least]
