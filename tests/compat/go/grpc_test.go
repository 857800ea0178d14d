package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The first event must be a Hello with a good token, or else the call ends with codeQ's error.
func TestHello(t *testing.T) {
	q := newQueue(t)
	q.has(q.producerStream().hello("producer"), M{"tenant_id": "acme", "subject": "cart"})
	worker := q.workerStream()
	ack := worker.ask("hello_ack", "hello", M{"token": facts.Tokens["worker"], "worker_id": "worker-1"})
	q.has(ack, M{"tenant_id": "acme", "worker_id": "worker-1"})
	q.has(q.workerStream("authorization", "Bearer "+facts.Tokens["worker"]).hello(""), M{"tenant_id": "acme"})
	for token, words := range map[string]string{"": "missing token", "nobody": "auth failed: "} {
		for _, s := range []*stream{q.producerStream(), q.workerStream()} {
			s.say("hello", M{"token": token})
			code, said := s.ends()
			q.check(code == "Unauthenticated" && strings.HasPrefix(said, words), code+" "+said)
		}
	}
	s := q.producerStream()
	s.say("create", M{"seq": 1, "command": q.command})
	code, said := s.ends()
	q.equal(L{code, said}, L{"FailedPrecondition", "first event must be Hello"})
}

// A token that was read from a file ends with a newline, which does not count.
func TestTokenWithANewline(t *testing.T) {
	q := newQueue(t)
	q.has(q.producerStream().hello(facts.Tokens["producer"]+"\n"), M{"tenant_id": "acme"})
	q.has(q.workerStream().hello(" "+facts.Tokens["worker"]+"\r\n"), M{"tenant_id": "acme"})
}

// Every create is acknowledged once, by its seq, and the stream ends with OK.
func TestPipelinedCreates(t *testing.T) {
	q := newQueue(t)
	s := q.producer()
	go func() {
		for seq := 1; seq <= 500; seq++ {
			s.say("create", M{"seq": seq, "command": q.command, "payload": fmt.Appendf(nil, `{"n": %d}`, seq)})
		}
		s.call.CloseSend()
	}()
	seen := map[any]bool{}
	for range 500 {
		ack := s.take("create_ack")
		q.check(ack["ok"] == true && ack["task_id"] != "" && !seen[ack["seq"]], ack)
		seen[ack["seq"]] = true
	}
	code, said := s.ends()
	q.equal(L{code, said}, L{"OK", ""})
}

