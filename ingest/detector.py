"""YOLO26 through ultralytics: the networks of all cameras, and one forward for the frames that may share it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ingest.detection import Labels, Rows
from ingest.frame import Image
from ingest.weights import is_shipped, prepare_ultralytics, resolve_weights
from pipeline.config import CameraConfig, DetectorConfig

log = logging.getLogger(__name__)

LEAST_SCORE = 0.1
"""ByteTrack keeps known tracks alive with weak detections, so the network's answers are taken from here on; what counts
as a person by itself is the camera's own threshold."""

OVERLAP = 0.5
"""Of two boxes that overlap by more, the surer one stays, where a network's head gives a person many (intersection over
union). Ultralytics' 0.7 leaves doubled boxes (measured with ours: 0.38 false ones a frame, 0.34 with 0.5)."""

COMMON_SIZES = ((480, 640), (360, 640), (576, 704))
"""Height and width of the frames that most cameras send (as proportions). A checkpoint's input follows them, so each is
another shape for the network; others are warmed up when their first frame comes."""

USUAL_IMGSZ, SHIPPED_IMGSZ = 640, 416
"""Longer side of the input when nobody has said one: of official checkpoints, and of the detector that comes along."""

_GREY = 114
_HALF, _INT8 = 16, 8


class DetectorError(RuntimeError):
    """The model can't be used; the text says why."""


@dataclass(frozen=True, slots=True)
class DetectorGroup:
    """What frames must have in common to share a forward."""

    weights: str
    quantize: int | None
    imgsz: int | None

    @classmethod
    def of(cls, camera: CameraConfig, config: DetectorConfig) -> DetectorGroup:
        """A camera's own settings, and the detector's where it has none."""
        return cls(camera.weights or config.weights, camera.quantize or config.quantize, camera.imgsz or config.imgsz)


class YoloNetwork:
    """One network; to be used by one thread at a time (ultralytics' predictor keeps state).

    ``nms=False`` chooses YOLO26's end-to-end head. It is passed to every network but checkpoints without such a head
    (an older YOLO, the detector that comes with Watchword): ultralytics' default has changed before, and which head a
    network keeps is decided for good when it is loaded. Those without it get suppression at ``OVERLAP``.
    """

    def __init__(self, weights: Path, config: DetectorConfig, quantize: int | None = None) -> None:
        """Loads the model; ``quantize`` as the configuration has it. Raises :class:`DetectorError`."""
        prepare_ultralytics()
        from ultralytics import YOLO

        from ingest.predictor import QuickPredictor

        self._predictor = QuickPredictor
        self._config = config
        self._quantize = quantize
        self._warm: set[tuple[int, int, int]] = set()
        try:
            self._model: Any = YOLO(str(weights), task="detect")
            self.names: dict[int, str] = {i: str(name).strip().lower() for i, name in dict(self._model.names).items()}
        except Exception as error:  # anything can come out of unpickling a checkpoint or loading an export
            raise DetectorError(f"{weights} can't be loaded: {type(error).__name__}: {error}") from error
        self.weights = weights
        self.imgsz = config.imgsz or (SHIPPED_IMGSZ if is_shipped(weights) else USUAL_IMGSZ)
        self._nms = False if self._is_end_to_end() else None
        self._device = None if config.device == "auto" else config.device
        if quantize == _INT8 and weights.suffix == ".pt":
            raise DetectorError(f"quantize is 8, but {weights.name} is a checkpoint; int8 needs an export made with it")

    def labels(self, classes: Iterable[str]) -> Labels:
        """Numbers and names of the classes. Raises :class:`DetectorError` for one that the network doesn't know."""
        numbers = {name: number for number, name in self.names.items()}
        for name in classes:
            if name not in numbers:
                near = get_close_matches(name, numbers, n=1)
                known = ", ".join(list(numbers)[:10]) + (", ..." if len(numbers) > 10 else "")
                meant = f"; did you mean {near[0]!r}?" if near else ""
                raise DetectorError(f"{self.weights} knows no class {name!r}; its classes: {known}{meant}")
        return {numbers[name]: name for name in classes}

    @property
    def batch_size(self) -> int:
        """Frames that are worth one forward together.

        On a CPU a batch takes as long as its frames one by one (measured: 4 frames, 271 ms against 4 x 60 ms), and the
        first would only wait for the last.
        """
        return self._config.max_batch if self._on_gpu else 1

    def warm_up(self, imgsz: int | None = None) -> None:
        """Everything that the first forwards cost extra, before the first camera waits for it."""
        imgsz = imgsz or self.imgsz
        self._limit_threads()
        self._forward([_grey(*COMMON_SIZES[0])], imgsz)
        self._limit_openvino_threads()
        self._check_precision()
        for size in COMMON_SIZES:
            self._warm_up(*size, imgsz)

    def detect(self, images: Sequence[Image], imgsz: int | None = None) -> list[Rows]:
        """What is on each image, all classes, scores from ``LEAST_SCORE``; boxes are not checked yet.

        ``imgsz``: longer side of the input, the detector's own when not given.

        Images of one size share a forward: mixed ones would all be padded to a square. Raises whatever the network's
        runtime raises.
        """
        imgsz = imgsz or self.imgsz
        by_size: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, image in enumerate(images):
            by_size[image.shape].append(index)
        found: list[Rows] = [np.zeros((0, 6), dtype=np.float32)] * len(images)
        for (height, width, _), indices in by_size.items():
            self._warm_up(height, width, imgsz)
            for start in range(0, len(indices), self._config.max_batch):
                part = indices[start : start + self._config.max_batch]
                for index, rows in zip(part, self._forward([images[i] for i in part], imgsz), strict=True):
                    found[index] = rows
        return found

    def _warm_up(self, height: int, width: int, imgsz: int) -> None:
        """Once for each shape of the input and, where frames share forwards, for each number of them."""
        scale = imgsz / max(height, width)
        shape = (round(height * scale), round(width * scale), imgsz)
        if shape in self._warm:
            return
        self._warm.add(shape)
        for count in range(1, self.batch_size + 1):
            self._forward([_grey(height, width)] * count, imgsz)

    def _forward(self, images: list[Image], imgsz: int) -> list[Rows]:
        half = {"quantize": _HALF} if self._quantize == _HALF else {}
        results = self._model.predict(
            images,
            nms=self._nms,
            iou=OVERLAP,
            conf=LEAST_SCORE,
            imgsz=imgsz,
            device=self._device,
            verbose=False,
            save=False,
            predictor=self._predictor,
            **half,
        )
        return [np.asarray(result.boxes.data.cpu().numpy()[:, :6], dtype=np.float32) for result in results]

    def _is_end_to_end(self) -> bool:
        """Whether a checkpoint has a head that needs no suppression; exports say so themselves."""
        layers: Any = getattr(self._model.model, "model", None)
        return layers is None or getattr(layers[-1], "one2one_cv2", None) is not None

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

    def _check_precision(self) -> None:
        """Raises :class:`DetectorError` for int8 from weights that are not; says what else won't come true."""
        model: Any = self._model.predictor.model
        made_with: dict[str, Any] = (getattr(model, "metadata", None) or {}).get("args") or {}
        if self._quantize == _INT8 and not (made_with.get("int8") or made_with.get("quantize") == _INT8):
            raise DetectorError(f"quantize is 8, but {self.weights.name} was not exported with int8")
        if self._quantize == _HALF and not self._on_gpu:
            log.warning("detector: quantize is 16, but %s runs on a CPU, where it makes nothing faster", self.weights)


