"""Results and notifications of available work, as a receiver that was written for codeQ takes them."""

import hashlib
import hmac
import json
import re
import time

from client import FACTS, Case, Receiver, mint

SEVEN = {"taskId", "eventType", "status", "result", "error", "artifacts", "completedAt"}


class Webhooks(Case):
    def verified(self, receiver):
        """The next call, whose signature holds, as JSON."""
        headers, body = receiver.next()
        signed = headers["x-codeq-timestamp"].encode() + b"." + body
        expected = hmac.new(FACTS["webhookSecret"].encode(), signed, hashlib.sha256).hexdigest()
        self.assertEqual(headers["x-codeq-signature"], expected)
        self.assertEqual(headers["content-type"].split(";")[0], "application/json")
        return json.loads(body)

    def test_result_callbacks(self):
        """Every callback has all seven keys, however the task ended."""
        with Receiver() as receiver:
            done = self.claimed(webhook=receiver.url)
            self.complete(done, result={"ok": 1}, artifacts=[{"name": "a", "url": "https://files.example.org/a"}])
            told = self.verified(receiver)
            self.assertEqual(set(told), SEVEN)
            self.assertEqual((told["taskId"], told["eventType"], told["status"]), (done["id"], self.command, "COMPLETED"))
            self.assertEqual((told["result"], told["error"]), ({"ok": 1}, ""))
            self.assertEqual(told["artifacts"], [{"name": "a", "url": "https://files.example.org/a"}])

            failed = self.claimed(webhook=receiver.url)
            self.call("POST", f"/tasks/{failed['id']}/result", {"status": "FAILED", "error": "broken"}, "worker", 200)
            told = self.verified(receiver)
            self.assertEqual(set(told), SEVEN)
            self.assertEqual((told["status"], told["error"]), ("FAILED", "broken"))
            self.assertFalse(told["result"])
            self.assertFalse(told["artifacts"])

            dead = self.claimed(webhook=receiver.url, maxAttempts=1)
            self.call("POST", f"/tasks/{dead['id']}/nack", {}, "worker", 200)
            told = self.verified(receiver)
            self.assertEqual(set(told), SEVEN)
            self.assertEqual((told["taskId"], told["status"], told["error"]), (dead["id"], "FAILED", "MAX_ATTEMPTS"))
        self.counted("result", 3)

    def counted(self, kind, times):
        """The metrics count deliveries by kind, outcome and command, once they are answered."""
        wanted = {f'kind="{kind}"', 'outcome="delivered"', f'command="{self.command}"'}
        for _ in range(100):
            text = self.call("GET", "//metrics", expect=200).body.decode()
            found = re.findall(r"^codeq_webhook_deliveries_total\{([^}]*)\} (\d+)", text, re.M)
            counts = [int(count) for labels, count in found if wanted <= set(labels.split(","))]
            if counts == [times]:
                return
            time.sleep(0.1)
        self.fail(f"{counts} deliveries are counted instead of {times}: {found}")

    def test_callbacks_of_a_batch(self):
        """Results submitted in a batch send callbacks too."""
        with Receiver() as receiver:
            held = [self.claimed(webhook=receiver.url) for _ in range(2)]
            items = [{"taskId": task["id"], "status": "COMPLETED", "result": {}} for task in held]
            self.call("POST", "/tasks/batch/results", {"results": items}, "worker", 200)
            told = [self.verified(receiver) for _ in held]
            self.assertEqual({one["taskId"] for one in told}, {task["id"] for task in held})
            self.assertTrue(all(set(one) == SEVEN for one in told))

    def test_notifications(self):
        """A subscription is created, notified and renewed; `claimUrl` is the path that codeQ sends."""
        with Receiver() as receiver:
            body = {"callbackUrl": receiver.url, "eventTypes": [self.command], "ttlSeconds": None, "deliveryMode": None,
                    "groupId": None, "minIntervalSeconds": None}
            made = self.call("POST", "/workers/subscriptions", body, "worker", 200).json
            self.assertEqual(set(made), {"subscriptionId", "expiresAt"})
            self.create()
            told = self.verified(receiver)
            self.assertEqual((told["eventType"], told["available"], told["queueDepth"]), (self.command, True, 1))
            self.assertEqual(told["claimUrl"], "/v1/codeq/tasks/claim")
            self.assertEqual(told["claimUrlAbsolute"], f"{FACTS['publicUrl']}/v1/codeq/tasks/claim")
            self.assertTrue({"sentAt", "notificationId"} <= set(told))
            path = f"/workers/subscriptions/{made['subscriptionId']}"
            for renewal in ({"ttlSeconds": 60}, b"", b"null"):
                renewed = self.call("POST", f"{path}/heartbeat", renewal, "worker", 200).json
                self.assertEqual(set(renewed), {"subscriptionId", "expiresAt"})
            self.call("POST", "/workers/subscriptions/nobody/heartbeat", {"ttlSeconds": 60}, "worker", 404)
            self.call("DELETE", path, token="worker")

    def test_subscriptions_that_are_refused(self):
        """Bad fields, event types that the token lacks; a token's own group is the default and the only one allowed."""
        with Receiver() as receiver:
            def subscribe(status, token="worker", **fields):
                body = {"callbackUrl": receiver.url, "eventTypes": [self.command], **fields}
                return self.call("POST", "/workers/subscriptions", body, token, status)

            subscribe(400, callbackUrl="nowhere")
            subscribe(400, deliveryMode="group")
            subscribe(400, deliveryMode="loudest")
            subscribe(403, "narrow")
            subscribe(403, mint(sub="w", scope="codeq:subscribe", eventTypes=["other"]))
            member = mint(sub="w", scope="codeq:subscribe", eventTypes=["*"], workerGroup="encoders")
            subscribe(200, member)
            subscribe(200, member, deliveryMode="group", groupId="encoders")
            self.assertIn(subscribe(None, member, deliveryMode="group", groupId="others").status, (400, 403))