// Every field of a create reaches its task; times are kept, idempotency keys are honoured.
func TestCreateFields(t *testing.T) {
	q := newQueue(t)
	s := q.producer()
	fields := M{
		"payload": []byte(`{"a":  1}`), "priority": 4, "max_attempts": 2, "webhook": "http://127.0.0.1:9/hook",
		"idempotency_key": q.command,
	}
	ack := s.make(fields)
	q.equal(s.make(fields)["task_id"], ack["task_id"])
	q.has(q.task(ack["task_id"]), M{"payload": `{"a":  1}`, "priority": 4, "maxAttempts": 2})
	for _, when := range []M{{"run_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, {"delay_seconds": 600}} {
		q.has(q.task(s.make(when)["task_id"]), M{"lastKnownLocation": "DELAYED_ZSET"})
	}
	for _, bad := range []M{{"payload": []byte("{")}, {"delay_seconds": -1}, {"webhook": "nowhere"}} {
		ack := s.make(bad)
		q.check(ack["ok"] == false && ack["error_message"] != "", ack)
	}
}

// A create without payload stores null, alone and in a batch.
func TestCreateWithoutPayload(t *testing.T) {
	q := newQueue(t)
	s := q.producer()
	ack := s.ask("create_ack", "create", M{"seq": 1, "command": q.command})
	q.equal(ack["ok"], true)
	q.has(q.task(ack["task_id"]), M{"payload": "null"})
	q.equal(s.makeBatch([]M{{"command": q.command}})[0]["ok"], true)
	worker := q.worker("worker")
	for range 2 {
		q.equal(worker.take1(q.command)["payload"], []byte("null"))
	}
}

// Blanks around commands are trimmed on either stream, and a blank command counts as missing.
func TestTrimmedCommands(t *testing.T) {
	q := newQueue(t)
	s, worker := q.producer(), q.worker("worker")
	ack := s.make(M{"command": " " + q.command + "\n"})
	q.has(q.task(ack["task_id"]), M{"command": q.command})
	q.equal(worker.take1("  ", "\t"+q.command+" ", "")["id"], ack["task_id"])
	for _, command := range []string{"", " ", "\t\n"} {
		q.has(s.make(M{"command": command}), M{"ok": false, "error_message": "invalid command"})
	}
}

// A batch larger than the maximum is split by the server; one bad create fails alone.
func TestTenThousandCreatesInAMessage(t *testing.T) {
	q := newQueue(t)
	s := q.producer()
	tasks := make([]M, 10_000)
	for n := range tasks {
		tasks[n] = M{"command": q.command, "payload": fmt.Append(nil, n)}
	}
	tasks[5_000]["command"] = " "
	acks := s.makeBatch(tasks)
	q.equal(len(acks), 10_000)
	for n, ack := range acks {
		q.check(ack["seq"] == fmt.Sprint(n+1) && ack["ok"] == (n != 5_000), ack)
	}
	q.equal(acks[5_000]["error_message"], "invalid command")
	q.has(q.object(q.call(200, "GET", "/admin/queues/"+q.command, nil, "admin")), M{"ready": 9_999})
	q.equal(q.worker("worker").take1(q.command)["id"], acks[0]["task_id"])
	q.equal(len(s.makeBatch(nil)), 0)
}

// A Ready is held until a task comes, and answered once.
func TestReadyWaits(t *testing.T) {
	q := newQueue(t)
	worker, s := q.worker("worker"), q.producer()
	worker.ready(1, q.command)
	ack := s.make(M{"payload": []byte(`{"x": 1}`), "priority": 2})
	task := worker.take("task")["task"].(M)
	q.has(task, M{
		"id": ack["task_id"], "command": q.command, "payload": []byte(`{"x": 1}`), "priority": 2, "status": "IN_PROGRESS",
		"worker_id": "worker-1", "attempts": 0, "max_attempts": 5, "tenant_id": "acme",
	})
	_, err := time.Parse(time.RFC3339, task["lease_until"].(string))
	q.must(err)
}

// Up to count tasks for one Ready, and one ResultBatch for all; a bad result fails alone.
func TestBatchesOfResults(t *testing.T) {
	q := newQueue(t)
	worker, s := q.worker("worker"), q.producer()
	creates := make([]M, 32)
	for n := range creates {
		creates[n] = M{"command": q.command, "payload": []byte("{}")}
	}
	s.makeBatch(creates)
	var tasks []M
	for len(tasks) < 32 {
		worker.ready(32, q.command)
		tasks = append(tasks, objects(worker.take("task_batch")["tasks"])...)
	}
	results := make([]M, 32)
	for n, task := range tasks {
		results[n] = M{"task_id": task["id"], "status": "COMPLETED", "result_json": []byte(`{"n":1}`)}
	}
	results[3] = M{"task_id": tasks[3]["id"], "status": "FAILED", "error": " "}
	results[4] = M{"task_id": tasks[4]["id"], "status": "FAILED", "error": "broken"}
	// codeQ's SDK leaves the result out when a handler has none.
	results[5] = M{"task_id": tasks[5]["id"], "status": "COMPLETED"}
	acks := objects(worker.ask("result_ack_batch", "result_batch", M{"results": results})["acks"])
	q.equal(len(acks), 32)
	for n, ack := range acks {
		q.has(ack, M{"task_id": tasks[n]["id"], "ok": n != 3})
	}
	q.equal(acks[3]["error_message"], "error required when status=FAILED")
	read := q.object(q.call(200, "GET", of(tasks[5], "/result"), nil, "producer"))
	q.equal(read["result"].(M)["result"], M{})
}

// A ResultBatch larger than the maximum is answered by one acknowledgement, in its order.
func TestMoreResultsThanABatchHolds(t *testing.T) {
	q := newQueue(t)
	worker, s := q.worker("worker"), q.producer()
	creates := make([]M, 300)
	for n := range creates {
		creates[n] = M{"command": q.command, "payload": []byte("{}")}
	}
	for _, ack := range s.makeBatch(creates) {
		q.equal(ack["ok"], true)
	}
	results := []M{}
	for len(results) < 300 {
		worker.ready(256, q.command)
		for _, task := range objects(worker.take("task_batch")["tasks"]) {
			results = append(results, M{"task_id": task["id"], "status": "COMPLETED"})
		}
	}
	acks := objects(worker.ask("result_ack_batch", "result_batch", M{"results": results})["acks"])
	q.equal(len(acks), 300)
	for n, ack := range acks {
		q.has(ack, M{"task_id": results[n]["task_id"], "ok": true})
	}
}

// Complete, fail, nack and abandon, and a heartbeat before.
func TestFourEndings(t *testing.T) {
	q := newQueue(t)
	worker, s := q.worker("worker"), q.producer()
	var ids []any
	for range 4 {
		ids = append(ids, s.make(nil)["task_id"])
		q.equal(worker.take1(q.command)["id"], ids[len(ids)-1])
	}
	q.has(worker.ask("heartbeat_ack", "heartbeat", M{"task_id": ids[0], "extend_seconds": 120}), M{"ok": true})
	done := M{"task_id": ids[0], "status": "COMPLETED", "result_json": []byte(`{"ok":true}`)}
	q.has(worker.ask("result_ack", "result", done), M{"ok": true})
	q.has(worker.ask("result_ack", "result", M{"task_id": ids[1], "status": "FAILED", "error": "broken"}), M{"ok": true})
	// 0 means not set, so the backoff policy applies: a random delay of up to 10 s, twice the base.
	nack := worker.ask("nack_ack", "nack", M{"task_id": ids[2], "delay_seconds": 0, "reason": "busy"})
	delay := nack["applied_delay_seconds"].(float64)
	q.check(nack["ok"] == true && nack["dlq"] == false && delay >= 0 && delay <= 10, nack)
	q.has(worker.ask("abandon_ack", "abandon", M{"task_id": ids[3]}), M{"ok": true})
	q.has(q.task(ids[3]), M{"attempts": 1})
	again := worker.ask("nack_ack", "nack", M{"task_id": ids[0], "delay_seconds": 1})
	q.has(again, M{"ok": false, "error_message": "not-in-progress"})
	q.has(worker.ask("heartbeat_ack", "heartbeat", M{"task_id": unknown}), M{"ok": false, "error_message": "not-found"})
}

// Nobody acts on another's lease; a scope that is missing is an error that the stream survives.
func TestOthersAndTheirRights(t *testing.T) {
	q := newQueue(t)
	s, worker, colleague := q.producer(), q.worker("worker"), q.worker("colleague")
	id := s.make(nil)["task_id"]
	worker.take1(q.command)
	done := M{"task_id": id, "status": "COMPLETED"}
	q.has(colleague.ask("result_ack", "result", done), M{"ok": false, "error_message": "not-owner"})
	narrow := q.worker("narrow")
	narrow.ready(1, "not-this")
	q.has(narrow.take("error"), M{"code": "PermissionDenied"})
	q.has(narrow.ask("error", "nack", M{"task_id": id}), M{"code": "PermissionDenied"})
	q.has(worker.ask("result_ack", "result", done), M{"ok": true})
}

const workerScopes = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"

// A stream outlives its token, but an expired token opens no new stream.
func TestStreamsOutliveTheirToken(t *testing.T) {
	q := newQueue(t)
	// Clocks may differ by 60 s, so this token is good for about three seconds more.
	now := time.Now().Unix()
	claims := M{"sub": "brief", "iat": now - 120, "exp": now - 57, "scope": workerScopes, "eventTypes": L{"*"}}
	token := q.mint(claims)
	s, worker := q.producerStream(), q.workerStream()
	s.hello(token)
	worker.hello(token)
	worker.ready(1, q.command)
	expired := false
	for try := 0; try < 100 && !expired; try++ {
		late := q.producerStream()
		late.say("hello", M{"token": token})
		_, _, err := late.next()
		expired = err != nil
		time.Sleep(100 * time.Millisecond)
	}
	q.check(expired, "the token does not expire")
	ack := s.make(nil)
	q.equal(ack["ok"], true)
	q.equal(worker.take("task")["task"].(M)["id"], ack["task_id"])
	q.has(worker.ask("result_ack", "result", M{"task_id": ack["task_id"], "status": "COMPLETED"}), M{"ok": true})
}

// A producer's token needs no sub, and iat matters only if it is further ahead than clocks may differ.
func TestTokens(t *testing.T) {
	q := newQueue(t)
	body := M{"command": q.command, "payload": M{}}
	q.has(q.object(q.call(202, "POST", "/tasks", body, q.mint(nil))), M{"tenantId": "acme"})
	q.has(q.producerStream().hello(q.mint(nil)), M{"tenant_id": "acme"})
	now := time.Now().Unix()
	q.call(202, "POST", "/tasks", body, q.mint(M{"sub": "p", "iat": now + 30}))
	q.call(401, "POST", "/tasks", body, q.mint(M{"sub": "p", "iat": now + 600}))
	token := q.mint(M{"sub": "jwt-worker", "scope": workerScopes, "eventTypes": L{q.command}})
	q.has(q.object(q.call(200, "POST", "/tasks/claim", M{"commands": nil}, token)), M{"workerId": "jwt-worker"})
}
