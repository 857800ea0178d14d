"""Attacks on the server's memory: the client sends little or reads nothing, to make the server hold much."""

import time

import wire
from attack import attack

# A message that is announced and never sent: the length of a gRPC frame, and the first bytes.
ANNOUNCED = b"\x00" + (4 << 20).to_bytes(4, "big") + b"\x0a" * 16
STREAMS_PER_CONNECTION = 256


def announce(run, connections):
    """Streams that each announce 4 MiB, without a token. Returns the connections and what was sent."""
    made = []
    for _ in range(connections):
        if not run.on():
            break
        try:
            connection = wire.Http2(run.server.producer)
            made.append(connection)
            for _ in range(STREAMS_PER_CONNECTION):
                stream = connection.open(wire.PRODUCER_PATH)
                connection.write(wire.frame(wire.DATA, 0, stream, ANNOUNCED))
        except OSError:
            # Refused: what was opened stays open.
            pass
    return made, sum(connection.sent for connection in made)


@attack("a", "512 streams announce 4 MiB each, no token; then eight times as many", seconds=10)
def announced(run):
    """A stranger opens 512 gRPC streams on two connections and announces a message of 4 MiB on each, with less than 100 kB
    sent in all; after three seconds, 14 more connections do the same. Nothing may be reserved for what is announced."""
    made, sent = announce(run, 2)
    run.hold(3)
    run.fact("kB sent, 512 streams", sent // 1000)
    run.fact("server's peak, MiB, 512 streams", run.server.peak_mib())
    more, sent = announce(run, 14)
    run.fact("kB sent, 4,096 streams", sent // 1000)
    run.hold()
    for connection in made + more:
        connection.close()


@attack("b", "worker streams, one after another, with Readys that list thousands of commands", seconds=10)
def held_readys(run):
    """A worker's stream holds 300 Readys for a command without tasks, then sends Readys of almost 4 MiB with 4,000
    commands. When the server ends a stream or stops reading it, the next stream does the same: up to 32 streams and
    1.5 GB. What waits on a stream, and for a tenant, must be bounded in bytes."""
    small = wire.ready(wire.field(1, b"never"))
    large = wire.ready(wire.field(1, b"n" * 1040) * 4000)
    made, sent = [], 0
    while run.on() and len(made) < 32 and sent < 1_500_000_000:
        try:
            connection = wire.Http2(run.server.worker)
            made.append(connection)
            stream = connection.open(wire.WORKER_PATH)
        except OSError:
            # Refused: the streams there are stay.
            time.sleep(0.1)
            continue
        going = connection.send(stream, wire.hello("a") + small * 300)
        while going and run.on() and sent < 1_500_000_000:
            going = connection.send(stream, large, patience=max(0.1, min(1, run.left())))
            sent += len(large) if going else 0
    run.fact("worker streams", len(made))
    run.fact("MB of Readys accepted", sent // 1_000_000)
    run.hold()
    for connection in made:
        connection.close()


def large_tasks(run):
    client = wire.Client(run.server, "a")
    body = b'{"command":"large","payload":"' + b"x" * 1_040_000 + b'"}'
    for _ in range(250):
        client.must("POST", "/tasks", body)
    client.close()


@attack("c", "24 lists of 250 tasks of 1 MB that are never read", prepare=large_tasks)
def unread_lists(run):
    """24 connections ask for `GET /tasks?limit=1000`, where 250 tasks have 1 MB each, and read nothing. A page must be
    bounded in bytes, and what waits to be read must count against the tenant."""
    sockets = []
    asked = 0
    while run.on() and asked < 24:
        asked += 1
        try:
            connection = wire.connect(run.server.http, receive_buffer=4096)
            sockets.append(connection)
            connection.sendall(wire.request(run.server, "a", "GET", "/tasks?limit=1000"))
        except OSError:
            pass
        time.sleep(0.02)
    run.hold()
    for connection in sockets:
        connection.close()
