"""Everything that one `serve` process runs, in one event loop: HTTP, engine, and with cameras describer and tracks."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from pipeline.clock import Clock, SystemClock
from pipeline.config import WatchwordConfig
from pipeline.config.file_watch import ConfigFile
from pipeline.models.presets import preset_of
from pipeline.models.ready import make_ready

if TYPE_CHECKING:
    from api.server import ApiServer
    from pipeline.backends import DescriptionBackend
    from pipeline.camera_registry import CameraRegistry
    from pipeline.delivery.deliverer import Deliverer
    from pipeline.describer import Describer
    from pipeline.describer_metrics import DescriberMetrics
    from pipeline.embedder import Embedder
    from pipeline.image_ladder import ImageLadder
    from pipeline.queue.address import RedisAddress
    from pipeline.queue.hub import CameraHub
    from pipeline.store import EventStore
    from pipeline.store.outbox import Outbox
    from pipeline.track_keeper import TrackKeeper
    from vlm_engine import VLMEngine

logger = logging.getLogger(__name__)

ENGINE_LOOK_S = 1.0
POLICY_LOOK_S = 2.0
DEAD_GRACE_S = 3.0
"""So long a process with a dead engine still answers (readiness says why) before it ends, to be started again."""
FINISH_S = 4.0
LAST_NEWS_S = 1.5
ENGINE_END_S = 2.5
"""Times for open answers and crops in work, for the last news of tracks, and for the engine's last step on shutdown: a
supervised process stays under 11 s."""


class EngineDied(RuntimeError):
    """The engine met an error that it can't isolate; only a new process helps."""


@dataclass(slots=True)
class _CameraSide:
    hub: CameraHub
    store: EventStore
    describer: Describer
    describing: asyncio.Task[None]
    keeper: TrackKeeper


