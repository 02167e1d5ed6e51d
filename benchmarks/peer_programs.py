"""Servers that set line 17, each with its own client: `python -m benchmarks.peer_programs serve|drive NAME …`.

Each is written as the library's own documentation does it, in its fastest usual form, with a dictionary for hardware.
`serve NAME` prints "ready ADDRESS" and serves until it is terminated. `drive NAME ADDRESS CONNECTIONS` connects, prints
"ready", and then drives every connection in a closed loop for each number of seconds that it reads; it answers with a
line of JSON. Only the standard library is imported here: a peer's interpreter need not have what hearth needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

LINE = 17
levels: dict[int, int] = {}
"""The hardware of every peer."""

Set = Callable[[int], Any]
SetSoon = Callable[[int], Awaitable[Any]]


def ready(address: str) -> None:
    """Say where the server is reached."""
    print(f"ready {address}", flush=True)


def free_port() -> int:
    """A port for a server that cannot say which one it got."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def parted(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


# --- servers --------------------------------------------------------------------------------------------------------


def serve_pyro5() -> None:
    """Pyro5's daemon with its pool of threads."""
    import Pyro5.api

    @Pyro5.api.expose
    class Board:
        def set(self, line: int, value: int) -> dict[str, int]:
            levels[line] = value
            return {"line": line, "value": value}

    with Pyro5.api.Daemon(host="127.0.0.1", port=0) as daemon:
        ready(str(daemon.register(Board(), "board")))
        daemon.requestLoop()


def serve_rpyc() -> None:
    """RPyC's server with a thread for each connection."""
    import rpyc
    from rpyc.utils.server import ThreadedServer

    class Board(rpyc.Service):  # type: ignore[misc,unused-ignore]
        def exposed_set(self, line: int, value: int) -> tuple[int, int]:
            levels[line] = value
            return line, value  # a tuple goes by value; an object would take further round trips

    server = ThreadedServer(Board, hostname="127.0.0.1", port=0)
    ready(f"127.0.0.1:{server.port}")
    server.start()


def serve_pymodbus() -> None:
    """The asyncio server of pymodbus, over TCP."""
    from pymodbus.server import ModbusTcpServer
    from pymodbus.simulator import DataType, SimData, SimDevice

    async def serve() -> None:
        bits = [SimData(0, count=64, values=False, datatype=DataType.BITS)]
        others = [SimData(0, count=16, datatype=DataType.REGISTERS)]
        port = free_port()
        server = ModbusTcpServer(SimDevice(1, (bits, bits, others, others)), address=("127.0.0.1", port))
        await server.serve_forever(background=True)
        ready(f"127.0.0.1:{port}")
        await asyncio.Event().wait()

    asyncio.run(serve())


def serve_caproto() -> None:
    """The asyncio server of caproto, with one EPICS process variable."""
    port = free_port()
    os.environ |= {"EPICS_CA_SERVER_PORT": str(port), "EPICS_CAS_INTF_ADDR_LIST": "127.0.0.1"}
    from caproto.asyncio.server import start_server
    from caproto.server import PVGroup, pvproperty

    class Board(PVGroup):  # type: ignore[misc,unused-ignore]
        line = pvproperty(name="line17", value=0)

        @line.putter
        async def line(self, _instance: Any, value: int) -> int:
            levels[LINE] = value
            return value

    async def started(_library: Any) -> None:
        ready(f"127.0.0.1:{port}")

    asyncio.run(start_server(Board(prefix="").pvdb, interfaces=["127.0.0.1"], startup_hook=started))


