"""Commands and options. Light on purpose: ``--help`` must be instant, so each command imports what it needs itself."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

EPILOG = (
    "Every value of the configuration can be overridden by an environment variable: WATCHWORD_SERVER__PORT=9000, "
    "WATCHWORD_REDIS__URL_FILE=/run/secrets/redis_url (a file that holds the value). Models that have to be made or "
    "downloaded go to $WATCHWORD_CACHE (default ~/.cache/watchword) and to Hugging Face's own cache."
)
cli = typer.Typer(
    name="watchword",
    help="Puts cameras into words: YOLO26 finds people in RTSP streams, a vision-language model describes each of "
    "them, and the same model answers chats over an OpenAI-compatible endpoint.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, passwords among them
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

bench_cli = typer.Typer(no_args_is_help=True, help="Measure: do chats stutter while others use the model?")
cli.add_typer(bench_cli, name="bench")
models_cli = typer.Typer(no_args_is_help=True, help="Models by a short name: what they need, what is here, fetch one.")
cli.add_typer(models_cli, name="models")

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="The YAML file (see configs/ for ready ones).", show_default=False)
]
OptionalConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The YAML file; without it, defaults and the environment.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="A local folder, a Hugging Face hub id or a preset.", show_default=False, metavar="NAME"
    ),
]


def run() -> None:
    """Parses the command line, runs the command, exits: 0 done, 1 failed, 2 not usable as asked, with the reason."""
    from pipeline.cli.errors import fail, readable_reason

    try:
        cli(standalone_mode=True)
    except Exception as error:  # the outermost layer: whatever has a readable reason is said without a traceback
        reason = readable_reason(error)
        if reason is None:
            raise
        fail(reason)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"watchword {version('watchword')}")
        raise typer.Exit


@cli.callback()
def common(
    log_level: Annotated[
        str, typer.Option(envvar="WATCHWORD_LOG_LEVEL", help="debug, info, warning or error.", metavar="LEVEL")
    ] = "info",
    log_json: Annotated[
        bool, typer.Option("--log-json", envvar="WATCHWORD_LOG_JSON", help="Log one JSON object a line.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sets up logging and threads for every command."""
    from pipeline.cli.threads import wait_briefly
    from pipeline.logs import setup_logging

    if log_level.lower() not in ("debug", "info", "warning", "error", "critical"):
        raise typer.BadParameter(f"{log_level!r} is none of debug, info, warning, error", param_hint="--log-level")
    setup_logging(log_level, json=log_json)
    wait_briefly()
    os.environ |= {"WATCHWORD_LOG_LEVEL": log_level, "WATCHWORD_LOG_JSON": "1" if log_json else "0"}  # for the parts


@cli.command()
def up(config: ConfigFile) -> None:
    """Run everything: ingest and serve as two processes, and an embedded Valkey when the configuration names no Redis.

    A part that dies is started again alone. Ctrl-C or SIGTERM ends all within 20 seconds; a second one at once.
    """
    from pipeline.cli.up import run_up

    sys.exit(run_up(config))


@cli.command()
def demo(
    port: Annotated[
        int, typer.Option(help="Of the page and the API; when taken, the next free one.", min=0, max=65535)
    ] = 8000,
    video: Annotated[
        Path | None,
        typer.Option(help="A video file for the demo camera.", exists=True, dir_okay=False, show_default=False),
    ] = None,
    model: ModelOption = None,
    weights: Annotated[
        str | None,
        typer.Option(help="YOLO26 weights: a file, a folder or an official name.", show_default=False, metavar="FILE"),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Keep events and crops here; default: a folder that is removed.", show_default=False),
    ] = None,
) -> None:
    """See it work: a demo camera, detection, descriptions, page and API, in one command.

    Needs nothing beforehand. Prints the page's address and the OpenAI base URL, which weights it uses and what they
    are worth, then line by line what it sees. Ctrl-C ends all of it.
    """
    from pipeline.cli.demo import run_demo

    sys.exit(run_demo(port=port, video=video, model=model, weights=weights, data_dir=data_dir))


