"""Batches over HTTP: of tasks, of claims, of results."""

from client import Case


class Batches(Case):
    def test_create_batch(self):
        """Answers come in the order of the items."""
        items = [{"command": self.command, "payload": n, "priority": None} for n in range(100)]
        answer = self.call("POST", "/tasks/batch", {"tasks": items}, expect=200).json
        self.assertEqual([item["task"]["payload"] for item in answer["results"]], [str(n) for n in range(100)])
        body = {"tasks": items + items[:1]}
        self.refused(400, "batch size exceeds maximum of 100", "POST", "/tasks/batch", body, "producer")

    def test_create_batch_with_bad_items(self):
        """A bad item, whatever is wrong with it, fails alone."""
        good = {"command": self.command, "payload": {}}
        bad = [
            ({"payload": {}}, "invalid command"),
            ({"command": "  ", "payload": {}}, "invalid command"),
            ({"command": self.command}, None),
            ({"command": 7, "payload": {}}, None),
            ({**good, "priority": "high"}, None),
            ({**good, "webhook": "nowhere"}, "invalid webhook url"),
            ({**good, "runAt": "soon"}, "invalid 'runAt' (use RFC3339)"),
            ({**good, "delaySeconds": -1}, "invalid 'delaySeconds' (must be >= 0)"),
            ({**good, "prioritiy": 1}, None),
            (None, None),
            ([], None),
        ]
        for item, error in bad:
            with self.subTest(item=item):
                answer = self.call("POST", "/tasks/batch", {"tasks": [good, item, good]}, expect=200).json["results"]
                self.assertIn("task", answer[0])
                self.assertNotIn("task", answer[1])
                self.assertIn("task", answer[2])
                if error:
                    self.assertEqual(answer[1]["error"], error)
                else:
                    self.assertTrue(answer[1]["error"])

    def test_atomic_batch(self):
        """With `atomic=true`, one bad item refuses the whole batch."""
        good = {"command": self.command, "payload": {}}
        self.call("POST", "/tasks/batch?atomic=true", {"tasks": [good, {"payload": {}}]}, expect=400)
        self.nothing_to_claim()
        self.call("POST", "/tasks/batch?atomic=true", {"tasks": [good, good]}, expect=200)

    def test_claim_batch(self):
        """Up to `count`, 204 if there is none."""
        body = {"commands": [self.command], "count": 10, "leaseSeconds": 60, "waitSeconds": 0}
        self.call("POST", "/tasks/claim/batch", body, "worker", 204)
        ids = [self.create()["id"] for _ in range(3)]
        tasks = self.call("POST", "/tasks/claim/batch", body, "worker", 200).json["tasks"]
        self.assertEqual([task["id"] for task in tasks], ids)

    def test_results_batch_with_bad_items(self):
        """A bad result fails alone; FAILED needs an error text; answers name their task."""
        held = [self.claimed() for _ in range(4)]
        unknown = "00000000-0000-4000-8000-000000000000"
        done = {"status": "COMPLETED", "result": {"n": 1}}
        items = [
            {"taskId": held[0]["id"], **done},
            {"taskId": unknown, **done},
            {"taskId": held[1]["id"], "status": "FAILED", "error": "  "},
            {"taskId": held[2]["id"], "status": "MAYBE"},
            {"taskId": held[3]["id"], "status": "FAILED", "error": "broken", "result": None},
        ]
        answer = self.call("POST", "/tasks/batch/results", {"results": items}, "worker", 200).json["results"]
        self.assertEqual([item["taskId"] for item in answer], [item["taskId"] for item in items])
        self.assertEqual([item.get("error") for item in answer], [
            None, "task not found", "error required when status=FAILED", "invalid status", None,
        ])
        self.assertEqual([answer[n]["result"]["status"] for n in (0, 4)], ["COMPLETED", "FAILED"])
