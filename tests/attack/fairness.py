"""Attacks in which one tenant takes time or slots that others need."""

import json
import threading
import time

import wire
from attack import attack


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def enqueue_many(client, command, count):
    task = '{"command":"%s","payload":{}}' % command
    for start in range(0, count, 1000):
        tasks = ",".join([task] * min(1000, count - start))
        client.must("POST", "/tasks/batch", '{"tasks":[%s]}' % tasks)


@attack("0", "control: A does honest work")
def honest(run):
    """Four connections of A enqueue, claim and complete as fast as they are answered. This shows what sharing the machine
    costs; compare the attacks with it."""
    cycles = [0]

    def work(_):
        client = wire.Client(run.server, "a")
        try:
            while run.on():
                client.ask("POST", "/tasks", b'{"command":"a-work","payload":{"n":1}}')
                status, task = client.ask("POST", "/tasks/claim", b'{"commands":["a-work"]}')
                if status == 200:
                    path = f"/tasks/{json.loads(task)['id']}/result"
                    client.ask("POST", path, b'{"status":"COMPLETED","result":{}}')
                    cycles[0] += 1
        except OSError:
            pass

    in_threads(4, work)
    run.fact("A's cycles", cycles[0])


def finished_tasks(run):
    """Tasks in 100 queues, created before a moment and finished after it: a cleanup visits all of them and removes none."""
    client = wire.Client(run.server, "a")
    commands = [f"old-{at}" for at in range(100)]
    for command in commands:
        enqueue_many(client, command, 2000)
    time.sleep(1.1)
    run.kept["before"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for command in commands:
        client.all_of(f"/admin/queues/{command}/purge", {})
    client.close()


@attack("d", "repeated cleanups over 100 queues", prepare=finished_tasks)
def cleanups(run):
    """Two connections repeat a cleanup that visits 200,000 finished tasks of 100 queues and removes none, and follow the
    cursor if there is one. A call must be bounded in rows and time, whatever the number of queues."""
    longest = [0.0]
    calls = [0]

    def work(_):
        client = wire.Client(run.server, "a")
        try:
            first = body = {"before": run.kept["before"], "limit": 1000}
            while run.on():
                start = time.monotonic()
                status, answer = client.ask("POST", "/admin/tasks/cleanup", body)
                longest[0] = max(longest[0], time.monotonic() - start)
                calls[0] += 1
                cursor = json.loads(answer).get("nextCursor") if status == 200 else None
                body = {**first, "cursor": cursor} if cursor else first
        except OSError:
            pass

    in_threads(2, work)
    run.fact("cleanup calls", calls[0])
    run.fact("longest call, ms", round(longest[0] * 1000))


def many_tasks(run):
    client = wire.Client(run.server, "a")
    for at in range(10):
        enqueue_many(client, f"many-{at}", 20_000)
    client.close()


@attack("e", "filtered lists of 200,000 tasks that match none", prepare=many_tasks)
def filters(run):
    """Eight connections list with filters that match none of 200,000 tasks and follow the cursors. Lists must not block
    the shard or the threads that answer others."""
    pages = [0]

    def work(at):
        client = wire.Client(run.server, "a")
        filters = ["error~nothing", "worker=nobody", "worker=nobody%20error~nothing"]
        path = f"/tasks?limit=1000&filter={filters[at % 3]}"
        try:
            cursor = ""
            while run.on():
                status, body = client.ask("GET", path + cursor)
                pages[0] += 1
                following = json.loads(body).get("nextCursor") if status == 200 else None
                cursor = f"&cursor={following}" if following else ""
                if status == 429 or status == 503:
                    time.sleep(0.2)
        except OSError:
            pass

    in_threads(8, work)
    run.fact("list pages", pages[0])


def many_transitions(run):
    client = wire.Client(run.server, "a")
    enqueue_many(client, "noisy", 70_000)
    client.close()


@attack("f", "1,000 event streams from the oldest position", prepare=many_transitions)
def catch_up(run):
    """1,000 connections open `/events` with a Last-Event-ID older than all kept events, and read nothing. After two seconds
    they are closed and opened again. Catching up must not delay commits, nor copy the kept events for each reader."""
    head = wire.request(run.server, "a", "GET", "/events", "Last-Event-ID: 0\r\n")
    opened = 0
    while run.on():
        sockets = []
        for _ in range(1000):
            if not run.on():
                break
            try:
                connection = wire.connect(run.server.http, receive_buffer=4096)
                sockets.append(connection)
                connection.sendall(head)
                opened += 1
            except OSError:
                pass
        run.hold(2)
        for connection in sockets:
            connection.close()
    run.fact("event streams opened", opened)


def first_line(connection, timeout):
    """The status of an answer whose body may never end."""
    connection.settimeout(timeout)
    data = b""
    while b"\r\n" not in data:
        part = connection.recv(4096)
        if not part:
            raise OSError("closed")
        data += part
    return int(data[9:12])


def attempt(work):
    """What it returned, or why it failed; and the seconds it took."""
    start = time.monotonic()
    try:
        seen = work()
    except OSError as error:
        seen = repr(error)
    return seen, time.monotonic() - start


def said(seen, took):
    return f"{seen} after {took * 1000:.0f} ms"


@attack("j1", "A opens 1,100 event streams")
def readers(run):
    """A opens 1,100 event streams and keeps them. B must still get one."""
    head = wire.request(run.server, "a", "GET", "/events")
    sockets = []
    for _ in range(1100):
        if not run.on():
            break
        try:
            connection = wire.connect(run.server.http)
            sockets.append(connection)
            connection.sendall(head)
        except OSError:
            pass
    run.hold(2)

    def listen():
        connection = wire.connect(run.server.http)
        connection.sendall(wire.request(run.server, "b", "GET", "/events"))
        try:
            return first_line(connection, 5)
        finally:
            connection.close()

    seen, took = attempt(listen)
    run.check("B can open an event stream", seen == 200, said(seen, took))
    run.hold(2)
    for connection in sockets:
        connection.close()


@attack("j2", "A waits with 100,000 claims", seconds=12)
def parked_claims(run):
    """A opens 420 worker streams with 256 Readys each for a command without tasks. A claim of B must still be
    able to wait, and get the next task."""
    credits = wire.ready(wire.field(1, b"never")) * 256
    made = []
    try:
        for _ in range(2):
            connection = wire.Http2(run.server.worker)
            made.append(connection)
            for _ in range(210):
                stream = connection.open(wire.WORKER_PATH)
                connection.send(stream, wire.hello("a") + credits, patience=1)
    except OSError:
        pass
    run.hold(3)
    if not run.server.alive():
        return
    found = {}

    def wait():
        client = wire.Client(run.server, "b")
        found["claim"] = attempt(lambda: client.ask("POST", "/tasks/claim", {"commands": ["b-wait"], "waitSeconds": 4}))

    claim = threading.Thread(target=wait)
    claim.start()
    time.sleep(1)
    start = time.monotonic()
    attempt(lambda: wire.Client(run.server, "b").ask("POST", "/tasks", {"command": "b-wait", "payload": {}}))
    claim.join()
    seen, _ = found["claim"]
    status = seen[0] if isinstance(seen, tuple) else seen
    after = time.monotonic() - start
    run.check("B's waiting claim gets a task", status == 200, said(status, after))
    run.hold(1)
    for connection in made:
        connection.close()


@attack("j3", "A starts 16 request bodies of 16 MiB and does not finish them", seconds=12)
def large_bodies(run):
    """A begins 16 batches of 16 MiB, sends a little over 1 MiB of each, and then a byte a second. B's batch of 1.5 MB
    must still be accepted."""
    sockets = []
    head = wire.request(run.server, "a", "POST", "/tasks/batch", f"Content-Length: {16 << 20}\r\n")
    for _ in range(16):
        try:
            connection = wire.connect(run.server.http)
            sockets.append(connection)
            connection.sendall(head + b" " * ((1 << 20) + 1000))
        except OSError:
            pass

    def drip():
        while run.on():
            for connection in sockets:
                try:
                    connection.sendall(b" ")
                except OSError:
                    pass
            time.sleep(1)

    threading.Thread(target=drip, daemon=True).start()
    run.hold(1)
    task = '{"command":"b-large","payload":"%s"}' % ("x" * 500_000)
    client = wire.Client(run.server, "b", timeout=8)
    seen, took = attempt(lambda: client.ask("POST", "/tasks/batch", '{"tasks":[%s]}' % ",".join([task] * 3))[0])
    run.check("B's batch of 1.5 MB is accepted", seen == 200, said(seen, took))
    run.hold(2)
    for connection in sockets:
        connection.close()


@attack("k", "A enqueues and cancels tasks under a quota of 5 MB", seconds=20,
        settings={"tenantLimits": {"maxPendingBytes": 5_000_000}},
        optional={"tenantLimits": {"maxStoredBytes": 5_000_000}})
def quota(run):
    """With limits of 5 MB in `tenantLimits`, A enqueues tasks of 500 kB and cancels them at once for 20 seconds.
    Finished tasks must count too."""
    body = b'{"command":"big","payload":"' + b"x" * 500_000 + b'"}'
    taken, refused = [0], [0]
    before = run.server.data_bytes()

    def work(_):
        client = wire.Client(run.server, "a")
        try:
            while run.on():
                status, task = client.ask("POST", "/tasks", body)
                if status == 202:
                    taken[0] += 1
                    client.ask("POST", f"/tasks/{json.loads(task)['id']}/cancel", b"{}")
                else:
                    refused[0] += 1
                    time.sleep(0.02)
        except OSError:
            pass

    in_threads(2, work)
    run.fact("MB of payloads accepted", round(taken[0] / 2))
    run.fact("enqueues refused", refused[0])
    run.fact("MB in the data directory", (run.server.data_bytes() - before) // 1_000_000)
    run.check("A's payloads stay near its quota", taken[0] * 0.5 <= 20, f"{taken[0] * 0.5:.0f} MB accepted")


@attack("m", "A uses 300 commands and removes their tasks", victim=False)
def labels(run):
    """A makes 300 commands, more than have labels in the metrics, and removes their tasks. After that a new command of B
    must get a label of its own."""
    client = wire.Client(run.server, "a")
    tasks = ",".join('{"command":"gone-%d","payload":{}}' % at for at in range(300))
    client.must("POST", "/tasks/batch", '{"tasks":[%s]}' % tasks)
    scrape(run)
    for at in range(300):
        client.all_of(f"/admin/queues/gone-{at}/purge", {})
    time.sleep(0.05)
    # Everything that has finished so far.
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    client.all_of("/admin/tasks/cleanup", {"before": later, "limit": 1000})
    other = wire.Client(run.server, "b")
    start = time.monotonic()
    seen = False
    while not seen and run.left() > 0:
        other.must("POST", "/tasks", {"command": "b-fresh", "payload": {}})
        seen = 'command="b-fresh"' in scrape(run)
        time.sleep(0 if seen else 0.5)
    run.check("B's new command gets a metric label", seen, f"after {time.monotonic() - start:.1f} s" if seen else "never")


def scrape(run):
    """The metrics' text."""
    connection = wire.connect(run.server.http)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % run.server.http)
    data = b""
    while part := connection.recv(65_536):
        data += part
    connection.close()
    return data.decode(errors="replace")