def serve_fastapi() -> None:
    """FastAPI under uvicorn with uvloop and httptools."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    app = FastAPI()

    class Level(BaseModel):
        value: int

    async def put(line: int, level: Level) -> dict[str, int]:
        levels[line] = level.value
        return {"line": line, "value": level.value}

    # Their annotations are names of this function, and strings until they are looked up.
    put.__annotations__ = {"line": int, "level": Level, "return": dict[str, int]}
    app.put("/lines/{line}")(put)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ready(f"127.0.0.1:{listening.getsockname()[1]}")
        # A client is idle while the others take their rounds.
        quiet = {"log_level": "warning", "access_log": False, "timeout_keep_alive": 3600}
        config = uvicorn.Config(app, loop="uvloop", http="httptools", **quiet)
        uvicorn.Server(config).run(sockets=[listening])


# --- clients in threads: one connection each --------------------------------------------------------------------------


def pyro5(address: str) -> Set:
    """A Pyro5 proxy, which belongs to the thread that uses it."""
    import Pyro5.api

    proxy = Pyro5.api.Proxy(address)
    owner = threading.get_ident()

    def put(value: int) -> None:
        nonlocal owner
        if owner != threading.get_ident():
            owner = threading.get_ident()
            proxy._pyroClaimOwnership()
        assert proxy.set(LINE, value) == {"line": LINE, "value": value}

    return put


def rpyc(address: str) -> Set:
    """An RPyC connection. A call looks the remote method up first, as in RPyC's tutorial, with a round trip."""
    from rpyc import connect

    host, port = parted(address)
    connection = connect(host, port)

    def put(value: int) -> None:
        assert connection.root.set(LINE, value) == (LINE, value)

    return put


def fastapi(address: str) -> Set:
    """A connection of the standard library's HTTP client that is kept alive; httpx takes five times as long."""
    import http.client

    connection = http.client.HTTPConnection(*parted(address))
    headers = {"Content-Type": "application/json"}

    def put(value: int) -> None:
        connection.request("PUT", f"/lines/{LINE}", json.dumps({"value": value}), headers)
        assert json.loads(connection.getresponse().read()) == {"line": LINE, "value": value}

    return put


def caproto(address: str) -> Set:
    """A context of caproto's threading client, which has a circuit of its own; a put waits for its completion."""
    os.environ |= {
        "EPICS_CA_SERVER_PORT": address.rpartition(":")[2],
        "EPICS_CA_ADDR_LIST": "127.0.0.1",
        "EPICS_CA_AUTO_ADDR_LIST": "NO",
    }
    from caproto.threading.client import Context

    (line,) = Context().get_pvs("line17")
    line.wait_for_connection(timeout=20)

    def put(value: int) -> None:
        line.write(value, wait=True, timeout=20)

    return put


def hearth_sync(address: str) -> Set:
    """The client for threads."""
    import hearth

    session = hearth.sync.connect(address).open_session(client_name="peers")

    def put(value: int) -> None:
        assert session.run("gpio.set", line=LINE, value=value) == {"line": LINE, "value": value}

    return put


def drive_threads(connect: Callable[[str], Set], address: str, count: int) -> None:
    """Drive connections, each from its own thread."""
    puts = [connect(address) for _ in range(count)]

    def loop(put: Set, until: float) -> int:
        number = 0
        while time.perf_counter() < until:
            put(number & 1)
            number += 1
        return number

    with ThreadPoolExecutor(count) as pool:
        for seconds in rounds():
            begun, cpu = time.perf_counter(), time.process_time()
            until = [begun + seconds] * count
            # With one connection no other thread: it would take the interpreter's lock from this one.
            done = list(map(loop, puts, until) if count == 1 else pool.map(loop, puts, until))
            say(done, begun, cpu)


# --- clients in an event loop -----------------------------------------------------------------------------------------


async def pymodbus(address: str) -> SetSoon:
    """The asyncio client of pymodbus, over TCP."""
    from pymodbus.client import AsyncModbusTcpClient

    host, port = parted(address)
    client = AsyncModbusTcpClient(host, port=port)
    assert await client.connect()

    async def put(value: int) -> None:
        assert not (await client.write_coil(LINE, bool(value))).isError()

    return put


