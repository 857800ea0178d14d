"""Tokens of an issuer, as codeQ's identity service makes them."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from client import FACTS, Case, Producer, Worker, mint

SCOPES = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"


class Tokens(Case):
    def test_producer_without_subject(self):
        """A producer's token needs no `sub`."""
        body = {"command": self.command, "payload": {}}
        task = self.call("POST", "/tasks", body, mint(), 202).json
        self.assertEqual(task["tenantId"], "acme")
        with Producer() as stream:
            self.assertEqual(stream.hello(mint()).tenant_id, "acme")

    def test_issued_in_the_future(self):
        """`iat` matters only if it is further ahead than clocks may differ."""
        now = int(time.time())
        for ahead, status in [(30, 202), (600, 401)]:
            body = {"command": self.command, "payload": {}}
            self.call("POST", "/tasks", body, mint(sub="p", iat=now + ahead), status)

    def test_worker_token(self):
        """`eventTypes` as a list, `scope` as words; another command is not allowed."""
        token = mint(sub="jwt-worker", scope=SCOPES, eventTypes=[self.command])
        task = self.create()
        held = self.claim(token=token, commands=None)
        self.assertEqual((held["id"], held["workerId"]), (task["id"], "jwt-worker"))
        self.refused(403, "event type not allowed", "POST", "/tasks/claim", {"commands": ["other"]}, token)

    def test_admin_tokens(self):
        """An admin has the scope or the role."""
        for claims, status in [({"scope": "codeq:admin"}, 200), ({"role": "ADMIN"}, 200), ({}, 403)]:
            self.call("GET", f"/admin/queues/{self.command}", token=mint(sub="p", **claims), expect=status)

    def test_streams_outlive_their_token(self):
        """A stream outlives its token, but an expired token opens no new stream."""
        # Clocks may differ by 60 s, so this token is good for about three seconds more.
        expiry = {"iat": int(time.time()) - 120, "exp": int(time.time()) - 57}
        producer_token = mint(sub="brief", **expiry)
        worker_token = mint(sub="brief", scope=SCOPES, eventTypes=["*"], **expiry)
        with Producer() as producer, Worker() as worker:
            producer.hello(producer_token)
            worker.hello(worker_token)
            worker.ready(self.command)
            for _ in range(100):
                with Producer() as late:
                    late.send(hello=late.message("Hello", token=producer_token))
                    if next(iter([*_until_end(late)]), None) is None:
                        break
                time.sleep(0.1)
            else:
                self.fail("the token does not expire")
            ack = producer.create(command=self.command, payload=b"{}")
            self.assertTrue(ack.ok, ack)
            self.assertEqual(worker.take("task").task.id, ack.task_id)
            done = worker.ask("result_ack", "result", task_id=ack.task_id, status="COMPLETED")
            self.assertTrue(done.ok, done)

    def test_issuer_that_is_no_address(self):
        """With `jwksUrl`, `issuer` may be any text."""
        jwt = [{"issuer": "codeq-identity", "audience": "codeq-worker", "jwksUrl": "https://id.example.org/keys"}]
        with tempfile.TemporaryDirectory() as directory:
            config = Path(directory) / "codeq.yaml"
            config.write_text(json.dumps({"workerAuth": {"jwt": jwt}}))
            command = [FACTS["binary"], "config", "check", "--config", config]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


def _until_end(stream):
    """The next answer, or nothing if the stream was refused."""
    try:
        yield stream.take("hello_ack")
    except Exception as error:
        if "UNAUTHENTICATED" not in str(error):
            raise
