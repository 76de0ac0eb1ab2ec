"""Detection, tracking and the choice of the best picture."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pipeline.config.base import Section

ClassName = Annotated[str, StringConstraints(min_length=1, max_length=64, strip_whitespace=True, to_lower=True)]
ClassNames = Annotated[tuple[ClassName, ...], Field(min_length=1)]
Quantize = Literal[8, 16, 32]


class DetectorConfig(Section):
    """YOLO26 through ultralytics."""

    weights: str = Field(
        "yolo26n.pt",
        title="Weights",
        description="A file, an OpenVINO/ONNX/TensorRT export, the name of an official checkpoint to download, or "
        "people: the people detector that comes with Watchword, which also stands in for yolo26n.pt where that can't "
        "be had.",
    )
    device: str = Field("auto", title="Device", description='"auto", "cpu", "cuda:0" or what ultralytics takes.')
    classes: ClassNames = Field(
        ("person",), title="Classes", description="What is looked for: names that the weights know, such as COCO's."
    )
    imgsz: int | None = Field(
        None,
        title="Image size",
        description="Longer side of the detector's input. Unset: 640, and 416 for the people detector that comes with "
        "Watchword, which was trained for that; exports may have one of their own.",
        ge=160,
        le=1920,
    )
    quantize: Quantize | None = Field(
        None,
        title="Precision",
        description="16: half precision on a GPU. 8: asks that the weights are an int8 export. 32, unset: as they are.",
    )
    confidence: float = Field(0.35, title="Confidence", description="Least score of a detection.", gt=0, lt=1)
    max_batch: int = Field(8, title="Largest batch", description="Frames of all cameras in one forward.", ge=1, le=64)
    threads: int = Field(
        1, title="Threads", description="Torch/OpenVINO threads of the detector on a CPU.", ge=1, le=64
    )


class TrackingConfig(Section):
    """One tracker per camera."""

    tracker: Literal["bytetrack", "botsort"] = Field(
        "bytetrack",
        title="Tracker",
        description="bytetrack, or botsort, which makes up for a camera that moves: it looks at each picture.",
    )
    confirm_hits: int = Field(
        3, title="Hits to confirm", description="Detections before a track is an event.", ge=1, le=100
    )
    lost_s: float = Field(
        2.0, title="Lost after", description="Seconds without a detection until a person counts as gone.", gt=0, le=120
    )
    rejoin_s: float = Field(
        3.0,
        title="Rejoin window",
        description="So long after its last detection an overlapping new track continues it; then it ends.",
        ge=0,
        le=120,
    )
    stationary_after_s: float = Field(
        30.0,
        title="Stationary after",
        description="Who has not moved for so many seconds is not described again until they do.",
        gt=0,
        le=86_400,
    )
    stationary_max_s: float = Field(
        1800.0,
        title="Stationary at most",
        description="What does not move for so many seconds is no event any more, though still detected: a false "
        "detection would be in view for ever. When it moves, a new event begins.",
        gt=1,
        le=604_800,
    )
    checkpoint_s: float = Field(
        600.0,
        title="Checkpoint",
        description="Of somebody who stays, a picture may be sent anew each so many seconds; the event goes on.",
        gt=1,
        le=86_400,
    )
    max_duration_s: float = Field(
        43_200.0,
        title="Longest duration",
        description="After so long a new event continues the track.",
        gt=1,
        le=604_800,
    )


class CropConfig(Section):
    """Which picture of a person is sent, and how large."""

    early_after_s: float = Field(
        1.5, title="Early crop after", description="Seconds in view until a first crop is sent.", ge=0
    )
    better_by: float = Field(
        0.15,
        title="Better by",
        description="A later shot replaces the one that was sent only if its quality is so much higher.",
        ge=0,
        le=1,
    )
    refreshes: int = Field(
        1,
        title="Refreshes",
        description="So often a clearly better picture is sent while somebody is in view, counted anew at each "
        "checkpoint (which is one of them).",
        ge=0,
        le=100,
    )
    refresh_after_s: float = Field(
        10.0, title="Refresh after", description="Seconds between two pictures of one person in view.", ge=0
    )
    first_and_last: bool = Field(
        True,
        title="First and last picture",
        description="Sent beside the final one where they show something else, for models that take several.",
    )
    same_bits: int = Field(
        8,
        title="Same picture",
        description="Pictures whose perceptual hashes (64 bits) differ in no more bits count as the same.",
        ge=0,
        le=32,
    )
    padding: float = Field(
        0.15, title="Padding", description="Context around the box, as a share of its sides.", ge=0, le=1
    )
    min_side: int = Field(
        48,
        title="Least side",
        description="In pixels. Boxes smaller in both directions are not cropped; no crop is smaller in any.",
        ge=8,
        le=1024,
    )
    max_pixels: int = Field(640 * 960, title="Pixel cap", description="Larger crops are scaled down.", ge=64 * 64)
    max_aspect: float = Field(4.0, title="Aspect clamp", description="Longer to shorter side at most.", ge=1, le=20)
    jpeg_quality: int = Field(90, title="JPEG quality", description="1 to 100.", ge=1, le=100)
    deadline_s: float = Field(
        120.0, title="Deadline", description="A crop not described after so many seconds is dropped and counted.", gt=0
    )
