"""The configuration file: what it may hold, and what somebody reads who wrote it wrongly."""

import json
from pathlib import Path

import pytest

from pipeline.config.load import ConfigProblem, load_config
from pipeline.redaction import redact

HASHES = ["sha256:" + 64 * "a", "sha256:" + 64 * "b"]


def write(folder: Path, text: str) -> Path:
    path = folder / "watchword.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigProblem) as caught:
        load_config(write(folder, text), environ or {})
    return [str(problem) for problem in caught.value.problems]


def test_no_file_and_an_empty_file_mean_the_defaults(tmp_path: Path) -> None:
    assert load_config(None, {}) == load_config(write(tmp_path, "# nothing\n"), {})
    assert load_config(write(tmp_path, "detector:\nserver:\n  port: 1\n"), {}).server.port == 1


def test_everything_wrong_is_said_at_once_with_lines_from_top_to_bottom(tmp_path: Path) -> None:
    text = """\
cameras:
  - id: front
    url: rtsp://cam/1
    transport: tpc
  - id: Front Door
    url: rtps://cam/1
  - id: front
detector:
  confidance: 0.4
  imgsz: 10
  crops_per_camera: 3
describr:
  prompt: x
describer: hello
server:
  port: 1
  port: 2
"""
    assert problems(tmp_path, text) == [
        "line 4: cameras[0].transport is 'tpc'; allowed are 'tcp' or 'udp'; did you mean 'tcp'?",
        "line 5: cameras[1].id is 'Front Door'; "
        "allowed is: Short name in URLs and keys: a-z, 0-9, _ and -, at most 64.",
        "line 6: cameras[1].url is 'rtps://cam/1'; scheme 'rtps' is not supported; "
        "allowed are rtsp, rtsps, http, https, webcam: and file paths",
        "line 7: cameras[2].id: 'front' is the id of cameras[0] already",
        "line 7: cameras[2].url is missing "
        "(rtsp://, rtsps://, http:// or https:// (MJPEG), webcam:0 (this machine's), or a file path.)",
        "line 9: detector.confidance: unknown key; did you mean 'confidence'?",
        "line 10: detector.imgsz is 10; must be at least 160",
        "line 11: detector.crops_per_camera: unknown key; it belongs under 'redis'",
        "line 12: describr: unknown key; did you mean 'describer'?",
        "line 14: describer is 'hello'; "
        "must be a section with keys such as system_prompt, prompt, output, output_schema",
        "line 17: server.port is given twice",
    ]


@pytest.mark.parametrize("name", ["Türklingel", "Back Porch", "Person's Deck", "../x", "a" * 65, "🎥", ""])
def test_a_name_that_is_no_id_is_refused_and_fits_as_name(tmp_path: Path, name: str) -> None:
    """R18: names that break paths and URLs."""
    quoted = name.replace('"', '\\"')
    assert "cameras[0].id" in problems(tmp_path, f'cameras: [{{id: "{quoted}", url: rtsp://h/x}}]')[0]
    config = load_config(write(tmp_path, f'cameras: [{{id: a, name: "{quoted}", url: rtsp://h/x}}]'), {})
    assert config.cameras[0].title == (name or "a")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cameras:\n  - id: a\n   url: x\n", "line 3: not valid YAML"),
        ("a: *nowhere\n", "line 1: not valid YAML"),
        ("- a\n- b\n", "line 1: must be sections"),
        ("hello", "line 1: must be sections"),
        ("x: !!python/object/apply:os.system [ls]\n", "x: unknown key"),
        ("a: &a [*a]\n", "line 1: not valid YAML: too deep or too large"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{y}: &{y} [{','.join(['*' + x] * 10)}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)),
            "not valid YAML: too deep or too large",
        ),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, place: str) -> None:
    assert any(place in problem for problem in problems(tmp_path, text))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="No such file"):
        load_config(tmp_path / "none.yaml", {})
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigProblem, match="UTF-8"):
        load_config(tmp_path / "bin.yaml", {})


def test_references_are_filled_in_from_variables_and_secret_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p@ss#w0rd\n")
    text = """\
cameras:
  - id: ${ID:-front}
    url: rtsp://${HOST}/1
    username: admin
    password: ${CAM_PASSWORD}
describer:
  system_prompt: "literally $${HOST} and $5"
server: {port: "${PORT}"}
"""
    environ = {"HOST": "cam.local", "CAM_PASSWORD_FILE": str(secret), "PORT": "81"}
    config = load_config(write(tmp_path, text), environ)
    assert config.cameras[0].source == "rtsp://admin:p%40ss%23w0rd@cam.local/1"
    assert config.describer.system_prompt == "literally ${HOST} and $5"
    assert config.server.port == 81


def test_a_reference_to_nothing_is_an_error(tmp_path: Path) -> None:
    assert problems(tmp_path, "engine:\n  model: ${NOPE}\n") == [
        "line 2: engine.model: neither NOPE nor NOPE_FILE is set in the environment"
    ]
    (problem,) = problems(tmp_path, "engine: {model: '${X}'}", {"X_FILE": "/nowhere/x"})
    assert problem == "line 1: engine.model: the file that X_FILE names can't be read"


