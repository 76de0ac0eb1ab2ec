"""Web servers that pictures are fetched from, good and bad ones, on loopback; and names that lead to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

Answer = Callable[[asyncio.StreamWriter, str], Awaitable[None]]


def plain(body: bytes, status: str = "200 OK", **headers: str) -> Answer:
    """An ordinary answer; ``content_type="image/png"`` becomes a header."""

    async def answer(writer: asyncio.StreamWriter, path: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return answer


def redirect(to: str, status: str = "302 Found") -> Answer:
    return plain(b"", status, location=to)


class PictureHost:
    """``with PictureHost({"/a.png": plain(data)}) as host: host.port``; remembers what it was asked.

    Attributes:
        requests: heads of requests, as text.
        closed: how many connections were closed before all was sent.
    """

    def __init__(self, answers: Mapping[str, Answer], host: str = "127.0.0.1") -> None:
        self.answers = dict(answers)
        self.requests: list[str] = []
        self.closed = threading.Semaphore(0)
        self._host = host
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.port = 0

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._answer, self._host, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            path = head.split(" ")[1]
            await self.answers.get(path.partition("?")[0], plain(b"", "404 Not Found"))(writer, path)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.release()
        finally:
            writer.close()

    def __enter__(self) -> PictureHost:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


class Names:
    """A resolver: the next of each name's answers, the last one for ever; what it doesn't know, the system looks up.

    Attributes:
        asked: names in their order.
    """

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self._names = {name.replace("_", "."): list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._names.get(host)
        if answers is None:
            found = await asyncio.get_running_loop().getaddrinfo(host, port)
            return [str(entry[4][0]) for entry in found]
        return answers.pop(0) if len(answers) > 1 else answers[0]
