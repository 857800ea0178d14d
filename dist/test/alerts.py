"""Makes each alert fire and clear on a real server with a real Prometheus, and runs the dashboard's queries.

The server gets the environment of the compose file. The rules are a copy with short times.
"""

import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.parse
import urllib.request

import yaml
from harness import ROOT, Client, Process, isolated, need, run, say, scratch, until, validators

COMPOSE = ROOT / "dist/compose"
TOKEN = "token-of-the-alert-test-0123456789"
PROMETHEUS = "http://127.0.0.1:9095"
# Metrics that appear only after something that this test does not do.
LATER = {"codeq_grpc_streams_open", "codeq_rate_limit_hits_total", "codeq_refusals_total"}
DISK = 1 << 30
WINDOW = 15


def environment(data):
    """The compose file's, on this machine, with limits that are quickly reached."""
    service = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["codeq"]
    values = {name: re.sub(r"\$\{CODEQ_TOKEN:\?[^}]*\}", TOKEN, value) for name, value in service["environment"].items()}
    return {
        "PATH": "/usr/bin", **values, "CODEQ_DATA_DIR": str(data), "CODEQ_WEBHOOKS_ALLOWED_NETWORKS": '["127.0.0.1"]',
        "CODEQ_RESULT_WEBHOOK_MAX_ATTEMPTS": "2", "CODEQ_RESULT_WEBHOOK_BASE_BACKOFF_SECONDS": "1",
        "CODEQ_HTTP_MAX_BATCH_BODY_BYTES": "1048576", "CODEQ_HTTP_MAX_BUFFERED_BYTES": "4194304",
        "CODEQ_BACKOFF_BASE_SECONDS": "600",
    }


def short_rules():
    """The rules with times that a test can wait for. The longest wait for a task becomes two seconds."""
    text = (COMPOSE / "alerts.yml").read_text()
    text = re.sub(r"for: \d+m", "for: 1s", text)
    text = re.sub(r"\[\d+m\]", f"[{WINDOW}s]", text)
    assert text.count("> 300") == 1
    return text.replace("> 300", "> 2")


def start_prometheus(work):
    config = (COMPOSE / "prometheus.yml").read_text().replace("codeq:9090", "127.0.0.1:9090").replace("10s", "1s")
    (work / "prometheus.yml").write_text(config)
    (work / "alerts.yml").write_text(short_rules())
    return Process(work / "prometheus.log", "prometheus", f"--config.file={work / 'prometheus.yml'}",
                   f"--storage.tsdb.path={work / 'tsdb'}", "--web.listen-address=127.0.0.1:9095", "--log.level=warn")