class Detectors:
    """The networks that the cameras ask for: each loaded once, and warm before its first camera's first frame."""

    def __init__(self, config: DetectorConfig) -> None:
        self._config = config
        self._own = DetectorGroup(config.weights, config.quantize, config.imgsz)
        self._networks: dict[tuple[str, int | None], YoloNetwork] = {}
        self._found: dict[str, Path] = {}

    def find(self) -> None:
        """Looks for the weights of the detector itself. Raises :class:`~ingest.weights.WeightsUnavailable`."""
        self._resolve(self._own.weights)

    def load_own(self) -> None:
        """Loads the network of the cameras without settings of their own; takes seconds.

        Raises :class:`DetectorError`, :class:`~ingest.weights.WeightsUnavailable`.
        """
        self.load(self._own).labels(self._config.classes)

    def load(self, group: DetectorGroup) -> YoloNetwork:
        """Takes seconds for a network that isn't loaded yet. May be called while others are in use.

        Raises :class:`DetectorError`, :class:`~ingest.weights.WeightsUnavailable`.
        """
        key = (group.weights, group.quantize)
        network = self._networks.get(key)
        if network is None:
            weights = self._resolve(group.weights)
            log.info("detector: loading %s", weights)
            network = YoloNetwork(weights, self._config, group.quantize)
            network.warm_up(group.imgsz)
            self._networks[key] = network
        return network

    def _resolve(self, name: str) -> Path:
        """Once for each name: without network it takes seconds, and all cameras are to see by the same weights."""
        if name not in self._found:
            self._found[name] = resolve_weights(name)
        return self._found[name]

    def keep_only(self, groups: Iterable[DetectorGroup]) -> None:
        """Lets go of networks that none of these groups uses; the detector's own stays. Call it when a camera that used
        another one has left the detector's rounds."""
        used = {(group.weights, group.quantize) for group in (self._own, *groups)}
        for key in [key for key in self._networks if key not in used]:
            log.info("detector: no camera uses %s any more", self._networks.pop(key).weights)

    def batch_size(self, group: DetectorGroup) -> int:
        """Most frames of the group in one forward."""
        network = self._networks.get((group.weights, group.quantize))
        return network.batch_size if network is not None else 1

    def detect(self, group: DetectorGroup, images: Sequence[Image]) -> list[Rows]:
        """See :meth:`YoloNetwork.detect`; for one thread at a time.

        Nothing for frames of a group whose network has just been let go: their camera is no longer watched that way.
        """
        network = self._networks.get((group.weights, group.quantize))
        if network is None:
            return [np.zeros((0, 6), np.float32) for _ in images]
        return network.detect(images, group.imgsz)


def _grey(height: int, width: int) -> Image:
    return np.full((height, width, 3), _GREY, dtype=np.uint8)
