"""Tenant B: a steady load whose latency is what the attacks are measured by.

A process of its own, so that the attacker's work does not disturb the measurement. Every 1/RATE seconds a cycle
begins, whether or not the ones before it are done (open loop): enqueue, claim, result. Enqueue is measured from the
moment at which it was due, so that waiting for a free connection counts. Runs until its standard input is closed, then
prints one JSON object: samples of [start on the monotonic clock, milliseconds, what went wrong or null].
"""

import asyncio
import json
import os
import sys
import time

RATE = 100
CONNECTIONS = 32
# Cycles under way at once. Beyond it a cycle that is due is not begun, and counts as a failure.
UNDER_WAY_MAX = 400
TIMEOUT = 5.0


class Connection:
    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def open(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    def close(self):
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None

    async def ask(self, head, body):
        await self.open()
        self.writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = 0
        for line in answer.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        body = await self.reader.readexactly(length) if length else b""
        if b"connection: close" in answer.lower():
            self.close()
        return status, body


class Victim:
    def __init__(self, port, token):
        self.port, self.token = port, token
        self.samples = []
        self.pool = asyncio.Queue()
        self.under_way = 0

    def head(self, path):
        return (f"POST /v1/codeq{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                f"Authorization: Bearer {self.token}\r\nContent-Length: ").encode()

    async def call(self, path, body, due, wanted):
        """One measured request. Its answer, or None if it went wrong."""
        connection = None
        wrong = answer = None
        try:
            async with asyncio.timeout_at(due + TIMEOUT):
                connection = await self.pool.get()
                status, answer = await connection.ask(self.head(path), body)
            if status not in wanted:
                wrong, answer = f"status {status}", None
        except TimeoutError:
            wrong, answer = "timeout", None
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            wrong, answer = type(error).__name__, None
        if connection is not None:
            if wrong and not wrong.startswith("status"):
                connection.close()
            self.pool.put_nowait(connection)
        self.samples.append([due, (time.monotonic() - due) * 1000, wrong])
        return answer

    async def cycle(self, due):
        self.under_way += 1
        try:
            if await self.call("/tasks", b'{"command":"b-work","payload":{"n":1}}', due, (202,)) is None:
                return
            body = b'{"commands":["b-work"],"leaseSeconds":60,"waitSeconds":2}'
            task = await self.call("/tasks/claim", body, time.monotonic(), (200, 204))
            if not task:
                return
            path = f"/tasks/{json.loads(task)['id']}/result"
            await self.call(path, b'{"status":"COMPLETED","result":{}}', time.monotonic(), (200,))
        finally:
            self.under_way -= 1

    async def run(self):
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_reader(0, stop.set)
        connections = [Connection(self.port) for _ in range(CONNECTIONS)]
        for connection in connections:
            await connection.open()
            self.pool.put_nowait(connection)
        tasks = set()
        # The loop's clock is the monotonic one, as timeout_at needs it.
        due = time.monotonic()
        while not stop.is_set():
            due += 1 / RATE
            try:
                await asyncio.wait_for(stop.wait(), max(0, due - time.monotonic()))
            except TimeoutError:
                pass
            if self.under_way >= UNDER_WAY_MAX:
                self.samples.append([due, TIMEOUT * 1000, "not begun"])
                continue
            task = asyncio.create_task(self.cycle(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=2)


def main():
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        pass
    victim = Victim(int(sys.argv[1]), sys.argv[2])
    asyncio.run(victim.run())
    json.dump(victim.samples, sys.stdout)


if __name__ == "__main__":
    main()
