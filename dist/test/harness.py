"""What the package tests share: a client, waiting with a deadline, and processes that end with the test."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("CODEQ_DIST_CACHE", pathlib.Path.home() / ".cache/codeq-dist"))
START = time.monotonic()
PATIENCE = 60
PRODUCER, WORKER = "producer-token-of-the-test", "worker-token-of-the-test"
AUTH = f"""
producerAuth:
  staticTokens:
    - {{ tokenSha256: {hashlib.sha256(PRODUCER.encode()).hexdigest()}, subject: shop, tenant: acme, scopes: [codeq:admin] }}
workerAuth:
  staticTokens:
    - tokenSha256: {hashlib.sha256(WORKER.encode()).hexdigest()}
      subject: worker-1
      tenant: acme
      scopes: [codeq:claim, codeq:heartbeat, codeq:abandon, codeq:nack, codeq:result, codeq:subscribe]
      eventTypes: ['*']
"""


def say(text):
    print(f"  {time.monotonic() - START:4.0f} s  {text}", flush=True)


def skip(why):
    print(f"SKIPPED: {why}", flush=True)
    sys.exit(77)


def need(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        skip(f"not installed: {', '.join(missing)}")


def isolated():
    """Runs this program again with mounts and a network of its own, so that any port is free and nothing stays."""
    if os.environ.get("CODEQ_DIST_ISOLATED"):
        # Exits as usual on SIGTERM, so that what the test started ends too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        run("ip", "link", "set", "lo", "up")
        # Container runtimes refuse a machine with both versions of control groups. One is enough for a test.
        run("umount", "/sys/fs/cgroup/unified", check=False)
        return
    if os.geteuid() != 0:
        skip("needs root, to mount and to change the user")
    need("unshare", "ip")
    os.environ["CODEQ_DIST_ISOLATED"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--net", "--", sys.executable, "-B", *sys.argv])


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done


def one(directory, pattern):
    found = sorted(pathlib.Path(directory).glob(pattern))
    assert len(found) == 1, f"{directory} has {len(found)} files {pattern}; run `make dist` first"
    return found[0]


def validators():
    """A directory with a Python that has the schemas of Kubernetes, and check-jsonschema, which has those of compose."""
    programs = CACHE / "venv/bin"
    if not (programs / "check-jsonschema").exists():
        run(sys.executable, "-m", "venv", "--clear", CACHE / "venv")
        run(programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
            "kubernetes-validate==1.37.0", "check-jsonschema==0.39.0")
    return programs


@contextlib.contextmanager
def scratch():
    path = pathlib.Path(tempfile.mkdtemp(prefix="codeq-dist-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        # Never remove through a mount: what is mounted is not ours.
        mounted = [line.split()[1] for line in open("/proc/mounts") if line.split()[1].startswith(str(path))]
        for point in reversed(mounted):
            run("umount", "--lazy", point, check=False)
        shutil.rmtree(path, ignore_errors=True)


def unpack(archive, target):
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(target)
    return target


def until(what, found, patience=PATIENCE):
    """Asks again until there is an answer, and says what it waited for if there is none."""
    end = time.monotonic() + patience
    while True:
        answer = found()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not seen within {patience} s: {what}")
        time.sleep(0.1)


class Client:
    def __init__(self, port=8080, producer=PRODUCER, worker=WORKER):
        self.base, self.tokens = f"http://127.0.0.1:{port}", (producer, worker)

    def call(self, method, path, body=None, worker=False, token=None):
        token = token or self.tokens[worker]
        request = urllib.request.Request(self.base + path, method=method,
                                         data=None if body is None else json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def ready(self):
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def enqueue(self, command, **fields):
        status, task = self.call("POST", "/v1/codeq/tasks", {"command": command, "payload": {}, **fields})
        assert status == 202, (status, task)
        return task["id"]

    def claim(self, command, **fields):
        body = {"commands": [command], "workerId": "w-1", **fields}
        status, task = self.call("POST", "/v1/codeq/tasks/claim", body, worker=True)
        assert status == 200, (status, task)
        return task

    def complete(self, task):
        body = {"workerId": "w-1", "fence": task["fence"], "status": "COMPLETED", "result": {"done": True}}
        status, answer = self.call("POST", f"/v1/codeq/tasks/{task['id']}/result", body, worker=True)
        assert status == 200, (status, answer)

    def status(self, task):
        status, answer = self.call("GET", f"/v1/codeq/tasks/{task}")
        assert status == 200, (status, answer)
        return answer["status"]


class Process:
    """A program in a session of its own, killed with all it started when the test ends."""

    def __init__(self, log, *command, **options):
        self.log = pathlib.Path(log)
        self.child = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=open(log, "ab"),
                                      stderr=subprocess.STDOUT, start_new_session=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def text(self):
        return self.log.read_text(errors="replace")

    def until_ready(self, client):
        def found():
            assert self.child.poll() is None, f"ended with {self.child.returncode}:\n{self.text()}"
            return client.ready()
        until("a server that is ready", found)

    def token(self):
        """The token that a development server printed last."""
        return re.findall(r"^  Token +(\S+)", self.text(), re.MULTILINE)[-1]


def go_tool(name, package):
    """An installed tool, or one built from its sources: Debian has no package of it."""
    found = shutil.which(name) or shutil.which(name, path=CACHE / "bin")
    if found:
        return found
    need("go")
    say(f"building {name}")
    built = run("go", "install", package, check=False, cwd="/",
                env={**os.environ, "GOBIN": str(CACHE / "bin"), "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"})
    if built.returncode:
        skip(f"{name} cannot be built: {built.stdout[-300:]}")
    return str(CACHE / "bin" / name)
