"""What attackers speak: HTTP/1.1 by the standard library or by hand, HTTP/2 frames by hand, a little protobuf.

By hand because a well-behaved client library would not send what an attacker sends.
"""

import http.client
import json
import socket
import struct
import threading
import time

from harness import TOKENS

BASE = "/v1/codeq"


class Client:
    """A tenant's keep-alive connection. Reconnects by itself after a failure."""

    def __init__(self, server, tenant, timeout=30):
        self.tenant = tenant
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=timeout)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method, path, body=None, base=BASE):
        """Status and body. An OSError if there is no answer."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        headers = {"Authorization": f"Bearer {TOKENS[self.tenant]}"}
        try:
            self.connection.request(method, base + path, body, headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            self.connection.close()
            raise OSError(f"no answer: {error!r}") from error
        except OSError:
            self.connection.close()
            raise

    def must(self, method, path, body=None):
        status, answer = self.ask(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        return json.loads(answer) if answer else None

    def all_of(self, path, body):
        """Repeats a bulk call until it has nothing left to do, by cursor or by what remains."""
        for _ in range(10_000):
            done = self.must("POST", path, body)
            if done.get("nextCursor"):
                body = {**body, "cursor": done["nextCursor"]}
            elif not done.get("remaining") and not done.get("deleted"):
                return

    def close(self):
        self.connection.close()


def request(server, tenant, method, path, headers=""):
    """The head of a request as bytes."""
    return (f"{method} {BASE}{path} HTTP/1.1\r\nHost: 127.0.0.1:{server.http}\r\n"
            f"Authorization: Bearer {TOKENS[tenant]}\r\n{headers}\r\n").encode()


def connect(port, receive_buffer=None, timeout=5):
    made = socket.socket()
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(timeout)
    try:
        made.connect(("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    return made


# --- HTTP/2 ---

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_MAX = 16_384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hpack(fields):
    """Literals that touch no table; names and values are shorter than 127 bytes."""
    out = b""
    for name, value in fields:
        out += b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return out


class Http2:
    """A connection to a gRPC port. `send` obeys flow control, `write` ignores it."""

    def __init__(self, port):
        self.socket = connect(port)
        self.socket.settimeout(None)
        self.closed = False
        self.sent = 0
        self.reset = {}
        self.received = {}
        self.room = threading.Condition()
        self.windows = {0: 65_535}
        self.initial = 65_535
        self.next_stream = 1
        self._send = threading.Lock()
        self.write(PREFACE + frame(SETTINGS, 0, 0))
        threading.Thread(target=self._read, daemon=True).start()

    def write(self, data):
        with self._send:
            self.socket.sendall(data)
            self.sent += len(data)

    def open(self, path):
        """Sends the head of a call, and returns its stream."""
        stream = self.next_stream
        self.next_stream += 2
        with self.room:
            self.windows[stream] = self.initial
        head = hpack([(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1"),
                      ("content-type", "application/grpc"), ("te", "trailers")])
        self.write(frame(HEADERS, 4, stream, head))
        return stream

    def send(self, stream, data, patience=5.0):
        """Sends all data as flow control permits. False if there is no room for `patience` seconds, or the stream has ended."""
        at = 0
        view = memoryview(data)
        while at < len(data):
            with self.room:
                deadline = time.monotonic() + patience
                while True:
                    if self.closed or stream in self.reset:
                        return False
                    room = min(self.windows[0], self.windows[stream], FRAME_MAX, len(data) - at)
                    if room > 0:
                        break
                    if not self.room.wait(max(0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                        return False
                self.windows[0] -= room
                self.windows[stream] -= room
            try:
                self.write(frame(DATA, 0, stream, bytes(view[at:at + room])))
            except OSError:
                return False
            at += room
        return True

    def _exactly(self, count):
        parts = b""
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise OSError("closed")
            parts += part
        return parts

    def _read(self):
        try:
            while True:
                head = self._exactly(9)
                length = int.from_bytes(head[:3], "big")
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                self._take(kind, flags, stream, self._exactly(length))
        except OSError:
            pass
        with self.room:
            self.closed = True
            self.room.notify_all()

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == 4:
                    with self.room:
                        for known in self.windows:
                            if known:
                                self.windows[known] += value - self.initial
                        self.initial = value
                        self.room.notify_all()
            self.write(frame(SETTINGS, 1, 0))
        elif kind == WINDOW_UPDATE:
            with self.room:
                self.windows[stream] = self.windows.get(stream, self.initial) + int.from_bytes(payload, "big")
                self.room.notify_all()
        elif kind == PING and not flags & 1:
            self.write(frame(PING, 1, 0, payload))
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            with self.room:
                self.reset[stream] = int.from_bytes(payload, "big") if kind == RST_STREAM else 0
                self.room.notify_all()
        elif kind == DATA:
            self.received[stream] = self.received.get(stream, 0) + len(payload)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


# --- protobuf and gRPC ---

WORKER_PATH = "/workerpb.WorkerStream/Stream"
PRODUCER_PATH = "/producerpb.ProducerStream/Stream"


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field of bytes or a nested message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(value):
    """A gRPC message in its frame."""
    return b"\x00" + struct.pack(">I", len(value)) + value


def hello(tenant, name=""):
    return message(field(1, field(1, TOKENS[tenant].encode()) + (field(2, name.encode()) if name else b"")))


def ready(commands):
    """A worker's Ready; `commands` is the encoded list."""
    return message(field(2, commands))
