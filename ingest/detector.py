"""YOLO26 through ultralytics: people only."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ingest.detection import Rows
from ingest.frame import Image
from ingest.weights import prepare_ultralytics
from pipeline.config import DetectorConfig

log = logging.getLogger(__name__)

LEAST_SCORE = 0.1
"""ByteTrack keeps known tracks alive with weak detections, so the network's answers are taken from here on; what counts
as a person by itself is the camera's own threshold."""

WARM_UP_SIZE = (480, 640)


class DetectorError(RuntimeError):
    """The model can't be used; the text says why."""


class PersonDetector:
    """One network for all cameras; to be used by one thread at a time (ultralytics' predictor keeps state).

    ``nms=False`` chooses YOLO26's end-to-end head. It is always passed: ultralytics' default has changed before, and
    which head a network keeps is decided for good when it is loaded. A model without such a head (an older YOLO) falls
    back to its usual suppression by itself.
    """

    def __init__(self, weights: Path, config: DetectorConfig) -> None:
        """Loads the model. Raises :class:`DetectorError`."""
        prepare_ultralytics()
        from ultralytics import YOLO

        self._config = config
        try:
            self._model: Any = YOLO(str(weights), task="detect")
            names: dict[int, str] = dict(self._model.names)
        except Exception as error:  # anything can come out of unpickling a checkpoint or loading an export
            raise DetectorError(f"{weights} can't be loaded: {type(error).__name__}: {error}") from error
        self._classes = [index for index, name in names.items() if name.strip().lower() == "person"]
        if not self._classes:
            known = ", ".join(list(names.values())[:10])
            raise DetectorError(f"{weights} knows no class 'person'; its classes: {known}")
        self.label = "person"
        self.weights = weights
        self._device = None if config.device == "auto" else config.device

    @property
    def batch_size(self) -> int:
        """Frames that are worth one forward together.

        On a CPU a batch takes as long as its frames one by one (measured: 4 frames, 271 ms against 4 x 60 ms), and the
        first would only wait for the last.
        """
        return self._config.max_batch if self._on_gpu else 1

    def warm_up(self) -> None:
        """Everything that the first forward costs extra, before the first camera waits for it."""
        self._limit_threads()
        grey = np.full((*WARM_UP_SIZE, 3), 114, dtype=np.uint8)
        self.detect([grey])
        self._limit_openvino_threads()
        self.detect([grey] * self.batch_size)

    def detect(self, images: Sequence[Image]) -> list[Rows]:
        """People in each image, scores from ``LEAST_SCORE``; boxes are not checked yet.

        Images of one size share a forward: mixed ones would all be padded to a square. Raises whatever the network's
        runtime raises.
        """
        by_size: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, image in enumerate(images):
            by_size[image.shape].append(index)
        found: list[Rows] = [np.zeros((0, 5), dtype=np.float32)] * len(images)
        for indices in by_size.values():
            for start in range(0, len(indices), self._config.max_batch):
                part = indices[start : start + self._config.max_batch]
                for index, rows in zip(part, self._forward([images[i] for i in part]), strict=True):
                    found[index] = rows
        return found

    def _forward(self, images: list[Image]) -> list[Rows]:
        results = self._model.predict(
            images,
            nms=False,
            classes=self._classes,
            conf=LEAST_SCORE,
            imgsz=self._config.imgsz,
            device=self._device,
            verbose=False,
            save=False,
        )
        return [np.asarray(result.boxes.data.cpu().numpy()[:, :5], dtype=np.float32) for result in results]

    @property
    def _on_gpu(self) -> bool:
        predictor = self._model.predictor
        if predictor is None:
            return False
        return getattr(predictor.device, "type", "cpu") == "cuda"

    def _limit_threads(self) -> None:
        import torch

        if self._config.device == "cpu" or not torch.cuda.is_available():
            torch.set_num_threads(self._config.threads)

    def _limit_openvino_threads(self) -> None:
        """Ultralytics gives OpenVINO all cores and no say in it: compile the export again with ours."""
        backend: Any = getattr(self._model.predictor.model, "backend", None)
        compile_model = getattr(backend, "compile_model", None)
        if not isinstance(compile_model, partial) or compile_model.keywords.get("device_name") != "CPU":
            return
        import openvino

        config = {**compile_model.keywords["config"], "INFERENCE_NUM_THREADS": self._config.threads}
        backend.compile_model = partial(compile_model.func, device_name="CPU", config=config)
        xml = self.weights if self.weights.is_file() else next(self.weights.glob("*.xml"))
        backend.ov_compiled_model = backend.compile_model(openvino.Core().read_model(xml))
