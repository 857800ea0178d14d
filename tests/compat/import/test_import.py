"""scripts/import-codeq on a real Redis with a keyspace as codeQ leaves one."""

import json
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client import FACTS, TOKENS, Case

SCRIPT = Path(__file__).parents[3] / "scripts/import-codeq"
ENQUEUED = "enqueued, now or by an earlier run"


class Import(Case):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        server = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.directory],
            stdout=subprocess.DEVNULL,
        )
        self.addCleanup(server.wait, 30)
        self.addCleanup(server.terminate)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                time.sleep(0.05)
        (self.directory / "token").write_text(f"{TOKENS['producer']}\n")

    def redis(self, *words):
        command = ["redis-cli", "-p", str(self.port), "-e", *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def keep(self, place, score=None, tenant="acme", **fields):
        """A task in codeQ's keyspace, in one of its queues."""
        task = {"id": secrets.token_hex(16), "command": self.command, "payload": '{"a":  1}', "status": "PENDING",
                "tenantId": tenant, "maxAttempts": 5, "createdAt": "2026-01-25T10:00:00-03:00", **fields}
        self.redis("HSET", "codeq:tasks", task["id"], json.dumps(task))
        key = f"codeq:q:{self.command}:{tenant}:{place}" if tenant else f"codeq:q:{self.command}:{place}"
        if place.startswith("pending"):
            self.redis("LPUSH", key, task["id"])
        elif place == "delayed":
            self.redis("ZADD", key, score, task["id"])
        else:
            self.redis("SADD", key, task["id"])
        return task["id"]

    def run_script(self, *options, tenant="acme", code=0):
        command = [sys.executable, SCRIPT, "--redis", f"127.0.0.1:{self.port}", "--tenant", tenant, "--url", FACTS["http"],
                   "--token-file", self.directory / "token", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def stats(self):
        stats = self.call("GET", f"/admin/queues/{self.command}", token="admin", expect=200).json
        return stats["ready"], stats["delayed"]

    def test_import(self):
        """Pending tasks keep their order, delayed ones their time; others come only on request; a second run adds none."""
        for n in range(150):
            self.keep("pending:0", payload=f'{{"n": {n},  "big": 9007199254740993}}')
        urgent = self.keep("pending:7", priority=7, attempts=3, webhook="http://127.0.0.1:9/hook", payload='"first"')
        self.redis("SET", f"codeq:idempo:key-{self.command}", urgent)
        due = int(time.time()) + 3600
        self.keep("delayed", score=due, payload='"later"')
        self.keep("delayed", score=int(time.time()) - 10, payload='"due"')
        self.keep("inprog", status="IN_PROGRESS", attempts=1)
        self.keep("dlq", status="FAILED", attempts=5, error="MAX_ATTEMPTS")
        self.keep("pending:0", tenant="globex")

        self.assertEqual(self.run_script("--dry-run"), [
            "1 dead letters, not imported", "1 in progress, not imported", "1 of other tenants",
            "2 would be enqueued (delayed)", "151 would be enqueued (pending)",
        ])
        self.assertEqual(self.stats(), (0, 0))
        left = ["1 dead letters, not imported", "1 in progress, not imported", "1 of other tenants"]
        expected = sorted([f"153 {ENQUEUED}", *left], key=lambda line: line.split(" ", 1)[1])
        self.assertEqual(self.run_script(), expected)
        self.assertEqual(self.run_script(), expected)
        self.assertEqual(self.stats(), (152, 1))

        first = self.claim()
        self.assertEqual((first["payload"], first["priority"], first["maxAttempts"]), ('"first"', 7, 2))
        self.assertEqual(first["webhook"], "http://127.0.0.1:9/hook")
        order = [self.claim()["payload"] for _ in range(150)]
        self.assertEqual(order, [f'{{"n": {n},  "big": 9007199254740993}}' for n in range(150)])
        # The producer sends it again with its key, as it would have done to the original codeQ.
        again = self.call("POST", "/tasks", {
            "command": self.command, "payload": "first", "idempotencyKey": f"key-{self.command}",
        }, expect=202).json
        self.assertEqual(again["id"], first["id"])

        self.assertIn(f"155 {ENQUEUED}", self.run_script("--in-progress", "--dead-letters"))
        self.assertEqual(self.stats(), (3, 1))

    def test_tasks_that_cannot_be_imported(self):
        """Each task that cannot be enqueued is named; the others are enqueued."""
        good = self.keep("pending:0")
        broken = self.keep("pending:0", payload="{")
        not_a_number = self.keep("pending:0", payload="NaN")
        empty = self.keep("pending:0", payload="null")
        self.redis("LPUSH", f"codeq:q:{self.command}:acme:pending:0", "gone")
        lines = self.run_script(code=1)
        self.assertIn(f"1 {ENQUEUED}", lines)
        for task_id in (broken, not_a_number, empty, "gone"):
            self.assertTrue(any(line.startswith(f"not enqueued: {task_id}: ") for line in lines), lines)
        self.assertFalse(any(good in line for line in lines), lines)

    def test_no_tenant(self):
        """Keyspaces from before there were tenants have no tenant in their keys."""
        self.keep("pending:3", tenant="")
        self.assertEqual(self.run_script(tenant=""), [f"1 {ENQUEUED}"])

    def test_an_import_that_cannot_run(self):
        """A token that is refused, and a key that is not a queue: exit code 2."""
        self.keep("pending:0")
        (self.directory / "token").write_text("nobody")
        self.run_script(code=2)
        self.redis("SET", f"codeq:q:{self.command}:acme:pending:0", "not a queue")
        self.run_script(code=2)
