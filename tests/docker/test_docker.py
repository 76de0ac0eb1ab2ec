"""What stands in docker/ exists in the code: commands, options, variables, files, the route of the health check."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client.core import Metric
from pydantic import BaseModel, ConfigDict

from api.metrics import queue_families
from pipeline.camera_metrics import camera_families, drop_family
from pipeline.cli.app import cli
from pipeline.config import WatchwordConfig
from pipeline.config.load import load_config
from pipeline.config.problems import kind_at
from pipeline.messages import CameraState, CameraStatus
from pipeline.queue.stats import QueueStats
from pipeline.reasons import Reason

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
PROMETHEUS = DOCKER / "prometheus" / "prometheus.yml"
COMPOSE_FILES = [DOCKER / "compose.yaml", DOCKER / "compose.gpu.yaml"]
# Variables of others, and the package whose source reads them (None: Python or the shell itself).
FOREIGN = {
    "HF_HOME": "huggingface_hub",
    "YOLO_CONFIG_DIR": "ultralytics",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "torch",
    "MPLCONFIGDIR": "matplotlib",
    "PATH": None,
    "PYTHONUNBUFFERED": None,
    "PYTHONDONTWRITEBYTECODE": None,
    "PIP_NO_CACHE_DIR": None,
    "PIP_DISABLE_PIP_VERSION_CHECK": None,
}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Build(Strict):
    """https://github.com/compose-spec/compose-spec/blob/main/build.md, as far as we use it."""

    context: str | None = None
    dockerfile: str | None = None
    target: str | None = None
    args: dict[str, str] = {}


class Healthcheck(Strict):
    test: list[str] | None = None
    interval: str | None = None
    timeout: str | None = None
    retries: int | None = None
    disable: bool = False


class Device(Strict):
    driver: str
    count: int
    capabilities: list[str]


class Service(Strict):
    """https://github.com/compose-spec/compose-spec/blob/main/05-services.md, as far as we use it."""

    image: str | None = None
    build: Build | None = None
    command: list[str] | None = None
    restart: str | None = None
    stop_grace_period: str | None = None
    read_only: bool = False
    tmpfs: list[str] = []
    cap_drop: list[str] = []
    security_opt: list[str] = []
    pids_limit: int | None = None
    mem_limit: str | None = None
    shm_size: str | None = None
    volumes: list[str] = []
    ports: list[str] = []
    profiles: list[str] = []
    environment: dict[str, str] = {}
    depends_on: dict[str, dict[str, str]] | list[str] = []
    healthcheck: Healthcheck | None = None
    deploy: dict[str, dict[str, dict[str, list[Device]]]] | None = None


class Compose(BaseModel):
    """Top level; ``x-`` names are free by the specification."""

    name: str | None = None
    services: dict[str, Service]
    volumes: dict[str, None] = {}