@cli.command()
def ingest(config: ConfigFile) -> None:
    """Run only the camera side: decode, detect, track, publish crops to Redis.

    Several can share the cameras of one Redis. Ctrl-C or SIGTERM ends it; open tracks are reported as interrupted.
    """
    from pipeline.cli.ingest import run_ingest

    sys.exit(run_ingest(config))


@cli.command()
def serve(
    config: OptionalConfigFile = None,
    model: ModelOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", min=0, max=65535, show_default="8000")] = None,
    no_cameras: Annotated[
        bool, typer.Option("--no-cameras", help="Engine and OpenAI endpoint alone; needs no Redis.")
    ] = False,
) -> None:
    """Run only the serving side: the engine, the OpenAI endpoint, and with cameras the describer and the page.

    /health/live answers at once, /health/ready once the model is loaded. Ctrl-C or SIGTERM ends it: open answers may
    finish, crops in work go back to the queue.
    """
    from pipeline.cli.serve import run_serve

    sys.exit(run_serve(config, model=model, host=host, port=port, cameras=not no_cameras))


@cli.command()
def describe(
    images: Annotated[
        list[Path], typer.Argument(help="Pictures: JPEG, PNG, WebP.", metavar="IMAGE...", show_default=False)
    ],
    model: ModelOption = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to ask about each picture.", show_default="the describer's prompt")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1, max=4096)] = 96,
    config: OptionalConfigFile = None,
) -> None:
    """Put pictures into words, once, without cameras or a server. The words stream to stdout."""
    from pipeline.cli.describe import run_describe

    sys.exit(run_describe(images, model=model, prompt=prompt, max_tokens=max_tokens, config_path=config))


@cli.command()
def check(
    config: OptionalConfigFile = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds for each camera and for Redis.", min=0.5, max=300, metavar="SECONDS")
    ] = 10.0,
) -> None:
    """Check that everything can work: configuration, cameras, weights, Redis, model, data folder, limits.

    Opens each camera and waits for its first picture. Exit code 0: all well (warnings allowed); 2: something can't
    work, with the reason.
    """
    from pipeline.cli.check import run_check

    sys.exit(run_check(config, timeout=timeout))


@cli.command()
def trace(
    out: Annotated[
        Path, typer.Argument(help="Picture (.svg, .png, .pdf) or data (.json) to write.", metavar="FILE")
    ] = Path("steps.svg"),
    url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="WATCHWORD_API_KEY", help="When the server asks for one.", show_default=False)
    ] = None,
) -> None:
    """Draw the engine's last 1,000 steps: new tokens by kind, milliseconds measured and predicted, over time."""
    from pipeline.cli.trace import run_trace

    sys.exit(run_trace(url, api_key, out))


