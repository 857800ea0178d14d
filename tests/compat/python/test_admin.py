"""What codeQ's command line and dashboards ask: queues, cleanup, topics, metrics, the state of replication."""

import re

from client import Case


class Admin(Case):
    def test_queues(self):
        """The flat map of codeQ's keys, and the statistics of one queue."""
        self.create(priority=3)
        self.create(delaySeconds=60)
        held = self.claimed(priority=9)
        key = f"codeq:q:{self.command}:acme"
        queues = self.call("GET", "/admin/queues", token="admin", expect=200).json
        mine = {name: count for name, count in queues.items() if name.startswith(f"{key}:")}
        self.assertEqual(mine, {f"{key}:pending:3": 1, f"{key}:delayed": 1, f"{key}:inprog": 1})
        stats = self.call("GET", f"/admin/queues/{self.command}", token="admin", expect=200).json
        expected = {"command": self.command, "ready": 1, "delayed": 1, "inProgress": 1, "dlq": 0}
        self.assertEqual({name: stats.get(name) for name in expected}, expected)
        self.call("GET", "/admin/queues", token="producer", expect=403)
        self.complete(held)

    def test_cleanup(self):
        """Without `before` it removes what has expired, not what has just finished; `limit` is clamped."""
        task = self.claimed()
        self.complete(task)
        answer = self.call("POST", "/admin/tasks/cleanup", {"limit": 1_000_000}, "admin", 200).json
        self.assertEqual(sorted(answer), ["before", "deleted", "limit"])
        self.assertEqual(self.task(task["id"])["status"], "COMPLETED")

    def test_topics(self):
        """Writing the same policy again changes nothing, whatever the order of its tiers; deleting it again succeeds."""
        path = f"/admin/topics/{self.command}"
        policy = {"priorityTiers": [9, 1, 5], "maxAttempts": 3, "retentionSeconds": 60, "maxConsumers": 0}
        created = self.call("PUT", path, policy, "admin", 201).json
        self.assertEqual((created["topicName"], created["version"]), (self.command, 1))
        again = self.call("PUT", path, {**policy, "priorityTiers": [5, 9, 1]}, "admin", 200).json
        self.assertEqual(again["version"], 1)
        self.assertEqual(sorted(again["policy"]["priorityTiers"]), [1, 5, 9])
        changed = self.call("PUT", path, {**policy, "maxAttempts": 4}, "admin", 200).json
        self.assertEqual(changed["version"], 2)
        self.call("DELETE", path, token="admin", expect=400)
        for _ in range(2):
            self.call("DELETE", f"{path}?deletionPolicy=Delete", token="admin", expect=204)
        self.call("GET", path, token="admin", expect=404)

    def test_topics_that_are_refused(self):
        """A bad name or value is 422 and names the field, an unknown field is 400."""
        for name in ("Upper", "-dash", "under_score", "x" * 64):
            answer = self.call("PUT", f"/admin/topics/{name}", {"maxAttempts": 3}, "admin", 422)
            self.assertTrue(answer.json["field"], answer)
        path = f"/admin/topics/{self.command}"
        for field, value in [("priorityTiers", [11]), ("maxAttempts", 0), ("maxConsumers", -1), ("retentionSeconds", -1)]:
            answer = self.call("PUT", path, {field: value}, "admin", 422)
            self.assertEqual(answer.json["field"].split(".")[-1].split("[")[0], field, answer)
        self.call("PUT", path, {"priorityTires": [1]}, "admin", 400)

    def test_unknown_fields(self):
        """A mistyped field or parameter is refused by its name, and changes nothing."""
        task = self.create()
        for method, path, body, token, name in [
            ("POST", "/tasks/claim", {"command": self.command}, "worker", "command"),
            ("POST", "/tasks", {"command": self.command, "payload": {}, "prioritiy": 1}, "producer", "prioritiy"),
            ("POST", f"/admin/dlq/{self.command}/purge", {"errorContians": "x"}, "admin", "errorContians"),
            ("POST", "/admin/tasks/cleanup", {"befor": "2026-01-01T00:00:00Z"}, "admin", "befor"),
            ("POST", f"/tasks/{task['id']}/nack", {"error": "no"}, "worker", "error"),
            ("GET", f"/tasks?comand={self.command}", None, "producer", "comand"),
        ]:
            with self.subTest(path=path):
                answer = self.call(method, path, *([] if body is None else [body]), token=token, expect=400)
                self.assertEqual(answer.json["code"], "unknown_field", answer)
                self.assertIn(name, answer.json["detail"])
        self.assertEqual(self.task(task["id"])["status"], "PENDING")

    def test_metrics_by_accept(self):
        """The text format of Prometheus 0.0.4, unless OpenMetrics is asked for."""
        self.complete(self.claimed())
        self.create()
        for accept in ({}, {"Accept": "*/*"}, {"Accept": "text/plain"}):
            plain = self.call("GET", "//metrics", headers=accept, expect=200)
            self.assertIn("version=0.0.4", plain.headers["Content-Type"])
            self.assertNotIn(b"# EOF", plain.body)
        asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        open_metrics = self.call("GET", "//metrics", headers={"Accept": asked}, expect=200)
        self.assertIn("application/openmetrics-text", open_metrics.headers["Content-Type"])
        self.assertTrue(open_metrics.body.rstrip().endswith(b"# EOF"))
        text = plain.body.decode()
        self.assertRegex(text, rf'latency_seconds_count\{{[^}}]*command="{self.command}"[^}}]*status="COMPLETED"|'
                               rf'latency_seconds_count\{{[^}}]*status="COMPLETED"[^}}]*command="{self.command}"')
        self.assertTrue(re.search(rf'oldest\w*\{{[^}}]*command="{self.command}"', text), "the age of the oldest task")

    def test_replication_state(self):
        """Clients that look for the leader find a server that is one."""
        state = self.call("GET", "/raft/status", expect=200).json
        self.assertEqual(set(state), {"enabled", "numGroups", "groups"})
        self.call("GET", "//healthz", expect=200)
