"""Every file in configs/ can be used as it is."""

from pathlib import Path

import pytest

from pipeline.config.load import ConfigProblem, load_config

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
NEEDED = {"CAM_PASSWORD": "p@ss", "WATCHWORD_API_KEY_HASH": "sha256:" + 64 * "a"}


def test_all_of_them_are_there() -> None:
    names = {path.name for path in FILES}
    assert names >= {"demo.yaml", "one_camera.yaml", "many_cameras.yaml", "edge_gpu.yaml", "cpu.yaml", "docker.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_loads_and_every_camera_is_of_use(path: Path) -> None:
    config = load_config(path, NEEDED)
    assert config.cameras
    assert all(camera.enabled and camera.name for camera in config.cameras)


def test_one_camera_takes_ten_lines() -> None:
    lines = (FOLDER / "one_camera.yaml").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) <= 10


def test_passwords_are_in_none_of_them_but_asked_for() -> None:
    with pytest.raises(ConfigProblem, match="neither CAM_PASSWORD nor CAM_PASSWORD_FILE is set"):
        load_config(FOLDER / "one_camera.yaml", {})


def test_cameras_of_the_large_file_share_what_the_first_one_says() -> None:
    config = load_config(FOLDER / "many_cameras.yaml", NEEDED)
    assert {camera.username for camera in config.cameras} == {"watchword"}
    assert config.cameras[0].source.startswith("rtsp://watchword:p%40ss@")
    assert [camera.fps for camera in config.cameras] == [5, 5, 2, 5]
