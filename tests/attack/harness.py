"""A codeQ server in a memory cgroup, its settings, and what it took.

Everything an attack needs to know about the server under attack is here: the settings (SETTINGS, in one place), the
tokens of the two tenants, the ports, the cgroup, and the peak of the server's memory.
"""

import hashlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

LIMIT_BYTES = 512 << 20

TOKENS = {
    "a": "attack-suite-tenant-a-token-0123456789",
    "b": "attack-suite-tenant-b-token-0123456789",
}

WORKER_SCOPES = [
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:subscribe",
]


def static_token(tenant, scopes, more=None):
    digest = hashlib.sha256(TOKENS[tenant].encode()).hexdigest()
    return {"tokenSha256": digest, "subject": f"{tenant}-1", "tenant": tenant, "scopes": scopes, **(more or {})}


# Everything that the attacks do not need keeps its default: the table shows what an operator gets without tuning.
# Batches of 1,000 only shorten the preparations.
SETTINGS = {
    "producerAuth": {"staticTokens": [static_token(tenant, ["codeq:admin"]) for tenant in TOKENS]},
    "workerAuth": {"staticTokens": [static_token(tenant, WORKER_SCOPES, {"eventTypes": ["*"]}) for tenant in TOKENS]},
    "maxBatchSize": 1000,
    "maxClaimBatchSize": 1000,
    "shutdownGraceSeconds": 5,
}


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def merged(base, over):
    out = dict(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


class Cgroup:
    """A memory cgroup below the one that this process is in, v1 or v2. `why_not` says why there is none."""

    def __init__(self, name):
        self.path = None
        self.version = None
        self.why_not = None
        try:
            self._make(name)
        except OSError as error:
            self.remove()
            self.path = None
            self.why_not = str(error)

    def _make(self, name):
        lines = [line.rstrip("\n").split(":", 2) for line in open("/proc/self/cgroup", encoding="ascii")]
        for _, controllers, path in lines:
            if "memory" in controllers.split(","):
                self.version = 1
                self.path = f"/sys/fs/cgroup/memory{path.rstrip('/')}/{name}"
                os.mkdir(self.path)
                self._write("memory.limit_in_bytes", LIMIT_BYTES)
                # Without swap accounting this file does not exist; the limit is then exact only on a machine without swap.
                if os.path.exists(f"{self.path}/memory.memsw.limit_in_bytes"):
                    self._write("memory.memsw.limit_in_bytes", LIMIT_BYTES)
                return
        for _, controllers, path in lines:
            if controllers == "":
                self.version = 2
                # A cgroup with processes of its own cannot have children with controllers: go up to one that can.
                parent = f"/sys/fs/cgroup{path.rstrip('/')}"
                while "memory" not in open(f"{parent}/cgroup.subtree_control", encoding="ascii").read().split():
                    if parent == "/sys/fs/cgroup":
                        raise OSError("no cgroup above this process delegates the memory controller")
                    parent = os.path.dirname(parent)
                self.path = f"{parent}/{name}"
                os.mkdir(self.path)
                self._write("memory.max", LIMIT_BYTES)
                if os.path.exists(f"{self.path}/memory.swap.max"):
                    self._write("memory.swap.max", 0)
                return
        raise OSError("no memory cgroup in /proc/self/cgroup")

    def _write(self, file, value):
        with open(f"{self.path}/{file}", "w", encoding="ascii") as out:
            out.write(str(value))

    def join(self, pid):
        if self.path:
            self._write("cgroup.procs", pid)

    def oom_kills(self):
        if not self.path:
            return 0
        file = "memory.oom_control" if self.version == 1 else "memory.events"
        for line in open(f"{self.path}/{file}", encoding="ascii"):
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def remove(self):
        if not self.path:
            return
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                # The last process is not quite gone yet.
                time.sleep(0.1)


class Server:
    """One server in its cgroup, from start to stop."""

    def __init__(self, binary, directory, settings=None, optional=None, nofile=None, log_to_pipe=False,
                 resolv_conf=None):
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.directory = directory
        self.data = f"{directory}/data"
        self.log = f"{directory}/log"
        self.http, self.producer, self.worker = free_ports(3)
        self.cgroup = Cgroup(f"codeq-attack-{os.getpid()}")
        self.peak_kib = 0
        self.died = None
        self._stopping = False
        self._unread = None
        config = self._configure(binary, merged(SETTINGS, settings or {}), optional or {})
        command = [binary, "serve", "--config", config]
        if resolv_conf:
            # A mount namespace of its own: the machine's resolv.conf stays as it is.
            script = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, "sh", resolv_conf, *command]
        if log_to_pipe:
            self._unread, output = os.pipe()
            self._reading = threading.Event()
            self._reading.set()
            threading.Thread(target=self._read_log, daemon=True).start()
        else:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

        def enter():
            # The suite runs at a lower priority, which the server must not inherit. Only root may raise it again.
            if os.geteuid() == 0:
                os.setpriority(os.PRIO_PROCESS, 0, 0)
            if nofile:
                resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
            self.cgroup.join(os.getpid())

        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                        preexec_fn=enter)
        os.close(output)
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self._wait_ready()

    def _configure(self, binary, settings, optional):
        """Writes the settings. `optional` ones are left out for a binary that does not know them."""
        settings = merged(settings, {
            "dataDir": self.data,
            "httpAddr": f"127.0.0.1:{self.http}",
            "producerAddr": f"127.0.0.1:{self.producer}",
            "workerAddr": f"127.0.0.1:{self.worker}",
        })
        path = f"{self.directory}/codeq.yaml"
        for whole in (merged(settings, optional), settings):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                json.dump(whole, out, indent=1)
            check = subprocess.run([binary, "config", "check", "--config", path], capture_output=True, text=True)
            if check.returncode == 0:
                return path
        raise RuntimeError(f"the settings are refused: {check.stdout}{check.stderr}")

    def _wait_ready(self):
        for _ in range(200):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended at its start, see {self.log}")
            try:
                if self.get("/readyz", timeout=1) == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"the server is not ready after 10 s, see {self.log}")

    def _read_log(self):
        os.set_blocking(self._unread, False)
        while self._reading.is_set():
            try:
                os.read(self._unread, 65_536)
            except BlockingIOError:
                time.sleep(0.01)

    def stop_reading_log(self):
        """From now on nobody reads the pipe that the log goes to."""
        self._reading.clear()

    def _sample(self):
        """VmHWM is the kernel's own peak; it is read often because it is gone when the server is."""
        while not self._stopping:
            try:
                with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
                    for line in status:
                        if line.startswith("VmHWM:"):
                            self.peak_kib = max(self.peak_kib, int(line.split()[1]))
            except (OSError, ValueError):
                pass
            if self.process.poll() is not None and self.died is None:
                self.died = self._how_it_died()
            time.sleep(0.02)

    def _how_it_died(self):
        code = self.process.returncode
        if self.cgroup.oom_kills():
            self.peak_kib = max(self.peak_kib, LIMIT_BYTES >> 10)
            return "killed: out of memory"
        return f"ended with code {code}" if code >= 0 else f"ended by signal {-code}"

    def alive(self):
        return self.process.poll() is None

    def get(self, path, timeout=5):
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=timeout)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def peak_mib(self):
        return round(self.peak_kib / 1024)

    def data_bytes(self):
        total = 0
        for folder, _, files in os.walk(self.data):
            for name in files:
                try:
                    total += os.stat(f"{folder}/{name}").st_blocks * 512
                except FileNotFoundError:
                    pass
        return total

    def terminate(self, grace=10):
        """SIGTERM; the seconds until it ended, or None if it was still there."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(grace)
            return time.monotonic() - start
        except subprocess.TimeoutExpired:
            return None

    def stop(self, politely=True):
        """Ends it, by SIGTERM or else by SIGKILL. The seconds that SIGTERM took."""
        self._stopping = True
        self._sampler.join()
        if self.process.poll() is not None and self.died is None:
            self.died = self._how_it_died()
        took = self.terminate() if politely and self.alive() else None
        if self.alive():
            self.process.kill()
            self.process.wait()
        return took

    def remove(self):
        """Removes what the server leaves behind, except its log."""
        if self._unread is not None:
            self.stop_reading_log()
            os.close(self._unread)
        self.cgroup.remove()
        shutil.rmtree(self.data, ignore_errors=True)
