"""Both streams, as codeQ's Go SDKs use them."""

from datetime import datetime, timedelta, timezone

from client import TOKENS, Case, Producer, Worker


class Streams(Case):
    def producer(self):
        stream = self.enterContext(Producer())
        stream.hello("producer")
        return stream

    def worker(self, token="worker"):
        stream = self.enterContext(Worker())
        stream.hello(token)
        return stream

    def test_hello(self):
        """The first event must be a Hello with a good token, or else the call ends with codeQ's error."""
        with Producer() as stream:
            ack = stream.hello("producer")
            self.assertEqual((ack.tenant_id, ack.subject), ("acme", "cart"))
        with Worker() as stream:
            ack = stream.hello("worker", worker_id="worker-1")
            self.assertEqual((ack.tenant_id, ack.worker_id), ("acme", "worker-1"))
        with Worker([("authorization", f"Bearer {TOKENS['worker']}")]) as stream:
            self.assertEqual(stream.hello("").tenant_id, "acme")
        for token, code, words in [("", "UNAUTHENTICATED", "missing token"), ("nobody", "UNAUTHENTICATED", "auth failed: ")]:
            for kind in (Producer, Worker):
                with kind() as stream:
                    stream.send(hello=stream.message("Hello", token=token))
                    ended = stream.ends()
                    self.assertEqual(ended[0], code)
                    self.assertTrue(ended[1].startswith(words), ended)
        with Producer() as stream:
            stream.send(create=stream.message("CreateTask", seq=1, command=self.command))
            self.assertEqual(stream.ends(), ("FAILED_PRECONDITION", "first event must be Hello"))

    def test_token_with_a_newline(self):
        """A token that was read from a file ends with a newline, which does not count."""
        for kind, token in [(Producer, "producer"), (Worker, "worker")]:
            for around in ("{}\n", " {}\r\n"):
                with kind() as stream:
                    self.assertEqual(stream.hello(around.format(TOKENS[token])).tenant_id, "acme")

    def test_pipelined_creates(self):
        """Every create is acknowledged once, by its `seq`."""
        stream = self.producer()
        for seq in range(1, 501):
            stream.send(create=stream.message("CreateTask", seq=seq, command=self.command, payload=b'{"n": %d}' % seq))
        acks = [stream.take("create_ack") for _ in range(500)]
        self.assertEqual(sorted(ack.seq for ack in acks), list(range(1, 501)))
        self.assertTrue(all(ack.ok for ack in acks))
        self.assertEqual(len({ack.task_id for ack in acks}), 500)
        stream.half_close()
        self.assertEqual(stream.ends(), ("OK", ""))

    def test_create_fields(self):
        """Every field of a create reaches its task; times are kept, idempotency keys are honoured."""
        stream = self.producer()
        fields = {"command": self.command, "payload": b'{"a":  1}', "priority": 4, "max_attempts": 2,
                  "webhook": "http://127.0.0.1:9/hook", "idempotency_key": self.command}
        ack = stream.create(**fields)
        self.assertEqual(stream.create(**fields).task_id, ack.task_id)
        task = self.task(ack.task_id)
        expected = {"payload": '{"a":  1}', "priority": 4, "maxAttempts": 2, "webhook": "http://127.0.0.1:9/hook"}
        self.assertEqual({name: task[name] for name in expected}, expected)
        later = datetime.now(timezone.utc) + timedelta(minutes=10)
        for when in ({"run_at": later}, {"delay_seconds": 600}):
            ack = stream.create(command=self.command, payload=b"{}", **when)
            self.assertEqual(self.task(ack.task_id)["lastKnownLocation"], "DELAYED_ZSET")
        for bad in ({"payload": b"{"}, {"delay_seconds": -1}, {"webhook": "nowhere"}):
            ack = stream.create(seq=9, **{"command": self.command, "payload": b"{}", **bad})
            self.assertEqual((ack.seq, ack.ok), (9, False))
            self.assertTrue(ack.error_message)

    def test_create_without_payload(self):
        """A create without payload stores `null`, alone and in a batch."""
        stream = self.producer()
        ack = stream.create(command=self.command)
        self.assertTrue(ack.ok, ack)
        self.assertEqual(self.task(ack.task_id)["payload"], "null")
        [ack] = stream.create_batch([{"command": self.command}])
        self.assertTrue(ack.ok, ack)
        worker = self.worker()
        self.assertEqual([worker.claim(self.command).payload for _ in range(2)], [b"null", b"null"])

    def test_trimmed_commands(self):
        """Blanks around commands are trimmed on either stream, and a blank command counts as missing."""
        stream, worker = self.producer(), self.worker()
        ack = stream.create(command=f" {self.command}\n", payload=b"{}")
        self.assertEqual(self.task(ack.task_id)["command"], self.command)
        self.assertEqual(worker.claim("  ", f"\t{self.command} ", "").id, ack.task_id)
        for command in ("", " ", "\t\n"):
            ack = stream.create(command=command, payload=b"{}")
            self.assertEqual((ack.ok, ack.error_message), (False, "invalid command"))

    def test_ten_thousand_creates_in_a_message(self):
        """A batch larger than the maximum is split by the server; one bad create fails alone."""
        stream = self.producer()
        tasks = [{"command": self.command, "payload": b"%d" % n} for n in range(10_000)]
        tasks[5_000]["command"] = " "
        acks = stream.create_batch(tasks)
        self.assertEqual([ack.seq for ack in acks], list(range(1, 10_001)))
        self.assertEqual([ack.error_message for ack in acks if not ack.ok], ["invalid command"])
        stats = self.call("GET", f"/admin/queues/{self.command}", token="admin", expect=200).json
        self.assertEqual(stats["ready"], 9_999)
        self.assertEqual(self.worker().claim(self.command).id, acks[0].task_id)
        self.assertEqual(len(stream.create_batch([])), 0)

    def test_ready_waits(self):
        """A Ready is held until a task comes, and answered once."""
        worker, stream = self.worker(), self.producer()
        worker.ready(self.command)
        ack = stream.create(command=self.command, payload=b'{"x": 1}', priority=2)
        task = worker.take("task").task
        self.assertEqual((task.id, task.command, task.payload, task.priority), (ack.task_id, self.command, b'{"x": 1}', 2))
        self.assertEqual((task.status, task.worker_id, task.attempts, task.max_attempts), ("IN_PROGRESS", "worker-1", 0, 5))
        self.assertTrue(task.lease_until and task.created_at.seconds)

    def test_batches_of_results(self):
        """Up to `count` tasks for one Ready, and one ResultBatch for all; a bad result fails alone."""
        worker, stream = self.worker(), self.producer()
        stream.create_batch([{"command": self.command, "payload": b"{}"} for _ in range(32)])
        worker.ready(self.command, count=32)
        tasks = []
        tasks += worker.take("task_batch").tasks
        while len(tasks) < 32:
            worker.ready(self.command, count=32)
            tasks += worker.take("task_batch").tasks
        results = [worker.message("Result", task_id=task.id, status="COMPLETED", result_json=b'{"n":1}') for task in tasks]
        results[3].status, results[3].error = "FAILED", " "
        results[4].status, results[4].error, results[4].result_json = "FAILED", "broken", b""
        # codeQ's SDK leaves the result out when a handler has none.
        results[5].result_json = b""
        worker.send(result_batch=worker.message("ResultBatch", results=results))
        acks = worker.take("result_ack_batch").acks
        self.assertEqual([ack.task_id for ack in acks], [task.id for task in tasks])
        refused = [(n, ack.error_message) for n, ack in enumerate(acks) if not ack.ok]
        self.assertEqual(refused, [(3, "error required when status=FAILED")])
        self.assertEqual(self.task(tasks[4].id)["error"], "broken")
        record = self.call("GET", f"/tasks/{tasks[5].id}/result", expect=200).json["result"]
        self.assertEqual(record["result"], {})

    def test_more_results_than_a_batch_holds(self):
        """A ResultBatch larger than the maximum is answered by one acknowledgement, in its order."""
        worker, stream = self.worker(), self.producer()
        created = stream.create_batch([{"command": self.command, "payload": b"{}"} for _ in range(300)])
        self.assertTrue(all(ack.ok for ack in created), created[0])
        tasks = []
        while len(tasks) < 300:
            worker.ready(self.command, count=256)
            tasks += worker.take("task_batch").tasks
        results = [worker.message("Result", task_id=task.id, status="COMPLETED") for task in tasks]
        results[150].status = "MAYBE"
        worker.send(result_batch=worker.message("ResultBatch", results=results))
        acks = worker.take("result_ack_batch").acks
        self.assertEqual([ack.task_id for ack in acks], [task.id for task in tasks])
        self.assertEqual([(n, ack.error_message) for n, ack in enumerate(acks) if not ack.ok], [(150, "invalid status")])

    def test_four_endings(self):
        """Complete, fail, nack and abandon, and a heartbeat before."""
        worker, stream = self.worker(), self.producer()
        ids = [stream.create(command=self.command, payload=b"{}").task_id for _ in range(4)]
        tasks = [worker.claim(self.command) for _ in ids]
        self.assertEqual([task.id for task in tasks], ids)
        beat = worker.ask("heartbeat_ack", "heartbeat", task_id=ids[0], extend_seconds=120)
        self.assertTrue(beat.ok, beat)
        done = worker.ask("result_ack", "result", task_id=ids[0], status="COMPLETED", result_json=b'{"ok":true}')
        self.assertTrue(done.ok, done)
        failed = worker.ask("result_ack", "result", task_id=ids[1], status="FAILED", error="broken")
        self.assertTrue(failed.ok, failed)
        # 0 means not set, so the backoff policy applies: a random delay of up to 10 s, twice the base.
        nack = worker.ask("nack_ack", "nack", task_id=ids[2], delay_seconds=0, reason="busy")
        self.assertTrue(nack.ok and not nack.dlq and 0 <= nack.applied_delay_seconds <= 10, nack)
        self.assertEqual(self.task(ids[2])["error"], "busy")
        abandoned = worker.ask("abandon_ack", "abandon", task_id=ids[3])
        self.assertTrue(abandoned.ok, abandoned)
        self.assertEqual(self.task(ids[3])["attempts"], 1)
        again = worker.ask("nack_ack", "nack", task_id=ids[0], delay_seconds=1)
        self.assertEqual((again.ok, again.error_message), (False, "not-in-progress"))
        lost = worker.ask("heartbeat_ack", "heartbeat", task_id="00000000-0000-4000-8000-000000000000")
        self.assertEqual((lost.ok, lost.error_message), (False, "not-found"))

    def test_others_and_their_rights(self):
        """Nobody acts on another's lease; a scope that is missing is an error that the stream survives."""
        stream, worker, colleague = self.producer(), self.worker(), self.worker("colleague")
        task_id = stream.create(command=self.command, payload=b"{}").task_id
        worker.claim(self.command)
        ack = colleague.ask("result_ack", "result", task_id=task_id, status="COMPLETED")
        self.assertEqual((ack.ok, ack.error_message), (False, "not-owner"))
        narrow = self.worker("narrow")
        narrow.ready("not-this")
        self.assertEqual(narrow.take("error").code, "PermissionDenied")
        error = narrow.ask("error", "nack", task_id=task_id)
        self.assertEqual(error.code, "PermissionDenied")
        self.assertTrue(worker.ask("result_ack", "result", task_id=task_id, status="COMPLETED").ok)