@bench_cli.command("stall")
def bench_stall(
    base_url: Annotated[
        str, typer.Option(help="Any OpenAI endpoint: ours, vLLM's, llama.cpp's.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[
        str | None, typer.Option(help="Its name for the model; default: the first it lists.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="WATCHWORD_API_KEY", help="When the server asks for one.", show_default=False)
    ] = None,
    load: Annotated[
        str, typer.Option(help="cameras: pictures; texts: long prompts again and again; one-text: a single one.")
    ] = "cameras",
    rate: Annotated[float, typer.Option(help="Pictures a second.", min=0.001, max=1000)] = 0.1,
    one_tile: Annotated[
        bool, typer.Option("--one-tile", help="Pictures are not to be split into tiles (do_image_splitting: false).")
    ] = False,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Of a text.", min=16, max=1_000_000, show_default="2000, one-text: 6000"),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two texts.", min=0.01, max=3600)] = 10.0,
    streams: Annotated[int, typer.Option(help="Chats that go on all the time.", min=1, max=1000)] = 4,
    chat_tokens: Annotated[int, typer.Option(help="Tokens of each chat answer.", min=2, max=100_000)] = 256,
    seconds: Annotated[float, typer.Option(help="Length of each of the two phases.", min=0.5, max=3600)] = 40.0,
    drain: Annotated[
        float, typer.Option(help="Seconds the load's prompts may take after the phase.", min=0, max=3600)
    ] = 60.0,
    target_ms: Annotated[
        float | None,
        typer.Option(help="The server's target_itl_ms; steps are counted under it.", min=0.1, show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed asks two servers the same.", min=0, max=1_000_000)] = 0,
    out: Annotated[Path, typer.Option(help="JSON to write; the picture goes beside it (.png).", metavar="FILE")] = Path(
        "stall.json"
    ),
) -> None:
    """Measure the gaps between the tokens of running chats, alone and beside a load, on a running server.

    Writes JSON and a picture. A server of ours also tells its steps: predicted and measured time, and the encoder's.
    """
    from pipeline.cli.bench import LoadOptions, run_stall

    options = LoadOptions(load, rate, one_tile, prompt_tokens, every)
    measured = {"streams": streams, "chat_tokens": chat_tokens, "seconds": seconds, "drain_s": drain}
    sys.exit(run_stall(base_url, model, api_key, options, {**measured, "target_ms": target_ms, "seed": seed}, out))


@cli.command()
def tune(
    config: OptionalConfigFile = None,
    model: ModelOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few points and short phases: a first look.")] = False,
    budgets: Annotated[
        str | None,
        typer.Option(help="max_num_batched_tokens to try.", show_default="128,256,...,8192", metavar="N,N,..."),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="target_itl_ms to try, as multiples of a step that only decodes.",
            show_default="1.5,2,3,4,8",
            metavar="X,X,...",
        ),
    ] = None,
    streams: Annotated[int, typer.Option(help="Chats that go on all the time.", min=1, max=1000)] = 4,
    seconds: Annotated[
        float | None, typer.Option(help="Length of each point's phase.", min=0.5, max=3600, show_default="20")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Of the long prompts beside the chats.", min=16, show_default="2048")
    ] = None,
    limit_ms: Annotated[
        float | None,
        typer.Option(help="Largest p99 gap you accept.", min=0.1, show_default="twice that of chats alone"),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Picture to write (.png, .svg, .pdf); the numbers go beside it.", metavar="FILE"),
    ] = Path("tune.png"),
) -> None:
    """Find good values of max_num_batched_tokens and target_itl_ms for a model on this machine.

    Loads the model with each value, measures chats beside long prompts, draws all points, and recommends one in a line.
    """
    from pipeline.cli.tune import TuneOptions, run_tune

    options = TuneOptions(quick, budgets, targets, streams, seconds, prompt_tokens, limit_ms)
    sys.exit(run_tune(config, model, options, out))


events_cli = typer.Typer(help="Look after stored events: delete what is too old or too much.", no_args_is_help=True)
cli.add_typer(events_cli, name="events")


@events_cli.callback()
def events_group() -> None:
    """Look after stored events: delete what is too old or too much."""


@events_cli.command("prune")
def events_prune(
    config: OptionalConfigFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and change nothing but the schema's version.")
    ] = False,
    days: Annotated[
        float | None,
        typer.Option(help="In place of retention.days, for this once.", min=0.0, show_default=False),
    ] = None,
    max_gib: Annotated[
        float | None,
        typer.Option(help="In place of retention.max_gib, for this once.", min=0.0, show_default=False),
    ] = None,
) -> None:
    """Delete events that the retention says are too old or too much, and pictures that no event names.

    `serve` does the same every few minutes; both may run at once. What is active or being described stays.
    """
    from pipeline.cli.events import run_prune

    sys.exit(run_prune(config, dry_run=dry_run, days=days, max_gib=max_gib))


