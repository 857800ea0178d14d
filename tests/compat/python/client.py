"""Clients of the cases: HTTP, both streams, and a receiver of webhooks. They know what codeQ's clients know: the routes,
the fields, the tables of messages."""

import http.client
import json
import os
import queue
import secrets
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FACTS = json.loads(Path(os.environ["COMPAT_FACTS"]).read_text())
TOKENS = FACTS["tokens"]
# Whatever comes at once has come by then.
PATIENCE = 30
# A body that is not sent at all, which is not the same as `null`.
NOTHING = object()


class Answer:
    """What the server answered."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:400]}"


class Case(unittest.TestCase):
    """A case with a queue of its own."""

    maxDiff = None

    def shortDescription(self):
        """The name alone, so that every case is one line."""

    def setUp(self):
        self.command = f"{self._testMethodName.removeprefix('test_').replace('_', '-')}-{secrets.token_hex(4)}"

    def call(self, method, path, body=NOTHING, token="producer", expect=None, headers=None):
        """One request below /v1/codeq, or anywhere if the path says so. `body` is sent as JSON, bytes as they are."""
        if not path.startswith("//"):
            path = f"/v1/codeq{path}"
        connection = http.client.HTTPConnection(urlsplit(FACTS["http"]).netloc, timeout=PATIENCE + 30)
        head = {"Authorization": f"Bearer {TOKENS.get(token, token)}", **(headers or {})}
        data = None
        if body is not NOTHING:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            head["Content-Type"] = "application/json"
        try:
            connection.request(method, path.replace("//", "/", 1), data, head)
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        if expect is not None:
            self.assertEqual(answer.status, expect, answer)
        return answer

    def refused(self, status, error, method, path, body=NOTHING, token="worker"):
        """The request is refused with this status, and the text that codeQ's clients read."""
        answer = self.call(method, path, body, token, status)
        self.assertEqual(answer.json["error"], error, answer)
        return answer.json

    def create(self, **fields):
        """A task in the case's queue."""
        task = {"command": self.command, "payload": {"n": 1}, **fields}
        return self.call("POST", "/tasks", task, expect=202).json

    def claim(self, token="worker", **fields):
        """A task of the case's queue, which must be there."""
        body = {"commands": [self.command], "leaseSeconds": 60, "waitSeconds": 5, **fields}
        return self.call("POST", "/tasks/claim", body, token, 200).json

    def claimed(self, **fields):
        """A task that `worker` holds."""
        task = self.create(**fields)
        held = self.claim()
        self.assertEqual(held["id"], task["id"])
        return held

    def nothing_to_claim(self):
        self.call("POST", "/tasks/claim", {"commands": [self.command]}, "worker", 204)

    def complete(self, task, **fields):
        body = {"status": "COMPLETED", "result": {"ok": True}, **fields}
        return self.call("POST", f"/tasks/{task['id']}/result", body, "worker", 200).json

    def task(self, task_id):
        return self.call("GET", f"/tasks/{task_id}", expect=200).json


def mint(**claims):
    """A token of the issuer. A claim of None is left out."""
    now = int(time.time())
    all_claims = {"iss": FACTS["issuer"], "aud": FACTS["audience"], "exp": now + 300, "iat": now, "tid": "acme", **claims}
    body = json.dumps({name: value for name, value in all_claims.items() if value is not None})
    connection = http.client.HTTPConnection(urlsplit(FACTS["mint"]).netloc, timeout=PATIENCE)
    connection.request("POST", "/mint", body)
    return connection.getresponse().read().decode()


class Receiver:
    """Somebody's HTTP server, which takes webhooks."""

    def __init__(self):
        self.calls = queue.Queue()
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                calls.put((dict(self.headers.items()), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self):
        headers, body = self.calls.get(timeout=PATIENCE)
        return {name.lower(): value for name, value in headers.items()}, body

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def messages():
    """The messages of both streams by full name, from the descriptor set."""
    described = descriptor_pb2.FileDescriptorSet.FromString(Path(FACTS["messages"]).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name for file in described.file], pool)


MESSAGES = messages()


class Stream:
    """One bidirectional stream: `send` an event, `take` the next answer."""

    package = event = service = address = None

    def __init__(self, metadata=None):
        self.said = queue.Queue()
        self.channel = grpc.insecure_channel(FACTS[self.address], options=[("grpc.max_receive_message_length", -1)])
        call = self.channel.stream_stream(
            f"/{self.package}.{self.service}/Stream",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[f"{self.package}.ServerEvent"].FromString,
        )
        self.answers = call(iter(self.said.get, None), timeout=2 * PATIENCE, metadata=metadata)

    def message(self, name, **fields):
        return MESSAGES[f"{self.package}.{name}"](**fields)

    def send(self, **event):
        self.said.put(self.message(self.event, **event))

    def take(self, kind):
        answer = next(self.answers)
        if answer.WhichOneof("event") != kind:
            raise AssertionError(f"expected {kind}, got {str(answer)[:1000]}")
        return getattr(answer, kind)

    def hello(self, token, **fields):
        self.send(hello=self.message("Hello", token=TOKENS.get(token, token), **fields))
        return self.take("hello_ack")

    def ends(self):
        """How the call ended: its status and what it says."""
        try:
            raise AssertionError(f"{next(self.answers)} instead of the end")
        except StopIteration:
            return self.answers.code().name, ""
        except grpc.RpcError as error:
            return error.code().name, error.details()

    def half_close(self):
        self.said.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answers.cancel()
        self.said.put(None)
        self.channel.close()


class Producer(Stream):
    """What codeQ's producer SDK says."""

    package, event, service, address = "producerpb", "ProducerEvent", "ProducerStream", "producer"

    def create(self, **fields):
        self.send(create=self.message("CreateTask", **{"seq": 1, **fields}))
        return self.take("create_ack")

    def create_batch(self, tasks):
        created = [self.message("CreateTask", **{"seq": seq, **task}) for seq, task in enumerate(tasks, 1)]
        self.send(create_batch=self.message("CreateTaskBatch", tasks=created))
        return self.take("create_ack_batch").acks


class Worker(Stream):
    """What codeQ's worker SDK says."""

    package, event, service, address = "workerpb", "WorkerEvent", "WorkerStream", "worker"

    def ready(self, *commands, count=1):
        self.send(ready=self.message("Ready", commands=commands, lease_seconds=60, count=count))

    def claim(self, *commands):
        self.ready(*commands)
        return self.take("task").task

    def ask(self, ack, event, **fields):
        """An event, and its acknowledgement."""
        name = "".join(part.capitalize() for part in event.split("_"))
        self.send(**{event: self.message(name, **fields)})
        return self.take(ack)
