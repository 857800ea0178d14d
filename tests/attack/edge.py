"""Attacks on what the server shares with the machine: names, file descriptors, the log's pipe, the Host header."""

import http.server
import json
import os
import select
import socket
import subprocess
import threading
import time

import wire
from attack import attack
from harness import free_ports

# --- g: names ---

DNS_ADDRESS = ("127.77.0.53", 53)


class NameServer(threading.Thread):
    """Answers queries for `*.b.attack.test` with 127.0.0.1, and ignores all others."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(DNS_ADDRESS)
        self.socket.settimeout(0.2)
        self.silent = 0
        self.closed = False
        self.start()

    def close(self):
        self.closed = True
        self.join()
        self.socket.close()

    def run(self):
        while not self.closed:
            try:
                query, peer = self.socket.recvfrom(4096)
            except TimeoutError:
                continue
            answer = self.answer(query)
            if answer is None:
                self.silent += 1
            else:
                self.socket.sendto(answer, peer)

    @staticmethod
    def answer(query):
        labels, at = [], 12
        while at < len(query) and query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].lower())
            at += 1 + query[at]
        question = query[12:at + 5]
        if labels[-3:] != [b"b", b"attack", b"test"] or len(question) < 5:
            return None
        is_a = question[-4:-2] == b"\x00\x01"
        # Every record names the question; TTL 0, so that each call queries again.
        record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x00\x00\x04\x7f\x00\x00\x01" if is_a else b""
        head = query[:2] + b"\x81\x80\x00\x01" + (b"\x00\x01" if is_a else b"\x00\x00") + b"\x00\x00\x00\x00"
        return head + question + record


class Receiver(threading.Thread):
    """B's receiver of webhooks: records when the first call came for each task, or for each queue that has work."""

    def __init__(self):
        super().__init__(daemon=True)
        came = self.came = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            # HTTP/1.0, so that each call needs a new connection and queries the name again.
            protocol_version = "HTTP/1.0"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                came.setdefault(body.get("taskId") or body["eventType"], time.monotonic())
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.start()

    def run(self):
        self.server.serve_forever(poll_interval=0.1)


def dns_server(directory):
    """How the server is started: with a resolv.conf of its own."""
    path = f"{directory}/resolv.conf"
    with open(path, "w", encoding="ascii") as out:
        out.write(f"nameserver {DNS_ADDRESS[0]}\n")
    return {"resolv_conf": path}


def silent_names(run):
    names, receiver = NameServer(), Receiver()
    run.kept.update(names=names, receiver=receiver)
    run.closing += [names.close, receiver.server.shutdown]


@attack("g", "callbacks to 400 host names that never resolve", prepare=silent_names, seconds=24, server={"make": dns_server},
        settings={"webhooks": {"allowedNetworks": ["127.0.0.1/32"]}, "resultWebhookMaxAttempts": 2,
                  "resultWebhookBaseBackoffSeconds": 1})