queue_cli = typer.Typer(help="Look at the queue of crops between ingest and serve.")
cli.add_typer(queue_cli, name="queue")
dead_cli = typer.Typer(no_args_is_help=True, help="Crops that were put aside after failing too often.")
queue_cli.add_typer(dead_cli, name="dead")

JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
LetterIds = Annotated[list[str] | None, typer.Argument(help="As `list` shows them.", metavar="ID", show_default=False)]
EveryLetter = Annotated[bool, typer.Option("--all", help="All that are kept.")]


@queue_cli.callback(invoke_without_command=True)
def queue(
    context: typer.Context,
    config: OptionalConfigFile = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again each second, until Ctrl-C.")] = False,
) -> None:
    """How many crops wait and for how long, by camera; who describes; what was dropped and why.

    Asks Redis itself, so it works whether serve runs or not.
    """
    if context.invoked_subcommand is None:
        from pipeline.cli.queue import run_queue

        sys.exit(run_queue(config, as_json=as_json, watch=watch))


@dead_cli.command("list")
def dead_list(
    config: OptionalConfigFile = None,
    limit: Annotated[int, typer.Option(help="Newest first.", min=1, max=10_000)] = 50,
    as_json: JsonOption = False,
) -> None:
    """Which crops were put aside, and why."""
    from pipeline.cli.queue import list_dead

    sys.exit(list_dead(config, limit=limit, as_json=as_json))


@dead_cli.command("show")
def dead_show(
    letter: Annotated[str, typer.Argument(help="As `list` shows it.", metavar="ID")],
    config: OptionalConfigFile = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write its picture to this file.", metavar="FILE.jpg", show_default=False)
    ] = None,
) -> None:
    """All that is known of one, and its picture."""
    from pipeline.cli.queue import show_dead

    sys.exit(show_dead(config, letter, picture))


@dead_cli.command("replay")
def dead_replay(letters: LetterIds = None, config: OptionalConfigFile = None, every: EveryLetter = False) -> None:
    """Queue them once more, as new crops: with the model and the words that serve has now."""
    from pipeline.cli.queue import replay_dead

    sys.exit(replay_dead(config, letters or [], every=every))


@dead_cli.command("drop")
def dead_drop(letters: LetterIds = None, config: OptionalConfigFile = None, every: EveryLetter = False) -> None:
    """Throw them away. Their events keep saying that they failed."""
    from pipeline.cli.queue import drop_dead

    sys.exit(drop_dead(config, letters or [], every=every))


cameras_cli = typer.Typer(help="See the cameras of a running server, or find new ones.", no_args_is_help=True)
cli.add_typer(cameras_cli, name="cameras")


@cameras_cli.command("list")
def cameras_list(
    url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="WATCHWORD_API_KEY", help="When the server asks for one.", show_default=False)
    ] = None,
) -> None:
    """List the cameras of a running server: state, frames a second, where their settings come from."""
    from pipeline.cli.cameras import run_list

    sys.exit(run_list(url, api_key))