def test_variables_override_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://:pw1234@h:1/0\n")
    environ = {
        "WATCHWORD_SERVER__PORT": "9000",
        "WATCHWORD_CAMERAS__0__URL": "rtsp://other/1",
        "WATCHWORD_CAMERAS__1": '{"id": "b", "url": "rtsp://b/1"}',
        "WATCHWORD_SERVER__API_KEYS": json.dumps([{"hash": HASHES[0]}, {"hash": HASHES[1], "roles": ["viewer"]}]),
        "WATCHWORD_ENGINE__MODEL": "{not json}",
        "WATCHWORD_STORE__DATA_DIR": "/data",
        "WATCHWORD_DESCRIBER__PROCESSOR_OPTIONS": '{"do_image_splitting": false}',
        "WATCHWORD_ENGINE__NUM_THREADS": "",
        "WATCHWORD_REDIS__URL_FILE": str(secret),
        "WATCHWORD_CACHE": "/somewhere",
        "WATCHWORD_LOG_LEVEL": "debug",
    }
    text = "cameras: [{id: a, url: rtsp://a/1}]\nserver: {port: 1, host: 0.0.0.0}\nengine: {num_threads: 3}\n"
    config = load_config(write(tmp_path, text), environ)
    assert (config.server.port, config.server.host) == (9000, "0.0.0.0")
    assert [camera.url for camera in config.cameras] == ["rtsp://other/1", "rtsp://b/1"]
    assert [key.hash.get_secret_value() for key in config.server.api_keys] == HASHES
    assert [key.roles for key in config.server.api_keys] == [("chat",), ("viewer",)]
    assert config.engine.model == "{not json}"
    assert config.engine.num_threads is None
    assert config.store.data_dir == Path("/data")
    assert config.describer.processor_options == {"do_image_splitting": False}
    assert config.redis.url is not None and config.redis.url.get_secret_value() == "redis://:pw1234@h:1/0"


def test_the_plain_variable_wins_over_its_file(tmp_path: Path) -> None:
    environ = {"WATCHWORD_ENGINE__MODEL": "plain", "WATCHWORD_ENGINE__MODEL_FILE": "/nowhere"}
    assert load_config(None, environ).engine.model == "plain"


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("WATCHWORD_SERVR__PORT", "1", "unknown section 'servr'; did you mean 'server'?"),
        ("WATCHWORD_SERVER__PROT", "1", "server.prot: unknown key; did you mean 'port'?"),
        ("WATCHWORD_SERVER__PORT", "many", "server.port: input should be a valid integer"),
        ("WATCHWORD_SERVER__PORT", "70000", "server.port: must be at most 65535"),
        ("WATCHWORD_SERVER__API_KEYS", "x", "must be JSON here"),
        ("WATCHWORD_CAMERAS__1__URL", "rtsp://x", "there is no list or section to put it in"),
        ("WATCHWORD_REDIS__URL_FILE", "/nowhere/x", "the file that it names can't be read"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, value: str, text: str) -> None:
    (problem,) = problems(tmp_path, "", {variable: value})
    assert problem.startswith(f"{variable}: ") and text in problem


def test_no_secret_is_shown_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    text = """\
cameras:
  - {id: a, url: "rtsp://admin:hunter01@h:554/x", transport: no}
  - {id: b, url: "rtmp://admin:hunter/02?#@h/x"}
  - {id: c, url: rtsp://h/x, password: 70312345}
  - {id: d, url: rtsp://h/x, username: "${USER_NAME}", password: {secret: hunter04}}
redis: {url: [hunter05]}
server: {api_keys: [hunter06, {hash: hunter09}], port: "${PORT}"}
engine: {api_key: 5.5, backend: "${PORT}"}
"rtsp://u:hunter08@h": 5
"""
    with pytest.raises(ConfigProblem) as caught:
        load_config(write(tmp_path, text), {"PORT": "hunter07", "USER_NAME": "x"})
    for shown in (str(caught.value), repr(caught.value), repr(caught.value.problems), str(caught.value.__cause__)):
        assert "hunter" not in shown
        assert "70312345" not in shown
    assert len(caught.value.problems) >= 8


def test_a_refused_and_an_accepted_configuration_register_their_secrets(tmp_path: Path) -> None:
    problems(tmp_path, "cameras: [{id: a, url: 'rtsp://u:first-secret@h/x', transport: no}]")
    load_config(write(tmp_path, "cameras: [{id: a, url: rtsp://h/x, username: u, password: second/secret}]"), {})
    load_config(None, {"WATCHWORD_REDIS__URL": "redis://:third-secret@h"})
    line = "first-secret second/secret second%2Fsecret third-secret"
    assert redact(line) == "*** *** *** ***"
