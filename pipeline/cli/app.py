"""Commands and options. Light on purpose: ``--help`` must be instant, so each command imports what it needs itself."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.groups.cameras import cameras_cli
from pipeline.cli.groups.events import events_cli
from pipeline.cli.groups.keys import keys_cli
from pipeline.cli.groups.models import models_cli
from pipeline.cli.groups.queue import queue_cli
from pipeline.cli.options import ConfigFile, ModelOption, OptionalConfigFile

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
for name, group in (
    ("bench", bench_cli),
    ("cameras", cameras_cli),
    ("events", events_cli),
    ("keys", keys_cli),
    ("models", models_cli),
    ("queue", queue_cli),
):
    cli.add_typer(group, name=name)


def run() -> None:
    """Parses the command line, runs the command, exits: 0 done, 1 failed, 2 not usable as asked, with the reason."""
    from pipeline.cli.errors import fail, readable_reason
    from pipeline.cli.stacks import tell_stacks_on_signal

    tell_stacks_on_signal()
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
