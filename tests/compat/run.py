#!/usr/bin/env python3
"""Runs the cases of the original codeQ's clients, in Go and in Python, against a real server.

    run.py [--binary target/debug/codeq] [--only go|python|import] [--case NAME]

In the cases, codeQ means the original. Starts the server on free ports with a configuration file of its own, and an issuer
that mints tokens for the cases. Then runs `go test` and `unittest`, which find all they need in the file that COMPAT_FACTS
names. Exits with 1 if a case fails.
Needs the packages of the tests' Python (`make prepare`). Without a Go that is new enough, the Go cases are skipped and
a line says so. `--only import` tries scripts/import-codeq on a real Redis, which the others do without.
"""

import argparse
import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc_tools
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The messages of both streams, written from the published table of fields alone.
PROTOS = ROOT / "crates/codeq-server/tests/grpc/python"
# No case waits for anything near this long.
DEADLINE_SECONDS = 300
ISSUER = "https://issuer.compat.test"
AUDIENCE = "codeq"
WEBHOOK_SECRET = "a-secret-of-the-compat-cases"
PUBLIC_URL = "https://codeq.compat.test"
WORKER_SCOPES = [f"codeq:{what}" for what in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--binary", default=ROOT / "target/debug/codeq", type=Path)
    arguments.add_argument("--only", choices=["go", "python", "import"])
    arguments.add_argument("--case", default="", help="run the cases whose name has this in it")
    arguments = arguments.parse_args()

    with tempfile.TemporaryDirectory(prefix="codeq-compat-") as directory:
        directory = Path(directory)
        issuer = Issuer()
        server, addresses = start(arguments.binary.resolve(), directory, issuer.url)
        try:
            facts = directory / "facts.json"
            facts.write_text(json.dumps({
                **addresses,
                "tokens": {name: token["token"] for name, token in static_tokens().items()},
                "mint": f"{issuer.url}/mint",
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "messages": str(descriptors(directory)),
                "webhookSecret": WEBHOOK_SECRET,
                "publicUrl": PUBLIC_URL,
                "binary": str(arguments.binary.resolve()),
            }))
            parts = {"python": python_cases, "go": go_cases, "import": import_cases}
            chosen = [arguments.only] if arguments.only else ["python", "go"]
            failed = [name for name in chosen if not parts[name](facts, arguments.case)]
            if server.poll() is not None:
                failed.append(f"the server ended with {server.returncode}")
        finally:
            server.terminate()
            server.wait(60)
            issuer.stop()
        if failed:
            print((directory / "server.log").read_text()[-4000:])
    if failed:
        sys.exit(f"compat: failed: {', '.join(failed)}")


def python_cases(facts, case, name="python"):
    """The cases in Python."""
    command = [sys.executable, "-B", "-m", "unittest", "discover", "-v", "-s", HERE / name]
    return cases(name, [*command, *(["-k", case] if case else [])], ROOT, facts, r"^\w+ \([\w.]+\) \.\.\. ?(\w*)$")


def import_cases(facts, case):
    """The import from a keyspace, if there is a Redis to hold one."""
    if not shutil.which("redis-server"):
        sys.exit("compat: import: redis-server is not installed")
    return python_cases(facts, case, "import")


def go_cases(facts, case):
    """The cases in Go, if there is a Go that can build them."""
    needed = re.search(r"^go (\d+)\.(\d+)", (HERE / "go/go.mod").read_text(), re.M).groups()
    go = shutil.which("go")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True).stdout if go else ""
    has = re.search(r"go(\d+)\.(\d+)", version)
    if not has or tuple(map(int, has.groups())) < tuple(map(int, needed)):
        found = f"found {has.group(0)}" if has else "found none"
        print(f"compat: go: SKIPPED: Go {'.'.join(needed)} or later is needed, {found}", flush=True)
        return True
    command = [go, "test", "-count=1", "-v", *(["-run", case] if case else []), "./..."]
    return cases("go", command, HERE / "go", facts, r"^--- (\w+): ")


