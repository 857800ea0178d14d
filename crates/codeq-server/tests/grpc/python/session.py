"""Sessions on both streams by a client that knows nothing but the published table of fields.

    session.py PRODUCER_ADDR WORKER_ADDR PRODUCER_TOKEN WORKER_TOKEN RESTRICTED_TOKEN

The restricted token may claim commands named `a`, and do nothing else. Exits with 0 if all went as promised.
"""

import queue
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import grpc
import grpc_tools
from grpc_tools import protoc

HERE = Path(__file__).parent
# Whatever comes at once has come by then.
PATIENCE = 60
# How long a Ready is held by the server's clock: more than a minute.
HOLD = 70


def generate():
    """Makes the client's code, and imports it."""
    out = tempfile.mkdtemp()
    common = Path(grpc_tools.__file__).parent / "_proto"
    # Two packages may both have a ServerEvent: each file is a module of its own.
    args = ["protoc", f"-I{HERE}", f"-I{common}", f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main([*args, str(HERE / "producer.proto"), str(HERE / "worker.proto")]) == 0
    sys.path.insert(0, out)
    import producer_pb2
    import producer_pb2_grpc
    import worker_pb2
    import worker_pb2_grpc

    return producer_pb2, producer_pb2_grpc, worker_pb2, worker_pb2_grpc


P, P_GRPC, W, W_GRPC = generate()


class Stream:
    """One stream: `send` what is to be said, `take` what comes."""

    def __init__(self, call, metadata=None):
        self.said = queue.Queue()
        self.answers = call(iter(self.said.get, None), timeout=HOLD + PATIENCE, metadata=metadata)

    def send(self, event):
        self.said.put(event)

    def take(self, kind):
        answer = next(self.answers)
        assert answer.WhichOneof("event") == kind, (kind, answer)
        return getattr(answer, kind)

    def half_close(self):
        self.said.put(None)

    def closes(self):
        """Nothing more comes, and the stream ends with OK."""
        self.half_close()
        assert list(self.answers) == []
        assert self.answers.code() == grpc.StatusCode.OK

    def ends(self, code, details):
        """The stream ends next, with this status."""
        try:
            answer = next(self.answers)
        except grpc.RpcError as error:
            assert error.code() == code, error
            assert error.details().startswith(details), error.details()
        else:
            raise AssertionError(f"{answer} instead of the end")


class Producer(Stream):
    def __init__(self, channel, metadata=None):
        super().__init__(P_GRPC.ProducerStreamStub(channel).Stream, metadata)

    def hello(self, token):
        self.send(P.ProducerEvent(hello=P.Hello(token=token)))
        return self.take("hello_ack")

    def create(self, **fields):
        self.send(P.ProducerEvent(create=P.CreateTask(**fields)))
        return self.take("create_ack")


class Worker(Stream):
    def __init__(self, channel, metadata=None):
        super().__init__(W_GRPC.WorkerStreamStub(channel).Stream, metadata)

    def hello(self, token, worker_id=""):
        self.send(W.WorkerEvent(hello=W.Hello(token=token, worker_id=worker_id)))
        return self.take("hello_ack")

    def ready(self, *commands, count=1, lease_seconds=60):
        self.send(W.WorkerEvent(ready=W.Ready(commands=commands, count=count, lease_seconds=lease_seconds)))

    def say(self, answer, **event):
        self.send(W.WorkerEvent(**event))
        return self.take(answer)


def begin_hold(workers, token):
    """A stream whose Ready waits while everything else happens."""
    held = Worker(workers)
    held.hello(token, "patient")
    held.ready("rare")
    return held


def hellos(producers, workers, token, worker_token):
    """What may come first on a stream, and with which token."""
    refused = grpc.StatusCode.UNAUTHENTICATED
    for open_stream, event in [
        (lambda: Producer(producers), lambda token: P.ProducerEvent(hello=P.Hello(token=token))),
        (lambda: Worker(workers), lambda token: W.WorkerEvent(hello=W.Hello(token=token))),
    ]:
        for bad, details in [("", "missing token"), ("nobody", "auth failed: ")]:
            stream = open_stream()
            stream.send(event(bad))
            stream.ends(refused, details)
    for stream, event in [
        (Producer(producers), P.ProducerEvent(create=P.CreateTask(seq=1))),
        (Worker(workers), W.WorkerEvent(ready=W.Ready())),
    ]:
        stream.send(event)
        stream.ends(grpc.StatusCode.FAILED_PRECONDITION, "first event must be Hello")
    stream = Producer(producers, [("authorization", f"Bearer {token}")])
    ack = stream.hello("")
    assert (ack.tenant_id, ack.subject) == ("a", "producer"), ack
    stream.closes()
    for worker_id, shown in [("", "worker"), ("worker", "worker"), ("p1", "worker/p1")]:
        stream = Worker(workers, [("authorization", f"Bearer {worker_token}")])
        ack = stream.hello("", worker_id)
        assert (ack.worker_id, ack.tenant_id) == (shown, "a"), ack
        stream.closes()


def creates(producers, token):
    """Creates alone and in batches, good and bad."""
    stream = Producer(producers)
    stream.hello(token)
    for seq in range(300):
        payload = b'{"seq": %d}' % seq if seq % 3 else b"not JSON"
        stream.send(P.ProducerEvent(create=P.CreateTask(seq=seq, command="many", payload=payload)))
    acks = {ack.seq: ack for ack in (stream.take("create_ack") for _ in range(300))}
    assert len(acks) == 300
    for seq, ack in acks.items():
        if seq % 3:
            assert ack.ok and ack.task_id and not ack.error_message, ack
        else:
            assert not ack.ok and not ack.task_id, ack
            assert ack.error_message == "invalid payload (must be JSON)", ack
    one = stream.create(seq=1, command="once", payload=b"{}", idempotency_key="k")
    two = stream.create(seq=2, command="once", payload=b"{}", idempotency_key="k")
    assert one.ok and two.ok and one.task_id == two.task_id, (one, two)
    stream.send(P.ProducerEvent(create_batch=P.CreateTaskBatch()))
    assert len(stream.take("create_ack_batch").acks) == 0
    tasks = [P.CreateTask(seq=9 - n, command="b" if n % 2 else "", payload=b"[]") for n in range(10)]
    stream.send(P.ProducerEvent(create_batch=P.CreateTaskBatch(tasks=tasks)))
    acks = stream.take("create_ack_batch").acks
    assert [(ack.seq, ack.ok) for ack in acks] == [(9 - n, n % 2 == 1) for n in range(10)], acks
    tasks = [P.CreateTask(seq=n, command="b", payload=b"[]") for n in range(101)]
    stream.send(P.ProducerEvent(create_batch=P.CreateTaskBatch(tasks=tasks)))
    acks = stream.take("create_ack_batch").acks
    assert [(ack.seq, ack.ok) for ack in acks] == [(n, True) for n in range(101)], acks
    stream.send(P.ProducerEvent(hello=P.Hello(token=token)))
    error = stream.take("error")
    assert error.code == "InvalidArgument" and "Hello" in error.message, error
    # After a half-close, everything that was sent is still answered.
    for seq in range(50):
        stream.send(P.ProducerEvent(create=P.CreateTask(seq=seq, command="last", payload=b"1")))
    stream.half_close()
    answers = list(stream.answers)
    assert sorted(answer.create_ack.seq for answer in answers) == list(range(50))
    assert all(answer.create_ack.ok for answer in answers)
    assert stream.answers.code() == grpc.StatusCode.OK


def raw(producers):
    """Bytes that no version of the client would send."""
    call = producers.stream_stream("/producerpb.ProducerStream/Stream", lambda b: b, lambda b: b)
    good = P.ProducerEvent(hello=P.Hello(token=sys.argv[3])).SerializeToString()
    # An event with field 50, which is unknown; then a create with an unknown field 900, which is ignored.
    create = P.CreateTask(seq=5, command="raw", payload=b"{}").SerializeToString() + b"\xa0\x38\x01"
    events = [good, b"\x92\x03\x00", b"\x12" + bytes([len(create)]) + create]
    answers = [P.ServerEvent.FromString(answer) for answer in call(iter(events), timeout=PATIENCE)]
    kinds = [answer.WhichOneof("event") for answer in answers]
    assert kinds == ["hello_ack", "error", "create_ack"], answers
    assert answers[1].error.message == "unknown event" and answers[2].create_ack.ok, answers
    try:
        list(call(iter([good, b"\xff\xff\xff"]), timeout=PATIENCE))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INTERNAL, error
    else:
        raise AssertionError("nonsense was taken")


def tasks(producers, workers, token, worker_token):
    """Tasks from one end to the other."""
    producer = Producer(producers)
    producer.hello(token)
    worker = Worker(workers)
    worker.hello(worker_token, "p1")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    ack = producer.create(
        seq=1, command="full", payload=b'{"a":  1}', priority=4, webhook="https://example.com/x",
        max_attempts=2, trace_parent=trace,
    )
    worker.ready("full")
    task = worker.take("task").task
    want = (ack.task_id, "full", b'{"a":  1}', 4, "https://example.com/x", 2, "IN_PROGRESS", "worker/p1", 0, "a")
    got = (
        task.id, task.command, task.payload, task.priority, task.webhook, task.max_attempts, task.status,
        task.worker_id, task.attempts, task.tenant_id,
    )
    assert got == want, task
    until = datetime.fromisoformat(task.lease_until.replace("Z", "+00:00")).timestamp()
    assert 50 < until - task.updated_at.seconds < 70, task
    assert abs(time.time() - task.created_at.seconds) < 60, task

    beat = worker.say("heartbeat_ack", heartbeat=W.Heartbeat(task_id=task.id, extend_seconds=120))
    assert (beat.task_id, beat.ok, beat.error_message) == (task.id, True, ""), beat
    back = worker.say("nack_ack", nack=W.Nack(task_id=task.id, delay_seconds=-1, reason="again"))
    assert (back.task_id, back.ok, back.applied_delay_seconds, back.dlq) == (task.id, True, 0, False), back
    worker.ready("full")
    assert worker.take("task").task.attempts == 1
    back = worker.say("nack_ack", nack=W.Nack(task_id=task.id, delay_seconds=30))
    assert (back.ok, back.applied_delay_seconds, back.dlq) == (True, 0, True), back

    abandoned = producer.create(seq=2, command="left", payload=b"{}").task_id
    worker.ready("left")
    assert worker.take("task").task.id == abandoned
    ack = worker.say("abandon_ack", abandon=W.Abandon(task_id=abandoned))
    assert (ack.task_id, ack.ok) == (abandoned, True), ack
    worker.ready("left", count=5)
    batch = worker.take("task_batch").tasks
    assert [(task.id, task.attempts) for task in batch] == [(abandoned, 1)], batch
    done = worker.say("result_ack", result=W.Result(task_id=abandoned, status="COMPLETED"))
    assert (done.task_id, done.ok, done.error_message) == (abandoned, True, ""), done

    for n in range(20):
        assert producer.create(seq=n, command="bulk", payload=b"{}").ok
    got = []
    while len(got) < 20:
        worker.ready("bulk", count=8)
        batch = worker.take("task_batch").tasks
        assert 1 <= len(batch) <= 8
        got += [task.id for task in batch]
    assert len(set(got)) == 20
    results = [W.Result(task_id=id, status="COMPLETED", result_json=b'{"x":1}') for id in got[:18]]
    results.append(W.Result(task_id=got[18], status="FAILED", error="no luck"))
    results.append(W.Result(task_id=got[19], status="FAILED"))
    results.append(W.Result(task_id="nothing", status="COMPLETED"))
    acks = worker.say("result_ack_batch", result_batch=W.ResultBatch(results=results)).acks
    assert [ack.task_id for ack in acks] == got + ["nothing"], acks
    assert [ack.ok for ack in acks] == [True] * 19 + [False] * 2, acks
    assert acks[19].error_message == "error required when status=FAILED", acks
    assert acks[20].error_message == "task not found", acks
    worker.closes()
    producer.closes()


def refusals(producers, workers, token, worker_token, restricted_token):
    """Tasks that the worker does not hold, and events that its token does not allow."""
    worker = Worker(workers)
    worker.hello(worker_token, "p2")
    unknown = "00000000-0000-8fff-8000-00000000abcd"
    for answer, event in [
        ("heartbeat_ack", {"heartbeat": W.Heartbeat(task_id=unknown)}),
        ("nack_ack", {"nack": W.Nack(task_id=unknown)}),
        ("abandon_ack", {"abandon": W.Abandon(task_id=unknown)}),
    ]:
        ack = worker.say(answer, **event)
        assert (ack.task_id, ack.ok, ack.error_message) == (unknown, False, "not-found"), ack
    worker.closes()
    restricted = Worker(workers)
    restricted.hello(restricted_token)
    for event, message in [
        ({"ready": W.Ready(commands=["b"])}, "event type not allowed"),
        ({"heartbeat": W.Heartbeat(task_id=unknown)}, "missing scope codeq:heartbeat"),
        ({"result": W.Result(task_id=unknown)}, "missing scope codeq:result"),
        ({"result_batch": W.ResultBatch(results=[W.Result()])}, "missing scope codeq:result"),
        ({"nack": W.Nack(task_id=unknown)}, "missing scope codeq:nack"),
        ({"abandon": W.Abandon(task_id=unknown)}, "missing scope codeq:abandon"),
    ]:
        error = restricted.say("error", **event)
        assert (error.code, error.message) == ("PermissionDenied", message), error
    producer = Producer(producers)
    producer.hello(token)
    id = producer.create(seq=1, command="a", payload=b"{}").task_id
    restricted.ready()
    assert restricted.take("task").task.id == id
    restricted.closes()
    producer.closes()


def end_hold(held, producers, token):
    """After more than a minute, the first task of the command reaches the held Ready."""
    for _ in range(2):
        # The server's clock is moved by half of the time.
        print("waits", flush=True)
        sys.stdin.readline()
        # The second answer is behind the answer to a ping that the server has sent by now.
        for _ in range(2):
            held.say("result_ack_batch", result_batch=W.ResultBatch())
    producer = Producer(producers)
    producer.hello(token)
    id = producer.create(seq=1, command="rare", payload=b'"at last"').task_id
    task = held.take("task").task
    assert (task.id, task.payload, task.worker_id) == (id, b'"at last"', "worker/patient"), task
    assert held.say("result_ack", result=W.Result(task_id=id, status="COMPLETED")).ok
    held.closes()
    producer.closes()


def main():
    producer_addr, worker_addr, token, worker_token, restricted_token = sys.argv[1:]
    with grpc.insecure_channel(producer_addr) as producers, grpc.insecure_channel(worker_addr) as workers:
        held = begin_hold(workers, worker_token)
        hellos(producers, workers, token, worker_token)
        creates(producers, token)
        raw(producers)
        tasks(producers, workers, token, worker_token)
        refusals(producers, workers, token, worker_token, restricted_token)
        # Both services are on both ports.
        tasks(workers, producers, token, worker_token)
        end_hold(held, producers, token)
    print("all sessions went as promised")


main()