def ask(path, **query):
    with urllib.request.urlopen(f"{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=15) as answer:
        return json.load(answer)["data"]


def firing():
    try:
        return {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"] if alert["state"] == "firing"}
    except OSError:
        return set()


class Alerts:
    """Which alerts were seen, so that none is forgotten."""

    def __init__(self):
        rules = yaml.safe_load((COMPOSE / "alerts.yml").read_text())["groups"]
        self.missing = {rule["alert"] for group in rules for rule in group["rules"]}

    def fire(self, *names, cause=lambda: None):
        def seen():
            cause()
            return set(names) <= firing()
        until(f"firing: {', '.join(names)} (now: {firing()})", seen, 180)

    def clear(self, *names):
        until(f"cleared: {', '.join(names)}", lambda: not set(names) & firing(), 180)
        self.missing -= set(names)
        say(f"fired and cleared: {', '.join(names)}")


def once(action):
    """An action that does nothing when it is called again."""
    done = []
    return lambda: done or done.append(action())


@contextlib.contextmanager
def receiver():
    class Accept(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 9000), Accept)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def unfinished_request():
    """A request whose body never ends: the server holds what has arrived."""
    connection = socket.create_connection(("127.0.0.1", 8080), timeout=5)
    connection.sendall(f"POST /v1/codeq/tasks/batch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                       "Content-Length: 1000000\r\n\r\n".encode())
    with contextlib.suppress(OSError):
        connection.sendall(b"[" + b" " * 900_000)
    return connection


def fill(path, leave):
    """Fills the filesystem of a file, except for `leave` bytes."""
    free = os.statvfs(path.parent)
    size = free.f_bavail * free.f_frsize - leave
    with open(path, "ab") as file:
        os.posix_fallocate(file.fileno(), file.tell(), size)


def tasks_alerts(alerts, client):
    alerts.fire("CodeqTasksWait", cause=once(lambda: client.enqueue("waits")))
    client.complete(client.claim("waits"))
    alerts.clear("CodeqTasksWait")

    def dead():
        client.enqueue("dies", maxAttempts=1)
        task = client.claim("dies")
        body = {"workerId": "w-1", "fence": task["fence"], "reason": "broken"}
        assert client.call("POST", f"/v1/codeq/tasks/{task['id']}/nack", body, worker=True)[0] == 200
    alerts.fire("CodeqDeadLetters", cause=once(dead))
    status, said = client.call("POST", "/v1/codeq/admin/dlq/dies/purge", {"before": "2100-01-01T00:00:00Z"})
    assert (status, said["purged"]) == (200, 1), said
    alerts.clear("CodeqDeadLetters")

    def forgotten():
        client.enqueue("expires")
        client.claim("expires", leaseSeconds=1)
    alerts.fire("CodeqLeasesExpire", cause=forgotten)
    alerts.clear("CodeqLeasesExpire")

    def called_back():
        client.enqueue("calls", webhook="http://127.0.0.1:9000/done")
        client.complete(client.claim("calls"))
    alerts.fire("CodeqWebhooksFail", "CodeqWebhooksGivenUp", cause=called_back)
    with receiver():
        def resent():
            client.call("POST", "/v1/codeq/admin/webhooks/deliveries/resend", {})
            return "CodeqWebhooksGivenUp" not in firing()
        until("callbacks are delivered", resent)
        alerts.clear("CodeqWebhooksFail", "CodeqWebhooksGivenUp")


def clients_alerts(alerts, client):
    alerts.fire("CodeqTokensRefused", cause=lambda: [client.call("GET", "/v1/codeq/tasks/x", token="wrong") for _ in "12345"])
    alerts.clear("CodeqTokensRefused")
    held = []

    def crowd():
        held.append(unfinished_request())
        while len(held) > 8:
            held.pop(0).close()
    alerts.fire("CodeqMemoryFull", "CodeqRequestsRefused", cause=crowd)
    for connection in held:
        connection.close()
    alerts.clear("CodeqMemoryFull", "CodeqRequestsRefused")


def disk_alerts(alerts, client, server, disk):
    # Delays every sync, like a disk that other programs keep busy.
    with Process("/dev/null", "strace", "-f", "-q", "-p", server.child.pid, "-e", "trace=fdatasync",
                 "-e", "inject=fdatasync:delay_enter=300000") as slow:
        alerts.fire("CodeqDiskSlow", cause=lambda: client.enqueue("slow"))
        os.kill(slow.child.pid, signal.SIGTERM)
        slow.child.wait()
    alerts.clear("CodeqDiskSlow")

    filler = disk / "filler"
    fill(filler, DISK // 20)
    alerts.fire("CodeqDiskAlmostFull")
    filler.unlink()
    alerts.clear("CodeqDiskAlmostFull")

    fill(filler, 1 << 20)

    def write():
        client.call("POST", "/v1/codeq/tasks", {"command": "large", "payload": "x" * 900_000})
    alerts.fire("CodeqWritesRefused", "CodeqCheckpointsFail", cause=write)
    filler.unlink()
    alerts.clear("CodeqWritesRefused", "CodeqCheckpointsFail")
    client.enqueue("after")


def check_dashboard():
    """Every query of the dashboard is valid, and every metric in it is known to Prometheus."""
    text = (COMPOSE / "grafana/dashboards/codeq.json").read_text()
    known = set(ask("label/__name__/values"))
    unknown = set(re.findall(r"codeq_[a-z_]+", text + short_rules())) - known - LATER
    assert not unknown, f"Prometheus has no {unknown}"
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", [])]
    empty = []
    for query in queries:
        query = query.replace("$__rate_interval", f"{WINDOW}s").replace("$instance", ".*").replace("$command", ".*")
        if not ask("query", query=query)["result"]:
            empty.append(query)
    assert all(any(name in query for name in LATER) for query in empty), empty
    say(f"the dashboard's {len(queries)} queries have answers")


def check_numbers(client):
    """Prometheus shows the same numbers as the API."""
    for command in ("large", "slow", "expires"):
        status, queue = client.call("GET", f"/v1/codeq/admin/queues/{command}")
        assert status == 200, queue
        depth = {"ready": queue["ready"], "delayed": queue["delayed"], "in_progress": queue["inProgress"], "dlq": queue["dlq"]}

        def same():
            found = ask("query", query=f'codeq_queue_depth{{command="{command}"}}')["result"]
            return {entry["metric"]["queue"]: int(entry["value"][1]) for entry in found} == depth
        until(f"{command} has {depth}", same)
        assert sum(depth.values()) > 0, depth
    say("Prometheus and the API agree on the depth of queues")


class Watch:
    """The API's numbers of a queue, as often as it answers. Each of them must only grow."""

    def __init__(self, client, command):
        self.client, self.command, self.seen, self.over = client, command, [], False

    def run(self):
        while not self.over:
            began = time.time()
            status, queue = self.client.call("GET", f"/v1/codeq/admin/queues/{self.command}")
            assert status == 200, queue
            self.seen.append((began, time.time(), queue))

    def check(self, field, value, began, ended):
        """A value that was read between two moments is between the API's answers before and after them."""
        before = [queue[field] for _, answered, queue in self.seen if answered <= began]
        after = [queue[field] for asked, _, queue in self.seen if asked >= ended]
        assert before and after and before[-1] <= value <= after[0], (field, value, before[-1:], after[:1])
        return before[-1] < after[0]


def top(binary, url):
    """The rows of `codeq top` on a wide terminal."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    run_top = subprocess.Popen([binary, "top", "--once"], stdin=subprocess.DEVNULL, stdout=slave,
                               env={"CODEQ_HTTP_URL": url, "CODEQ_TOKEN": TOKEN, "HOME": "/nonexistent"})
    os.close(slave)
    text = b""
    with contextlib.suppress(OSError), open(master, "rb", buffering=0) as terminal:
        while piece := terminal.read(4096):
            text += piece
    assert run_top.wait() == 0, text
    return [line.split() for line in text.decode().splitlines()]


def check_numbers_under_load(client, binary):
    """`top` and Prometheus show what the API shows while tasks are enqueued, claimed and finished."""
    def enqueue():
        tasks = [{"command": "busy", "payload": {}}] * 20
        status, said = client.call("POST", "/v1/codeq/tasks/batch", {"tasks": tasks})
        assert status == 200, said

    def claim():
        body = {"commands": ["busy"], "workerId": "w-1", "count": 10, "leaseSeconds": 600}
        status, said = client.call("POST", "/v1/codeq/tasks/claim/batch", body, worker=True)
        assert status == 200, said
        return said["tasks"]

    def finish():
        results = [{"taskId": task["id"], "status": "COMPLETED", "workerId": "w-1", "fence": task["fence"]}
                   for task in claim()]
        status, said = client.call("POST", "/v1/codeq/tasks/batch/results", {"results": results}, worker=True)
        assert status == 200, said

    # Each load makes one number grow: its field in the API, the title of its column in `top`, and its query.
    loads = [(enqueue, "ready", "READY", 'codeq_queue_depth{command="busy",queue="ready"}'),
             (claim, "inProgress", "RUNNING", 'codeq_queue_depth{command="busy",queue="in_progress"}'),
             (finish, "completed", "DONE", 'sum(codeq_task_completed_total{command="busy",status="COMPLETED"})')]
    for load, field, title, query in loads:
        watch = Watch(client, "busy")
        client.enqueue("busy")
        shown, sampled = [], {}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            watching = pool.submit(watch.run)
            end = time.monotonic() + 8
            loading = pool.submit(lambda: [load() for _ in iter(lambda: time.monotonic() < end, False)])
            try:
                until("the first answer", lambda: watch.seen)
                while not loading.done():
                    began = time.time()
                    rows = top(binary, client.base)
                    titles = next(row for row in rows if row[:1] == ["QUEUE"])
                    busy = next(row for row in rows if row[:1] == ["busy"])
                    shown.append((int(busy[titles.index(title)]), began, time.time()))
                    for found in ask("query", query=f"timestamp({query.removeprefix('sum(').removesuffix(')')})")["result"]:
                        scraped = float(found["value"][1])
                        value = ask("query", query=query, time=scraped)["result"][0]["value"][1]
                        sampled[scraped] = int(value)
                loading.result()
                # Waits for an answer to a request that was sent after the last scrape.
                last = time.time() + 1
                until("the last answer", lambda: watch.seen[-1][0] > last)
            finally:
                watch.over = True
            watching.result()
        moved = sum(watch.check(field, *view) for view in shown)
        first = watch.seen[0][1]
        scrapes = {at: value for at, value in sampled.items() if at > first}
        moved_scrapes = sum(watch.check(field, value, at, at + 1) for at, value in scrapes.items())
        assert moved > 5 and moved_scrapes > 2, (len(shown), moved, len(scrapes), moved_scrapes)
        say(f"{field} up to {watch.seen[-1][2][field]}: {len(shown)} views of `top` and {len(scrapes)} scrapes fit the "
            f"API's {len(watch.seen)} answers, {moved} and {moved_scrapes} of them while it grew")


def main(binary):
    # Downloads, so it comes before isolated(), which takes the network away.
    validate = validators() / "check-jsonschema"
    isolated()
    run(validate, "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")
    need("prometheus", "promtool", "strace", "mkfs.ext4", "mount")
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"],
                    ["check", "config", "--syntax-only", "prometheus.yml"]):
        run("promtool", *command, cwd=COMPOSE)
    say("the compose file is valid; promtool accepts the rules, their cases and the configuration")
    alerts = Alerts()
    with scratch() as work, contextlib.ExitStack() as stack:
        disk = work / "disk"
        disk.mkdir()
        subprocess.run(["truncate", "-s", str(DISK), work / "image"], check=True)
        run("mkfs.ext4", "-q", "-m", "0", work / "image")
        run("mount", "-o", "loop", work / "image", disk)
        stack.enter_context(start_prometheus(work))
        alerts.fire("CodeqDown", "CodeqNoLeader")
        client = Client(producer=TOKEN, worker=TOKEN)

        def start():
            server = stack.enter_context(Process(work / "log", binary, "serve", env=environment(disk / "data")))
            server.until_ready(client)
            alerts.clear("CodeqDown", "CodeqNoLeader")
            return server
        killed = start()
        os.kill(killed.child.pid, signal.SIGKILL)
        killed.child.wait()
        alerts.fire("CodeqDown", "CodeqNoLeader")
        server = start()
        tasks_alerts(alerts, client)
        clients_alerts(alerts, client)
        disk_alerts(alerts, client, server, disk)
        check_dashboard()
        check_numbers(client)
        check_numbers_under_load(client, binary)
        assert not alerts.missing, f"not seen: {alerts.missing}"
        os.kill(server.child.pid, signal.SIGTERM)
        assert server.child.wait(timeout=60) == 0, server.text()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
