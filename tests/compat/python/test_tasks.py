"""A task's life over HTTP, as codeQ's REST clients and its command line drive it."""

import json
import threading
from datetime import datetime, timedelta, timezone

from client import Case


class Tasks(Case):
    def test_life_cycle(self):
        """Enqueue, read, claim, heartbeat, complete, read the result: codes, shapes and fields."""
        created = self.call("POST", "/tasks", {
            "command": self.command, "payload": {"jobId": "j-1"}, "priority": 5, "maxAttempts": 8,
            "webhook": "http://127.0.0.1:9/hook",
        }, expect=202).json
        self.assertEqual(created["payload"], '{"jobId": "j-1"}')
        expected = {"command": self.command, "priority": 5, "maxAttempts": 8, "status": "PENDING",
                    "lastKnownLocation": "PENDING_LIST", "tenantId": "acme", "webhook": "http://127.0.0.1:9/hook"}
        self.assertEqual({name: created[name] for name in expected}, expected)
        self.assertEqual(self.task(created["id"])["createdAt"], created["createdAt"])
        self.refused(404, "result not found", "GET", f"/tasks/{created['id']}/result", token="producer")

        held = self.claim()
        self.assertEqual((held["id"], held["status"], held["workerId"]), (created["id"], "IN_PROGRESS", "worker-1"))
        self.assertIn("leaseUntil", held)
        self.assertNotIn("attempts", held)
        beat = self.call("POST", f"/tasks/{held['id']}/heartbeat", {"extendSeconds": 120}, "worker", 200).json
        self.assertIs(beat["ok"], True)
        record = self.complete(held, result={"big": 2**53 + 1})
        self.assertEqual((record["taskId"], record["status"]), (held["id"], "COMPLETED"))
        read = self.call("GET", f"/tasks/{held['id']}/result?waitSeconds=5", expect=200).json
        self.assertEqual(read["result"]["result"], {"big": 2**53 + 1})
        self.assertEqual((read["task"]["status"], read["task"]["resultKey"]), ("COMPLETED", f"codeq/results/{held['id']}"))

    def test_explicit_nulls(self):
        """Generated clients send `null` for every option that is not set."""
        task = self.create(priority=None, maxAttempts=None, webhook=None, idempotencyKey=None, runAt=None, delaySeconds=None)
        self.assertEqual(task["maxAttempts"], 5)
        body = {"commands": None, "leaseSeconds": None, "waitSeconds": None}
        self.call("POST", "/tasks/claim", {**body, "commands": [self.command]}, "worker", 200)
        path = f"/tasks/{task['id']}"
        self.call("POST", f"{path}/heartbeat", {"extendSeconds": None}, "worker", 200)
        nack = self.call("POST", f"{path}/nack", {"delaySeconds": None, "reason": None}, "worker", 200).json
        self.assertEqual(nack["status"], "requeued")
        held = self.claimed()
        self.complete(held, error=None, artifacts=None)
        held = self.claimed()
        failed = {"status": "FAILED", "result": None, "error": "no", "artifacts": None}
        self.call("POST", f"/tasks/{held['id']}/result", failed, "worker", 200)

    def test_bodies_that_are_empty_or_null(self):
        """Where every field is optional, no body, an empty one and `null` are the same."""
        narrow = {"token": "narrow"}
        for body in (b"", b"null", b"{}"):
            with self.subTest(body=body):
                self.call("POST", "/tasks/claim", body, expect=204, **narrow)
                task = self.claimed()
                beat = self.call("POST", f"/tasks/{task['id']}/heartbeat", body, "worker", 200).json
                self.assertTrue(beat["ok"])
                answer = self.call("POST", f"/tasks/{task['id']}/abandon", body, "worker", 200).json
                self.assertEqual(answer, {"status": "requeued"})
                self.claim()
                answer = self.call("POST", f"/tasks/{task['id']}/nack", body, "worker", 200).json
                self.assertEqual(answer["status"], "requeued")
                self.call("POST", "/admin/tasks/cleanup", body, "admin", 200)
        # Where a body is needed, a missing one is invalid.
        for body in (b"", b"null"):
            self.refused(400, "invalid body", "POST", "/tasks", body, "producer")

    def test_trailing_slash(self):
        """Routes with a trailing slash are served, or redirect to those without one."""
        def follow(method, path, body, token):
            answer = self.call(method, path, body, token)
            if answer.status in (307, 308):
                answer = self.call(method, "/" + answer.headers["Location"], body, token)
            return answer

        created = follow("POST", "/tasks/", {"command": self.command, "payload": {}}, "producer")
        self.assertEqual(created.status, 202, created)
        claimed = follow("POST", "/tasks/claim/", {"commands": [self.command]}, "worker")
        self.assertEqual(claimed.status, 200, claimed)
        task_id = claimed.json["id"]
        answer = follow("POST", f"/tasks/{task_id}/result/", {"status": "COMPLETED", "result": {}}, "worker")
        self.assertEqual(answer.status, 200, answer)

    def test_negative_numbers(self):
        """Negative leases, waits, delays and attempts mean the default; a negative delay of a new task is refused."""
        task = self.create(maxAttempts=-1)
        self.assertEqual(task["maxAttempts"], 5)
        self.claim(leaseSeconds=-1, waitSeconds=-1)
        self.call("POST", f"/tasks/{task['id']}/heartbeat", {"extendSeconds": -5}, "worker", 200)
        answer = self.call("POST", f"/tasks/{task['id']}/nack", {"delaySeconds": -1}, "worker", 200).json
        # The first delay of the backoff policy is random, up to 10 s: twice the base.
        self.assertTrue(0 <= answer["delaySeconds"] <= 10, answer)
        body = {"command": self.command, "payload": {}, "delaySeconds": -1}
        self.refused(400, "invalid 'delaySeconds' (must be >= 0)", "POST", "/tasks", body, "producer")

    def test_waits_that_are_not_numbers(self):
        """On routes that codeQ has, `waitSeconds=abc` counts as 0, and so does a negative number."""
        task = self.create()
        for wait in ("abc", "-1", "", "1.5"):
            with self.subTest(wait=wait):
                path = f"/tasks/{task['id']}/result?waitSeconds={wait}"
                self.refused(404, "result not found", "GET", path, token="producer")

    def test_commands_are_trimmed(self):
        """Blanks around a command are trimmed, and a blank command counts as missing."""
        task = self.create(command=f"  {self.command}\t")
        self.assertEqual(task["command"], self.command)
        self.assertEqual(self.claim(commands=["", f" {self.command} ", "   "])["id"], task["id"])
        for command in ("", "   ", "\t\n"):
            body = {"command": command, "payload": {}}
            self.refused(400, "invalid command", "POST", "/tasks", body, "producer")

    def test_idempotency_by_value(self):
        """The same key with the same JSON value, however it is written, is the same task; another value is 422."""
        def create(payload):
            body = f'{{"command":"{self.command}","idempotencyKey":"{self.command}","payload":{payload}}}'
            return self.call("POST", "/tasks", body.encode())

        first = create('{"a":1,"b":{"c":[1,2],"d":null}}')
        self.assertEqual(first.status, 202, first)
        again = create('{ "b": {"d": null, "c": [1, 2]}, "a": 1 }')
        self.assertEqual((again.status, again.headers["Idempotent-Replayed"]), (202, "true"), again)
        self.assertEqual(again.json["id"], first.json["id"])
        self.assertEqual(create('{"a":2,"b":{"c":[1,2],"d":null}}').status, 422)

    def test_nack(self):
        """A nack's delay is kept, 0 means at once, the reason is kept, and the last attempt makes a dead letter."""
        task = self.claimed(maxAttempts=3)
        path = f"/tasks/{task['id']}/nack"
        answer = self.call("POST", path, {"delaySeconds": 0, "reason": "busy"}, "worker", 200).json
        self.assertEqual(answer, {"status": "requeued", "delaySeconds": 0})
        held = self.claim(waitSeconds=0)
        self.assertEqual((held["attempts"], held["error"]), (1, "busy"))
        answer = self.call("POST", path, {"delaySeconds": 30}, "worker", 200).json
        self.assertEqual(answer, {"status": "requeued", "delaySeconds": 30})
        delayed = self.task(task["id"])
        self.assertEqual((delayed["status"], delayed["lastKnownLocation"]), ("PENDING", "DELAYED_ZSET"))
        self.nothing_to_claim()

    def test_the_last_attempt(self):
        """Nack and abandon of a task without attempts left make it a dead letter with a FAILED result."""
        for how, error in [("nack", "MAX_ATTEMPTS"), ("abandon", "MAX_ATTEMPTS")]:
            task = self.claimed(maxAttempts=1)
            answer = self.call("POST", f"/tasks/{task['id']}/{how}", {}, "worker", 200).json
            self.assertEqual(answer["status"], "dlq")
            read = self.call("GET", f"/tasks/{task['id']}/result", expect=200).json
            self.assertEqual((read["task"]["status"], read["task"]["lastKnownLocation"]), ("FAILED", "DLQ_SET"))
            self.assertEqual((read["result"]["status"], read["result"]["error"]), ("FAILED", error))

    def test_abandon(self):
        """Abandon costs an attempt, unless the worker says that it shall not."""
        task = self.claimed()
        self.call("POST", f"/tasks/{task['id']}/abandon", token="worker", expect=200)
        self.assertEqual(self.claim()["attempts"], 1)
        self.call("POST", f"/tasks/{task['id']}/abandon", {"penalty": False}, "worker", 200)
        self.assertEqual(self.claim()["attempts"], 1)

    def test_results(self):
        """Every answer to a result, in the order of the checks, with codeQ's texts."""
        unknown = "00000000-0000-4000-8000-000000000000"
        good = {"status": "COMPLETED", "result": {"ok": True}}
        self.refused(404, "task not found", "POST", f"/tasks/{unknown}/result", good)
        task = self.create()
        path = f"/tasks/{task['id']}/result"
        self.refused(409, "not-in-progress", "POST", path, good)
        self.claim()
        self.refused(403, "not-owner", "POST", path, good, "colleague")
        self.refused(400, "invalid status", "POST", path, {"status": "DONE"})
        for error in ({}, {"error": ""}, {"error": " \t"}):
            self.refused(400, "error required when status=FAILED", "POST", path, {"status": "FAILED", **error})
        self.refused(404, "task not found", "GET", path, token="stranger")
        self.call("POST", path, good, "worker", 200)
        # After a lost answer, the same result again gets the same record; another outcome is refused.
        self.call("POST", path, good, "worker", 200)
        self.call("POST", path, {"status": "FAILED", "error": "no"}, "worker", 409)

    def test_worker_id_in_results(self):
        """codeQ's clients claim without a worker id and send one with results, alone and in a batch: it is not compared."""
        for worker_id in ("worker-1", "the-name-in-their-configuration", None):
            self.complete(self.claimed(), workerId=worker_id)
            held = self.claimed()
            item = {"taskId": held["id"], "workerId": worker_id, "status": "COMPLETED", "result": {}}
            answer = self.call("POST", "/tasks/batch/results", {"results": [item]}, "worker", 200).json
            self.assertEqual(answer["results"][0]["result"]["status"], "COMPLETED", answer)

    def test_result_and_error_together(self):
        """A record keeps both, whatever the status."""
        for status in ("COMPLETED", "FAILED"):
            held = self.claimed()
            body = {"status": status, "result": {"partial": 1}, "error": "half"}
            self.call("POST", f"/tasks/{held['id']}/result", body, "worker", 200)
            record = self.call("GET", f"/tasks/{held['id']}/result", expect=200).json["result"]
            self.assertEqual((record["result"], record["error"]), ({"partial": 1}, "half"))

    def test_refusals(self):
        """codeQ's error texts, where it has them."""
        unknown = "00000000-0000-4000-8000-000000000000"
        task = self.create()
        for what in ("heartbeat", "nack", "abandon"):
            self.refused(404, "not-found", "POST", f"/tasks/{unknown}/{what}", {})
            self.refused(409, "not-in-progress", "POST", f"/tasks/{task['id']}/{what}", {})
        self.claim()
        for what in ("heartbeat", "nack", "abandon"):
            self.refused(403, "not-owner", "POST", f"/tasks/{task['id']}/{what}", {}, "colleague")
        self.refused(404, "not found", "GET", f"/tasks/{unknown}", token="producer")
        self.refused(403, "event type not allowed", "POST", "/tasks/claim", {"commands": ["other"]}, "narrow")
        self.call("POST", f"/tasks/{task['id']}/result", {"status": "COMPLETED"}, "narrow", 403)
        new = {"command": self.command, "payload": {}}
        for error, body in [
            ("invalid body", b"{"),
            ("invalid webhook url", {**new, "webhook": "ftp://example.org"}),
            ("invalid 'runAt' (use RFC3339)", {**new, "runAt": "tomorrow"}),
        ]:
            self.refused(400, error, "POST", "/tasks", body, "producer")
        missing = self.call("POST", "/tasks", new, token="")
        self.assertEqual(missing.status, 401)
        self.assertIn("WWW-Authenticate", missing.headers)
        lost = self.call("GET", "/nothing/here", headers={"X-Request-Id": "mine"}, expect=404)
        self.assertEqual(lost.headers["X-Request-Id"], "mine")
        self.call("DELETE", "/tasks/claim", token="worker", expect=405)

    def test_delays(self):
        """`runAt` wins over `delaySeconds`; a moment in the past means now; a delayed task is invisible."""
        self.create(delaySeconds=60)
        self.nothing_to_claim()
        tomorrow = datetime.now(timezone(timedelta(hours=-3))) + timedelta(days=1)
        self.create(runAt=tomorrow.isoformat(), delaySeconds=0)
        self.nothing_to_claim()
        past = self.create(runAt="2001-01-01T00:00:00Z", delaySeconds=60)
        self.assertEqual(self.claim(waitSeconds=0)["id"], past["id"])

    def test_priorities(self):
        """Higher first, then in order; values out of range are clamped."""
        order = [self.create(priority=priority)["id"] for priority in (0, 5, 99, -3)]
        taken = [self.claim()["id"] for _ in order]
        self.assertEqual(taken, [order[2], order[1], order[0], order[3]])

    def test_waiting_claim(self):
        """A claim that waits gets the task that comes."""
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(self.claim(waitSeconds=20)))
        waiting.start()
        task = self.create()
        waiting.join(30)
        self.assertEqual([answer["id"] for answer in answers], [task["id"]])

    def test_waiting_result(self):
        """Whoever waits for a result is answered when it is there."""
        task = self.claimed()
        answers = []
        path = f"/tasks/{task['id']}/result?waitSeconds=20"
        waiting = threading.Thread(target=lambda: answers.append(self.call("GET", path, expect=200).json))
        waiting.start()
        self.complete(task)
        waiting.join(30)
        self.assertEqual(answers[0]["result"]["status"], "COMPLETED")

    def test_payloads_as_sent(self):
        """Any JSON but null is a payload, comes back as text, and may be as large as the limit."""
        for payload in ('"text"', "[1,  2]", "0", "false", '{"n": 9007199254740993}', '"\\u00e9"'):
            body = f'{{"command":"{self.command}","payload":{payload}}}'.encode()
            task = self.call("POST", "/tasks", body, expect=202).json
            self.assertEqual(self.task(task["id"])["payload"], payload)
        large = "x" * 1_000_000
        task = self.create(payload=large)
        self.assertEqual(self.task(task["id"])["payload"], json.dumps(large))

    def test_artifacts(self):
        """An artifact with an address passes through, one with its content is stored and can be fetched."""
        task = self.claimed()
        record = self.complete(task, artifacts=[
            {"name": "there.txt", "url": "https://files.example.org/there.txt"},
            {"name": "here.txt", "contentBase64": "aGVsbG8=", "contentType": "text/plain"},
        ])
        there, here = record["artifacts"]
        self.assertEqual(there, {"name": "there.txt", "url": "https://files.example.org/there.txt"})
        self.assertEqual(here["name"], "here.txt")
        fetched = self.call("GET", f"/artifacts/{task['id']}/here.txt", expect=200)
        self.assertEqual(fetched.body, b"hello")