def silent_dns(run):
    """400 tasks of A end; the host names of their webhooks never resolve. Every 400 ms a task of B ends; the host name of
    its webhook resolves at once. Each of B's callbacks must arrive, within 2 s."""
    receiver, ended = run.kept["receiver"], {}
    attacker, client = wire.Client(run.server, "a"), wire.Client(run.server, "b")
    task = '{"command":"called","payload":{},"webhook":"http://n%d.a.attack.test/"}'
    url = f"http://hook.b.attack.test:{receiver.port}/"
    try:
        attacker.must("POST", "/tasks/batch", '{"tasks":[%s]}' % ",".join(task % at for at in range(400)))
        attacker.all_of("/admin/queues/called/purge", {})
        time.sleep(0.5)
        while run.left() > 10 and run.server.alive():
            made = client.must("POST", "/tasks", {"command": "b-called", "payload": {}, "webhook": url})["id"]
            client.must("POST", f"/tasks/{made}/cancel", {})
            ended[made] = time.monotonic()
            time.sleep(0.4)
        while run.on() and len(receiver.came) < len(ended):
            time.sleep(0.1)
    except OSError:
        pass
    delays = sorted(receiver.came[task] - at for task, at in ended.items() if task in receiver.came)
    status, page = client.ask("GET", "/admin/webhooks/deliveries?status=failed&limit=100")
    given_up = len(json.loads(page).get("items", [])) if status == 200 else f"status {status}"
    run.fact("unanswered DNS queries", run.kept["names"].silent)
    run.fact("B's callbacks delivered", f"{len(delays)} of {len(ended)}")
    run.fact("B's callbacks that failed for good", given_up)
    run.fact("B's callback delay, median, ms", round(delays[len(delays) // 2] * 1000) if delays else None)
    run.fact("B's callback delay, longest, ms", round(delays[-1] * 1000) if delays else None)
    run.check("B's callbacks arrive within 2 s", len(delays) == len(ended) and delays and delays[-1] < 2,
              f"{len(delays)} of {len(ended)}")


# --- n: one receiver under many names ---


def names_answered(run):
    names = NameServer()
    run.closing.append(names.close)


@attack("n", "callbacks to one address through 100 host names", prepare=names_answered, victim=False, seconds=5,
        server={"make": dns_server}, settings={"webhooks": {"allowedNetworks": ["127.0.0.1/32"]}})
def many_names(run):
    """100 tasks of A end; their webhooks have 100 host names for one address, which accepts calls and does not answer. At
    most `webhooks.maxPerHost` (16) calls may run at once, under whatever name."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    listening.settimeout(0.2)
    client = wire.Client(run.server, "a")
    task = '{"command":"named","payload":{},"webhook":"http://n%%d.b.attack.test:%d/"}' % listening.getsockname()[1]
    client.must("POST", "/tasks/batch", '{"tasks":[%s]}' % ",".join(task % at for at in range(100)))
    client.all_of("/admin/queues/named/purge", {})
    calls = []
    # The attack is shorter than a call may take, so every call that came is still open.
    while run.on():
        try:
            calls.append(listening.accept()[0])
        except TimeoutError:
            pass
    for call in (listening, *calls):
        call.close()
    run.check("at most 16 concurrent calls", 0 < len(calls) <= 16, len(calls))


# --- j4: notifications ---


@attack("j4", "A has notifications from 300 queues sent to receivers that never answer",
        settings={"webhooks": {"allowedNetworks": ["127.0.0.1/32"]}})
def notifications(run):
    """40 subscriptions of A go to eight receivers that accept calls and never answer, and 300 of its queues get work. B's
    worker must still be notified at once."""
    silent = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(8)]
    receiver = Receiver()
    run.closing += [receiver.server.shutdown, *(listening.close for listening in silent)]
    attacker, client = wire.Client(run.server, "a"), wire.Client(run.server, "b")

    def subscribe(who, port, path, commands):
        url = f"http://127.0.0.1:{port}/{path}"
        who.must("POST", "/workers/subscriptions", {"callbackUrl": url, "eventTypes": commands, "minIntervalSeconds": 1})

    try:
        commands = [f"told-{at}" for at in range(300)]
        for at in range(40):
            subscribe(attacker, silent[at % 8].getsockname()[1], at, commands)
        tasks = ",".join('{"command":"%s","payload":{}}' % command for command in commands)
        attacker.must("POST", "/tasks/batch", '{"tasks":[%s]}' % tasks)
        subscribe(client, receiver.port, "b", ["b-told"])
        run.hold(1)
        start = time.monotonic()
        client.must("POST", "/tasks", {"command": "b-told", "payload": {}})
        while run.on() and "b-told" not in receiver.came:
            time.sleep(0.02)
        took = receiver.came.get("b-told", float("inf")) - start
        run.check("B's worker is notified within 2 s", took < 2, f"after {took * 1000:.0f} ms")
    except OSError as error:
        run.check("B's worker is notified within 2 s", False, repr(error))


# --- h: file descriptors ---

# B's writes, of 500 kB each, and the pause between them: 12 MB a second, three log segments in all.
WRITES = 400
PAUSE = 0.04


@attack("h", "1,300 idle sockets at 1,024 file descriptors, while the log grows by 200 MB", seconds=22,
        server={"nofile": 1024})
def idle_sockets(run):
    """A stranger keeps 1,300 idle connections open, and the server may have 1,024 open files. B, connected before, writes
    200 MB, so that new log segments are needed. B's writes must continue, and `/readyz` must say whether they do."""
    port = run.server.http
    writer = wire.Client(run.server, "b")
    probe = wire.Client(run.server, "b")
    # A connection that has already made a request may be idle for longer.
    probe.ask("GET", "/readyz", base="")
    idle = {}
    poll = select.poll()

    def fill():
        for _ in range(1300 - len(idle)):
            try:
                connection = wire.connect(port, timeout=0.2)
            except OSError:
                return
            idle[connection.fileno()] = connection
            poll.register(connection, select.POLLIN | select.POLLHUP)

    def keep():
        """The server closes idle connections after a while: open them again."""
        while run.on() and not done.is_set():
            for fd, _ in poll.poll(0):
                poll.unregister(fd)
                idle.pop(fd).close()
            fill()
            time.sleep(1)

    done = threading.Event()
    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    run.hold(2)
    body = b'{"command":"b-big","payload":"' + b"x" * 500_000 + b'"}'
    written, failed = 0, {}
    try:
        while run.left() > 2 and run.server.alive() and written < WRITES and sum(failed.values()) < 50:
            status, _ = writer.ask("POST", "/tasks", body)
            if status == 202:
                written += 1
            else:
                failed[status] = failed.get(status, 0) + 1
            time.sleep(PAUSE)
    except OSError as error:
        failed[type(error).__name__] = 1
    run.fact("idle sockets open", len(idle))
    run.fact("MB written by B", written // 2)
    run.check("B's writes continue", written and not failed, f"{written} accepted, refused: {failed or 'none'}")
    # A server that is about to end gets the time to.
    run.hold(0.5)
    if run.server.alive():
        failing = written < WRITES and bool(failed)
        try:
            ready = probe.ask("GET", "/readyz", base="")[0]
        except OSError as error:
            ready = type(error).__name__
        run.check("/readyz is correct", ready == (503 if failing else 200),
                  f"{ready} while writes {'fail' if failing else 'work'}")
    done.set()
    keeper.join(5)
    for connection in idle.values():
        connection.close()


# --- i: the log's pipe ---


@attack("i", "the server logs to a pipe that nobody reads", seconds=12, server={"log_to_pipe": True})
def unread_log(run):
    """The server logs to a pipe, at the default level, and nobody reads the pipe once the attack begins. 3,000 requests must
    be answered, and SIGTERM must end the server."""
    run.server.stop_reading_log()
    client = wire.Client(run.server, "a", timeout=2)
    answered = 0
    try:
        while run.left() > 1 and answered < 3000:
            client.ask("GET", "/tasks?limit=1")
            answered += 1
    except OSError:
        pass
    run.hold(2)
    run.check("3,000 requests get a response", answered == 3000, answered)
    run.end_measurement()
    took = run.server.terminate()
    seen = "still running after 10 s" if took is None else f"after {took:.1f} s"
    run.check("SIGTERM stops the server", took is not None, seen)


# --- l: Host ---


def answer_to(port, head):
    connection = wire.connect(port)
    try:
        connection.sendall(head)
        data = connection.recv(4096)
        return int(data[9:12]) if data else "closed"
    except (OSError, ValueError) as error:
        return type(error).__name__
    finally:
        connection.close()


@attack("l", "requests without Host, with two Hosts, and with a foreign Host to `codeq dev`", victim=False, seconds=10)
def hosts(run):
    """HTTP/1.1 requests without Host and with two of them must be 400. `codeq dev`, whose token everybody knows, must not
    accept a foreign Host (DNS rebinding), and must accept its own."""
    port = run.server.http
    for text, head in [
        ("a request without Host", b"GET /livez HTTP/1.1\r\n\r\n"),
        ("a request with two Hosts", b"GET /livez HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n"),
    ]:
        seen = answer_to(port, head)
        run.check(f"{text} gets 400", seen == 400, seen)
    dev, producer, worker = free_ports(3)
    command = [run.kept["binary"], "dev", "--ephemeral", "--http-addr", f"127.0.0.1:{dev}",
               "--producer-addr", f"127.0.0.1:{producer}", "--worker-addr", f"127.0.0.1:{worker}"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, "TMPDIR": run.directory})
    try:
        own = b"GET /v1/codeq/tasks HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer dev-token\r\n\r\n" % dev
        for _ in range(100):
            time.sleep(0.1)
            try:
                seen = answer_to(dev, own)
                break
            except OSError:
                seen = "not started"
        run.check("`codeq dev` accepts its own Host", seen == 200, seen)
        strange = own.replace(b"Host: 127.0.0.1:%d" % dev, b"Host: evil.example")
        seen = answer_to(dev, strange)
        run.check("`codeq dev` refuses a foreign Host", isinstance(seen, int) and 400 <= seen < 500, seen)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