def compose(path: Path) -> Compose:
    tree = yaml.safe_load(path.read_text())
    assert all(key in ("name", "services", "volumes") or key.startswith("x-") for key in tree)
    return Compose.model_validate({key: value for key, value in tree.items() if not key.startswith("x-")})


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (DOCKER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def environment_of_dockerfile() -> dict[str, str]:
    pairs = [pair for name, rest in instructions() if name == "ENV" for pair in rest.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def options(command: str) -> set[str]:
    group: Any = typer.main.get_command(cli)
    return {option for parameter in group.commands[command].params for option in parameter.opts}


def our_commands() -> list[list[str]]:
    (default,) = [json.loads(rest) for name, rest in instructions() if name == "CMD"]
    services = [s for s in compose(DOCKER / "compose.yaml").services.values() if s.image == "watchword:local"]
    return [default, *(service.command or [] for service in services)]


@pytest.mark.parametrize("command", our_commands(), ids=lambda command: command[0])
def test_every_command_and_option_exists(command: list[str]) -> None:
    name, *rest = command
    known = options(name)
    given = [word for word in rest if word.startswith("--")]
    assert set(given) <= known, f"watchword {name} has no {set(given) - known}"


def variables() -> list[tuple[str, str]]:
    found = [("Dockerfile", name) for name in environment_of_dockerfile()]
    for path in COMPOSE_FILES:
        for service in compose(path).services.values():
            if service.image is None or service.image.startswith("watchword"):
                found += [(path.name, name) for name in service.environment]
    return sorted(set(found))


@pytest.mark.parametrize(("file", "name"), variables())
def test_every_variable_is_read_by_somebody(file: str, name: str) -> None:
    if name.startswith("WATCHWORD_") and "__" in name:
        path = tuple(name.removeprefix("WATCHWORD_").lower().split("__"))
        assert kind_at(WatchwordConfig, path) is not None
    elif name.startswith("WATCHWORD_"):
        sources = [file for package in ("api", "ingest", "pipeline") for file in (ROOT / package).rglob("*.py")]
        assert any(f'"{name}"' in file.read_text() for file in sources)
    elif name in FOREIGN:
        package = FOREIGN[name]
        assert package is None or in_source(package, name)
    else:
        assert f"${{{name}" in (ROOT / "configs/docker.yaml").read_text()


def in_source(package: str, name: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed here")
    return any(name in file.read_text(errors="replace") for file in Path(spec.origin).parent.rglob("*.py"))


def test_the_configuration_of_the_image_takes_what_compose_gives_it() -> None:
    service = compose(DOCKER / "compose.yaml").services["serve"]
    environ = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in service.environment.items()}
    config = load_config(ROOT / "configs/docker.yaml", environ)
    assert config.redis.url is not None and config.redis.url.get_secret_value() == "redis://valkey:6379/0"
    assert config.cameras[0].url == "rtsp://mediamtx:8554/demo"
    assert str(config.store.data_dir) == "/data"


def test_written_data_is_under_the_volume_and_the_user_is_not_root() -> None:
    values = environment_of_dockerfile()
    for name in ("HF_HOME", "YOLO_CONFIG_DIR", "TRITON_CACHE_DIR", "WATCHWORD_CACHE", "MPLCONFIGDIR"):
        assert values[name].startswith("/data/")
    steps = instructions()
    assert ("VOLUME", "/data") in steps and ("STOPSIGNAL", "SIGTERM") in steps
    users = [rest for name, rest in steps if name == "USER"]
    assert users[0] == users[-1] == "10001:10001"


def test_what_is_copied_is_there_and_is_all_of_the_packages() -> None:
    copied = [rest.split()[0:-1] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    paths = [path for group in copied for path in group]
    assert all((ROOT / path).exists() for path in paths)
    assert {"api", "ingest", "pipeline", "vlm_engine", "pyproject.toml"} <= set(paths)
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and all(f"!{path}" in ignored for path in paths)


def test_the_health_check_asks_a_route_of_the_api() -> None:
    from api.health import router

    (check,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    path = re.search(r"127\.0\.0\.1:8000(/[\w/]+)", check)
    assert path is not None and path[1] in {getattr(route, "path", "") for route in router.routes}
    assert load_config(ROOT / "configs/docker.yaml", {}).server.port == 8000
    assert "--start-period=" in check


def test_the_services_are_safe_by_default() -> None:
    services = compose(DOCKER / "compose.yaml").services
    assert all(service.mem_limit for service in services.values())
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.ports)
    assert services["serve"].stop_grace_period == "30s"
    valkey = services["valkey"].command or []
    assert valkey[valkey.index("--maxmemory-policy") + 1] == "volatile-ttl"
    assert valkey[valkey.index("--appendonly") + 1] == "yes" and "--maxmemory" in valkey
    for name in ("ingest", "serve"):
        assert services[name].depends_on == {"valkey": {"condition": "service_healthy"}}


def test_named_volumes_and_targets_exist() -> None:
    file = compose(DOCKER / "compose.yaml")
    named = {volume.split(":")[0] for service in file.services.values() for volume in service.volumes}
    assert {name for name in named if not name.startswith(".")} == set(file.volumes)
    stages = {rest.split(" AS ")[1] for name, rest in instructions() if name == "FROM"}
    used = [
        service.build.target for path in COMPOSE_FILES for service in compose(path).services.values() if service.build
    ]
    assert set(used) <= stages
    assert set(compose(COMPOSE_FILES[1]).services) <= set(file.services)


def test_docker_itself_accepts_the_files() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker client here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("this docker client has no compose")
    for files in (COMPOSE_FILES[:1], COMPOSE_FILES):
        arguments = [word for path in files for word in ("-f", str(path))]
        command = ["docker", "compose", *arguments, "--profile", "demo", "--profile", "monitoring", "config", "--quiet"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr


def test_prometheus_collects_each_metric_once_and_where_it_is_served() -> None:
    jobs = {job["job_name"]: job for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]}
    config = load_config(ROOT / "configs/docker.yaml", {})
    targets = {name: job["static_configs"][0]["targets"] for name, job in jobs.items()}
    assert targets == {
        "ingest": [f"ingest:{config.ingest.metrics_port}"],
        "serve": [f"serve:{config.server.port}"],
    }
    assert config.ingest.metrics_host == "0.0.0.0", "Prometheus runs in another container"
    [rule] = jobs["serve"]["metric_relabel_configs"]
    assert (rule["action"], rule["source_labels"]) == ("drop", ["__name__"])
    ingest = {family.name for family in ingest_families()}
    serve = {family.name for family in queue_families(QueueStats((), (), 0), {})}
    assert all(re.fullmatch(rule["regex"], name) for name in ingest)
    assert not any(re.fullmatch(rule["regex"], name) for name in serve)


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    known = {family.name for family in (*ingest_families(), *queue_families(QueueStats((), (), 0), {}))}
    known |= {f"{name}_total" for name in known}
    dashboard = json.loads((DOCKER / "grafana/dashboards/cameras.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for text in asked for name in re.findall(r"watchword_\w+", text)}
    assert names and names <= known
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    [provider] = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/watchword.yml").read_text())["providers"]
    volumes = compose(DOCKER / "compose.yaml").services["grafana"].volumes
    assert any(volume.split(":")[1] == provider["options"]["path"] for volume in volumes)
    assert all((DOCKER / volume.split(":")[0]).exists() for volume in volumes if volume.startswith("."))


def ingest_families() -> list[Metric]:
    status = CameraStatus("a", "a", CameraState.ONLINE, Reason.NONE, 0.0, 0.0)
    return [*camera_families([status], 0.0), drop_family([status])]