def cases(name, command, directory, facts, verdict):
    """Runs one part, and prints how many cases passed, or everything if one did not."""
    started = time.monotonic()
    environment = {**os.environ, "COMPAT_FACTS": str(facts), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly",
                   "PYTHONPATH": str(HERE / "python")}
    try:
        done = subprocess.run(command, cwd=directory, env=environment, timeout=DEADLINE_SECONDS, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, good = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as error:
        output, good = (error.stdout or b"").decode(), False
    verdicts = re.findall(verdict, output, re.M)
    passed = sum(word in ("ok", "PASS") for word in verdicts)
    if not good:
        print(output)
    # A part in which no case ran has not passed.
    good = good and passed > 0
    print(f"compat: {name}: {passed} of {len(verdicts)} cases passed in {time.monotonic() - started:.1f} s", flush=True)
    return good


def static_tokens():
    """The fixed tokens of the cases: what each is for, and what it may do."""
    worker = {"tenant": "acme", "scopes": WORKER_SCOPES, "eventTypes": ["*"]}
    return {
        "admin": {"token": "compat-admin-token-0123456789", "subject": "shop", "tenant": "acme", "scopes": ["codeq:admin"]},
        "producer": {"token": "compat-producer-token-0123456789", "subject": "cart", "tenant": "acme"},
        "stranger": {"token": "compat-stranger-token-0123456789", "subject": "spy", "tenant": "other"},
        "worker": {"token": "compat-worker-token-0123456789", "subject": "worker-1", **worker},
        "colleague": {"token": "compat-colleague-token-0123456789", "subject": "worker-2", **worker},
        "narrow": {
            "token": "compat-narrow-token-0123456789", "subject": "worker-3", "tenant": "acme", "scopes": ["codeq:claim"],
            "eventTypes": ["only-this"],
        },
    }


def configuration(directory, ports, jwks_url):
    """The server's settings."""
    tokens = static_tokens()
    jwt = [{"issuer": ISSUER, "audience": AUDIENCE, "jwksUrl": f"{jwks_url}/jwks"}]
    return {
        "dataDir": str(directory / "data"),
        "httpAddr": f"127.0.0.1:{ports[0]}",
        "producerAddr": f"127.0.0.1:{ports[1]}",
        "workerAddr": f"127.0.0.1:{ports[2]}",
        "publicUrl": PUBLIC_URL,
        "producerAuth": {"jwt": jwt, "staticTokens": [tokens[name] for name in ("admin", "producer", "stranger")]},
        "workerAuth": {"jwt": jwt, "staticTokens": [tokens[name] for name in ("worker", "colleague", "narrow")]},
        "webhooks": {
            "allowedNetworks": ["127.0.0.0/8"],
            "secrets": [{"tenant": "acme", "secret": WEBHOOK_SECRET}],
        },
    }


def start(binary, directory, jwks_url):
    """A server that is ready, and its addresses. Another process may take a free port first, so it has three tries."""
    log = directory / "server.log"
    for _ in range(3):
        ports = free_ports(3)
        config = directory / "codeq.yaml"
        config.touch(mode=0o600)
        # JSON is YAML.
        config.write_text(json.dumps(configuration(directory, ports, jwks_url), indent=1))
        with open(log, "ab") as out:
            command = [binary, "serve", "--config", config]
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        if becomes_ready(server, ports[0]):
            http, producer, worker = (f"127.0.0.1:{port}" for port in ports)
            return server, {"http": f"http://{http}", "producer": producer, "worker": worker}
        server.kill()
        server.wait()
    sys.exit(f"compat: {binary} does not start:\n{log.read_text()}")


def becomes_ready(server, port):
    for _ in range(300):
        if server.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return True
        except OSError:
            time.sleep(0.1)
    return False


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def descriptors(directory):
    """The messages of both streams as a descriptor set, which clients in any language can read."""
    out = directory / "messages.binpb"
    common = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{common}", "--include_imports", f"--descriptor_set_out={out}"]
    if protoc.main([*arguments, str(PROTOS / "producer.proto"), str(PROTOS / "worker.proto")]) != 0:
        sys.exit("compat: the tables of messages cannot be read")
    return out


class Issuer:
    """An issuer of tokens: `GET /jwks` are its keys, `POST /mint` signs the claims in the body."""

    def __init__(self):
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply("application/json", json.dumps({"keys": [issuer.public_key()]}))

            def do_POST(self):
                claims = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply("text/plain", issuer.sign(claims))

            def reply(self, kind, text):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def public_key(self):
        numbers = self.key.public_key().public_numbers()
        number = lambda value: encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))
        return {"kty": "RSA", "kid": "compat", "alg": "RS256", "use": "sig", "n": number(numbers.n), "e": number(numbers.e)}

    def sign(self, claims):
        head = {"alg": "RS256", "typ": "JWT", "kid": "compat"}
        signed = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{encoded(signature)}"

    def stop(self):
        self.server.shutdown()


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