class ServeRuntime:
    """The parts of ``watchword serve``, composed. ``start``, ``wait`` and ``stop`` belong to one event loop.

    The API answers ``/health/live`` as soon as :meth:`start` returns; the model loads in a thread meanwhile.

    Args:
        cameras: False leaves out Redis, store, describer and tracks: engine and endpoint alone.
        on_progress: told in words what loading is doing, from another thread.
        file: followed for changes of its cameras, where there is one.
    """

    def __init__(
        self,
        config: WatchwordConfig,
        *,
        cameras: bool = True,
        on_progress: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
        file: ConfigFile | None = None,
    ) -> None:
        self._config = config
        self._file = file
        self._registry: CameraRegistry | None = None
        self._cameras = cameras
        self._on_progress = on_progress
        self._clock = clock or SystemClock()
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None
        self._server: ApiServer | None = None
        self._http: asyncio.Task[None] | None = None
        self._engine: VLMEngine | None = None
        self._model = config.engine.model
        self._ladder: ImageLadder | None = None
        self._outbox: Outbox | None = None
        self._describing: DescriberMetrics | None = None
        self._loader: threading.Thread | None = None
        self._ready: asyncio.Future[None] | None = None
        self.side: _CameraSide | None = None
        self.stuck = False

    @property
    def url(self) -> str:
        """Where the API listens, as http://host:port. Raises RuntimeError before :meth:`start`."""
        if self._server is None:
            raise RuntimeError("serve is not started")
        return self._server.url

    @property
    def engine(self) -> VLMEngine | None:
        """The in-process engine, in any state; None with another backend."""
        return self._engine

    @property
    def loading(self) -> bool:
        """Whether the thread that loads the model is still at it; nothing can interrupt it."""
        return self._loader is not None and self._loader.is_alive()

    async def start(self) -> None:
        """Opens the port and starts everything; the model loads on.

        Raises OSError for the port or the data folder, ConfigError, ValueError, SQLAlchemyError.
        """
        loop = asyncio.get_running_loop()
        self._ended, self._ready = loop.create_future(), loop.create_future()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def ready(self) -> None:
        """Waits until the model is loaded. Raises what the engine's ``start`` raises."""
        if self._ready is None:
            raise RuntimeError("serve is not started")
        await asyncio.shield(self._ready)

    async def wait(self) -> None:
        """Until :meth:`request_stop`. Raises ModelLoadError or ConfigError when the model can't be loaded, EngineDied
        when it broke, and what any part failed with."""
        if self._ended is None:
            raise RuntimeError("serve is not started")
        await asyncio.shield(self._ended)

    def request_stop(self) -> None:
        """Ends :meth:`wait`. From the event loop's thread."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def reload(self) -> None:
        """Reads the configuration file's cameras again. From a signal handler, too."""
        if self._registry is not None:
            self._registry.reload_file()

    async def stop(self) -> None:
        """Lets open answers and crops in work finish for :data:`FINISH_S`, ends the rest, closes all. Idempotent.

        Crops that were not finished stay unacknowledged: the next process takes them up again. Events that are still
        open are interrupted.
        """
        self.request_stop()
        if self._server is not None:
            self._server.stop()
        side = self.side
        if side is not None:
            side.describer.stop()
        for task in self._tasks:
            if side is None or task is not side.describing:
                task.cancel()
        pending = [*self._tasks, *([self._http] if self._http else [])]
        if pending:
            await asyncio.wait(pending, timeout=FINISH_S)
        if side is not None:
            side.describing.cancel()
            await asyncio.wait([side.describing], timeout=LAST_NEWS_S)
            await self._last_news(side)
        await self._end_engine()
        if self._http is not None:
            await asyncio.wait([self._http], timeout=1.0)
        await self._open.aclose()
        if self._ended is not None and self._ended.done():
            self._ended.exception()  # seen: asyncio need not complain about it

    async def _last_news(self, side: _CameraSide) -> None:
        self.side = None
        for what, step in (("stored", side.keeper.catch_up), ("told", side.keeper.interrupt_open)):
            try:
                async with asyncio.timeout(LAST_NEWS_S):
                    await step()
            except TimeoutError:
                logger.warning("the last news of tracks could not be %s in time; the next start does it", what)
            except SQLAlchemyError as error:
                logger.error("the last news of tracks could not be stored: %s", error)

    async def _end_engine(self) -> None:
        """Ends the answers that are still open. A step that takes too long, or a load, is left to the process's end."""
        engine = self._engine
        if engine is None or self.loading or self.stuck:
            return
        ending = threading.Thread(target=engine.shutdown, name="engine-shutdown", daemon=True)
        ending.start()
        deadline = asyncio.get_running_loop().time() + ENGINE_END_S
        while ending.is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.stuck = ending.is_alive()

    # -- parts ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        from api.app import create_app
        from api.server import ApiServer
        from api.services import Services

        config = self._config
        await self._make_engine()
        # The store and the hub come before the server, which shows them, and the server's port names the consumers.
        hub, store = await self._open_camera_parts() if self._cameras else (None, None)
        if hub is not None and store is not None:
            self._registry = await asyncio.to_thread(self._make_registry, hub, store)
        self._ladder, self._describing = self._make_ladder(), self._make_metrics()
        deliverer = self._make_deliverer(hub, store)
        services = Services(
            config,
            self._engine,
            store,
            hub,
            self._model_name(),
            self._ladder,
            cameras=self._registry,
            describing=self._describing,
            embedder=self._make_embedder(store),
            deliverer=deliverer,
        )
        self._server = server = ApiServer(create_app(services), config.server.host, config.server.port)
        self._http = asyncio.create_task(server.serve(), name="http")
        self._http.add_done_callback(self._part_ended)
        if hub is not None and store is not None and self._registry is not None:
            self._start_camera_side(hub, store, self._registry)
        if deliverer is not None:
            self._keep("deliverer", deliverer.run(self._consumer()))
        if self._engine is not None:
            self._load_engine(self._engine)
            self._keep("engine-watch", self._watch_engine(self._engine))
        elif self._ready is not None:
            self._ready.set_result(None)

    async def _make_engine(self) -> None:
        if self._config.engine.backend != "inprocess":
            return
        from pipeline.cli.engine_config import engine_config, engine_model, quiet_transformers
        from vlm_engine import VLMEngine

        quiet_transformers()
        self._model = await asyncio.to_thread(engine_model, self._config.engine)
        self._engine = VLMEngine(engine_config(self._config.engine, self._model), on_progress=self._on_progress)

    def _model_name(self) -> str:
        return self._config.engine.served_model_name or default_model_name(self._model)

    async def _open_camera_parts(self) -> tuple[CameraHub, EventStore]:
        from pipeline.queue.hub import CameraHub
        from pipeline.store import EventStore
        from pipeline.store.outbox import Outbox

        self._outbox = Outbox.of(self._config)
        store = await asyncio.to_thread(EventStore, self._config.store, self._clock, self._outbox)
        self._open.callback(store.close)
        hub = CameraHub(self._redis_address(), self._config.redis, self._clock)
        self._open.push_async_callback(hub.close)
        return hub, store

    def _make_registry(self, hub: CameraHub, store: EventStore) -> CameraRegistry:
        from pipeline.camera_registry import CameraRegistry

        return CameraRegistry(self._config.cameras, store.cameras, hub, self._file)

    def _start_camera_side(self, hub: CameraHub, store: EventStore, registry: CameraRegistry) -> None:
        from pipeline.describer import Describer
        from pipeline.housekeeper import Housekeeper
        from pipeline.prompts import PromptBook
        from pipeline.queue.connect import async_blocking_client, async_client
        from pipeline.queue.crops import CropReader
        from pipeline.track_keeper import TrackKeeper

        config, address = self._config, self._redis_address()
        consumer = self._consumer()
        client, crops, tracks = async_client(address), async_blocking_client(address), async_blocking_client(address)
        for connection in (client, crops, tracks):
            self._open.push_async_callback(connection.aclose)
        describer = Describer(
            CropReader(client, crops, config.redis, consumer, self._clock),
            store,
            hub,
            self._make_backend(),
            config.describer,
            ladder=self._ladder,
            prompts=PromptBook(config.describer, registry.config_of),
            metrics=self._describing,
            clock=self._clock,
        )
        deadline = config.crops.deadline_s
        keeper = TrackKeeper(
            client, tracks, store, hub, config.redis, consumer, crop_deadline_s=deadline, clock=self._clock
        )
        self.side = _CameraSide(hub, store, describer, self._keep("describer", describer.run()), keeper)
        self._keep("cameras", registry.keep())
        self._keep("track-keeper", keeper.run())
        self._keep("eviction-policy", self._look_at_eviction(hub))
        self._keep("housekeeper", Housekeeper(store, config.retention, self._clock).run())

    async def _look_at_eviction(self, hub: CameraHub) -> None:
        """Says once, when Redis is there, that it may throw whole streams away (R63)."""
        from pipeline.queue.health import QueueUnavailable

        while True:
            try:
                policy = await hub.eviction_policy()
            except QueueUnavailable:
                await asyncio.sleep(POLICY_LOOK_S)
                continue
            if policy.startswith("allkeys"):
                logger.error(
                    "maxmemory-policy of Redis is %s: when memory is short it deletes whole streams with the crops "
                    "that wait in them; set volatile-ttl",
                    policy,
                )
            return

    def _make_deliverer(self, hub: CameraHub | None, store: EventStore | None) -> Deliverer | None:
        """Only where there is a target."""
        if hub is None or store is None or self._outbox is None:
            return None
        if not self._config.webhooks and not self._config.mqtt.enabled:
            return None
        from pipeline.delivery.deliverer import Deliverer

        return Deliverer(self._config, store, hub, self._outbox, self._clock)

    def _make_ladder(self) -> ImageLadder | None:
        """Only for cameras, and only where a bound can be told to the engine."""
        from pipeline.image_ladder import ImageLadder

        describer = self._config.describer
        wanted = self._cameras and self._engine is not None and describer.image_ladder
        return ImageLadder(describer, self._clock) if wanted else None

    def _make_embedder(self, store: EventStore | None) -> Embedder | None:
        if store is None or self._config.search.embeddings_url is None:
            return None
        from pipeline.embedder import Embedder

        embedder = Embedder(store, self._config.search)
        self._open.push_async_callback(embedder.close)
        self._keep("embedder", embedder.run())
        return embedder

    def _make_metrics(self) -> DescriberMetrics | None:
        from pipeline.describer_metrics import DescriberMetrics

        return DescriberMetrics() if self._cameras else None

    def _make_backend(self) -> DescriptionBackend:
        from pipeline.backends import InProcessBackend, OpenAIBackend

        section = self._config.engine
        if self._engine is not None:
            return InProcessBackend(self._engine, self._config.describer.processor_options)
        if section.base_url is None:
            raise ValueError("engine.base_url is not set, and engine.backend is openai")
        key = section.api_key.get_secret_value() if section.api_key is not None else None
        backend = OpenAIBackend(section.base_url, key, section.model, self._config.describer.timeout_s)
        self._open.push_async_callback(backend.close)
        return backend

    def _redis_address(self) -> RedisAddress:
        from pipeline.queue.address import RedisAddress

        address = RedisAddress.configured(self._config.redis)
        if address is None:
            raise ValueError("redis.url is not set")
        return address

    def _consumer(self) -> str:
        """Stable over restarts, and no other living process has it: the port is ours."""
        return f"{socket.gethostname()}:{self.url.rpartition(':')[2]}"

    # -- engine --------------------------------------------------------------------------------------------------

    def _load_engine(self, engine: VLMEngine) -> None:
        """In a daemon thread of its own: a process that is told to stop must not wait for a download."""
        loop = asyncio.get_running_loop()

        def load() -> None:
            error: BaseException | None = None
            try:
                make_ready(self._model, lambda text, done: self._on_progress(text))
                engine.start()
            except Exception as failed:  # handed to whoever waits; nothing is swallowed
                error = failed
            try:
                loop.call_soon_threadsafe(self._engine_loaded, error)
            except RuntimeError:
                return  # the loop is closed: stopped meanwhile

        self._loader = threading.Thread(target=load, name="engine-load", daemon=True)
        self._loader.start()

    def _engine_loaded(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        if self._ready is not None and not self._ready.done():
            if error is None:
                self._ready.set_result(None)
            else:
                self._ready.set_exception(error)
                self._ready.exception()  # also told by wait(); nobody need ask twice

    async def _watch_engine(self, engine: VLMEngine) -> None:
        from vlm_engine.engine import EngineState

        while engine.state is not EngineState.DEAD:
            await asyncio.sleep(ENGINE_LOOK_S)
        logger.critical("the engine died: %s", engine.error)
        await asyncio.sleep(DEAD_GRACE_S)
        raise EngineDied(engine.error or "the engine died")

    # -- tasks ---------------------------------------------------------------------------------------------------

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a part; when it fails, :meth:`wait` raises what it failed with."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._part_ended)
        self._tasks.append(task)
        return task

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def default_model_name(model: str) -> str:
    """A folder's name, a preset's hub id, if it has one, anything else as it is."""
    from pathlib import Path

    path, preset = Path(model).expanduser(), preset_of(model)
    if path.is_dir():
        return path.name
    return preset.hub_id or preset.name if preset is not None else model