async def hearth_aio(address: str) -> SetSoon:
    """The client for asyncio."""
    import hearth

    session = await (await hearth.aio.connect(address)).open_session(client_name="peers")

    async def put(value: int) -> None:
        assert await session.run("gpio.set", line=LINE, value=value) == {"line": LINE, "value": value}

    return put


def drive_asyncio(connect: Callable[[str], Awaitable[SetSoon]], address: str, count: int) -> None:
    """Drive connections from tasks of one asyncio loop."""

    async def loop(put: SetSoon, until: float, done: list[int]) -> None:
        number = 0
        while time.perf_counter() < until:
            await put(number & 1)
            number += 1
        done.append(number)

    async def connected() -> list[SetSoon]:
        return [await connect(address) for _ in range(count)]

    async def turn(puts: list[SetSoon], until: float, done: list[int]) -> None:
        await asyncio.gather(*(loop(put, until, done) for put in puts))

    with asyncio.Runner() as runner:
        puts = runner.run(connected())
        for seconds in rounds():
            begun, cpu, done = time.perf_counter(), time.process_time(), list[int]()
            runner.run(turn(puts, begun + seconds, done))
            say(done, begun, cpu)


def drive_hearth(address: str, count: int) -> None:
    """The client for Trio: connections, each with a session, from tasks of one loop."""
    from contextlib import AsyncExitStack

    import trio

    import hearth

    async def loop(session: hearth.Session, until: float, done: list[int]) -> None:
        number = 0
        while time.perf_counter() < until:
            value = number & 1
            assert await session.run("gpio.set", line=LINE, value=value) == {"line": LINE, "value": value}
            number += 1
        done.append(number)

    async def drive() -> None:
        async with AsyncExitStack() as stack:
            sessions = []
            for _ in range(count):
                client = await stack.enter_async_context(hearth.connect(address))
                sessions.append(await stack.enter_async_context(client.open_session(client_name="peers")))
            coming = rounds()
            while (seconds := await trio.to_thread.run_sync(partial(next, coming, None))) is not None:
                begun, cpu, done = time.perf_counter(), time.process_time(), list[int]()
                async with trio.open_nursery() as nursery:
                    for session in sessions:
                        nursery.start_soon(loop, session, begun + seconds, done)
                say(done, begun, cpu)

    trio.run(drive)


# --- the process ------------------------------------------------------------------------------------------------------


def rounds() -> Any:
    """The lengths of the rounds, as they are asked for on stdin."""
    print("ready", flush=True)
    for line in sys.stdin:
        yield float(line)


def say(done: list[int], begun: float, cpu: float) -> None:
    """Report a round: how often the line was set, in how many seconds, with how much CPU time of the client."""
    figures = {
        "count": sum(done),
        "seconds": time.perf_counter() - begun,
        "cpu": time.process_time() - cpu,
        "least": min(done),
    }
    print(json.dumps(figures), flush=True)


SERVERS: dict[str, Callable[[], None]] = {
    "pyro5": serve_pyro5,
    "rpyc": serve_rpyc,
    "pymodbus": serve_pymodbus,
    "caproto": serve_caproto,
    "fastapi": serve_fastapi,
}
CLIENTS: dict[str, Callable[[str, int], None]] = {
    "pyro5": partial(drive_threads, pyro5),
    "rpyc": partial(drive_threads, rpyc),
    "caproto": partial(drive_threads, caproto),
    "pymodbus": partial(drive_asyncio, pymodbus),
    "fastapi": partial(drive_threads, fastapi),
    "hearth": drive_hearth,
    "hearth-aio": partial(drive_asyncio, hearth_aio),
    "hearth-sync": partial(drive_threads, hearth_sync),
}


def main(argv: list[str]) -> None:
    """Be a server, or drive one."""
    if argv[0] == "serve":
        SERVERS[argv[1]]()
    else:
        CLIENTS[argv[1]](argv[2], int(argv[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