@cameras_cli.command("discover")
def cameras_discover(
    timeout: Annotated[float, typer.Option(help="Seconds to wait for answers.", min=1, max=60)] = 4.0,
    interface: Annotated[
        str | None,
        typer.Option(
            help="This machine's address in the network to search.",
            show_default="the default route's",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    """Find cameras in the local network by ONVIF's WS-Discovery; needs watchword\\[onvif].

    Asks the devices that answer for their names, without a password.
    """
    from pipeline.cli.cameras import run_discover

    sys.exit(run_discover(timeout, interface))


keys = typer.Typer(help="Make API keys and their hashes for server.api_keys; keys themselves are stored nowhere.")
cli.add_typer(keys, name="keys", no_args_is_help=True)


class KeyRole(StrEnum):
    """What a key may do; docs/api.md has the table."""

    chat = "chat"
    viewer = "viewer"
    operator = "operator"
    admin = "admin"


@keys.command("new")
def keys_new(
    name: Annotated[str, typer.Option(help="Whose key it is, for logs.", show_default=False)] = "",
    role: Annotated[list[KeyRole] | None, typer.Option(help="May be given several times.", show_default="chat")] = None,
) -> None:
    """Make a random key: it is shown once (on stderr), the lines for the configuration go to stdout."""
    from pipeline.cli.keys import new_key

    sys.exit(new_key(name, [str(given) for given in role or [KeyRole.chat]]))


@keys.command("hash")
def keys_hash() -> None:
    """Read a key from stdin and print its hash; at least 32 random characters."""
    from pipeline.cli.keys import hash_key

    sys.exit(hash_key())


@models_cli.command("list")
def models_list() -> None:
    """All presets: size, memory, licence, what each is good for, and whether it is here. Asks nobody."""
    from pipeline.cli.models import run_list

    sys.exit(run_list())


ModelName = Annotated[str, typer.Argument(help="A preset, a hub id or a folder.", show_default=False, metavar="NAME")]


@models_cli.command("info")
def models_info(name: ModelName) -> None:
    """What one model needs and what of it is here. Asks nobody."""
    from pipeline.cli.models import run_info

    sys.exit(run_info(name))


@models_cli.command("install")
def models_install(
    name: ModelName,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.", show_default=False)] = None,
) -> None:
    """Fetch a model from the Hugging Face hub into its cache, as far as its files aren't here."""
    from pipeline.cli.models import run_install

    sys.exit(run_install(name, revision))


@cli.command("demo-camera")
def demo_camera(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="RTSP port; 0 takes a free one.", min=0, max=65535)] = 8554,
    video: Annotated[
        Path | None,
        typer.Option(help="A video file; default: a made clip with people.", exists=True, dir_okay=False),
    ] = None,
    fps: Annotated[float, typer.Option(help="Pictures a second; below 1 too.", min=0.05, max=60)] = 10,
    gop: Annotated[
        int | None, typer.Option(help="Pictures from keyframe to keyframe; default: one second's.", min=1)
    ] = None,
    transport: Annotated[
        list[str] | None, typer.Option(help="tcp or udp, may be given twice; others are refused (461). Default: both.")
    ] = None,
    username: Annotated[
        str | None,
        typer.Option(help="Ask for this user name; the password comes from WATCHWORD_DEMO_CAMERA_PASSWORD."),
    ] = None,
    auth: Annotated[str, typer.Option(help="How the password is asked for: basic or digest.")] = "digest",
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): the camera speaks rtsps.", exists=True, dir_okay=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its key (PEM), if in a file of its own.", exists=True, dir_okay=False)
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="What goes wrong, and when: NAME[=VALUE][@START[+SECONDS]]; may be given many times. stall, freeze, "
            "close, hang=DESCRIBE, status=SETUP:461, corrupt=0.4, skip=0.1, loss=0.05, jump=3600, late-keyframe=5, "
            "max-viewers=2, size=640x368, format=yuv444p.",
            metavar="FAULT",
        ),
    ] = None,
) -> None:
    """Run only the demo camera: an RTSP server (H.264, RTP over TCP or UDP) at rtsp://HOST:PORT/demo."""
    from pipeline.cli.demo_camera import DemoCameraOptions, run_demo_camera

    options = DemoCameraOptions(
        host=host,
        port=port,
        video=video,
        fps=fps,
        gop=gop,
        transports=tuple(transport or ()),
        username=username,
        scheme=auth,
        tls_cert=tls_cert,
        tls_key=tls_key,
        faults=tuple(fault or ()),
    )
    sys.exit(run_demo_camera(options))


def command_names() -> list[str]:
    """Names of all commands, as typed."""
    group: Any = typer.main.get_command(cli)
    return sorted(group.commands)
