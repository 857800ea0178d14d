package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A task's life over HTTP: codes, shapes and fields.
func TestLifeCycle(t *testing.T) {
	q := newQueue(t)
	created := q.create(M{"payload": M{"jobId": "j-1"}, "priority": 5, "maxAttempts": 8, "webhook": "http://127.0.0.1:9/hook"})
	q.has(created, M{
		"command": q.command, "payload": `{"jobId":"j-1"}`, "priority": 5, "maxAttempts": 8, "status": "PENDING",
		"lastKnownLocation": "PENDING_LIST", "tenantId": "acme", "webhook": "http://127.0.0.1:9/hook",
	})
	q.refused(404, "result not found", "GET", of(created, "/result"), nil, "producer")
	held := q.claim()
	q.has(held, M{"id": created["id"], "status": "IN_PROGRESS", "workerId": "worker-1"})
	_, err := time.Parse(time.RFC3339, held["leaseUntil"].(string))
	q.must(err)
	beat := q.object(q.call(200, "POST", of(held, "/heartbeat"), M{"extendSeconds": 120}, "worker"))
	q.equal(beat["ok"], true)
	q.has(q.complete(held), M{"taskId": held["id"], "status": "COMPLETED", "result": M{"ok": true}})
	read := q.object(q.call(200, "GET", of(held, "/result?waitSeconds=5"), nil, "producer"))
	q.has(read["result"].(M), M{"status": "COMPLETED"})
	q.has(read["task"].(M), M{"status": "COMPLETED", "resultKey": fmt.Sprint("codeq/results/", held["id"])})
}

// Structs without omitempty send null for every option that is not set.
func TestExplicitNulls(t *testing.T) {
	q := newQueue(t)
	task := q.create(M{
		"priority": nil, "maxAttempts": nil, "webhook": nil, "idempotencyKey": nil, "runAt": nil, "delaySeconds": nil,
	})
	q.has(task, M{"maxAttempts": 5})
	q.call(200, "POST", "/tasks/claim", M{"commands": L{q.command}, "leaseSeconds": nil, "waitSeconds": nil}, "worker")
	q.call(200, "POST", of(task, "/heartbeat"), M{"extendSeconds": nil}, "worker")
	q.call(200, "POST", of(task, "/nack"), M{"delaySeconds": nil, "reason": nil}, "worker")
	done := M{"status": "COMPLETED", "result": M{}, "error": nil, "artifacts": nil, "workerId": nil}
	q.call(200, "POST", of(q.claimed(nil), "/result"), done, "worker")
}

// Where every field is optional, no body, an empty one and null are the same.
func TestBodiesThatAreEmptyOrNull(t *testing.T) {
	q := newQueue(t)
	for _, body := range []any{nil, []byte(""), []byte("null"), []byte("{}")} {
		q.call(204, "POST", "/tasks/claim", body, "narrow")
		task := q.claimed(nil)
		q.call(200, "POST", of(task, "/heartbeat"), body, "worker")
		q.equal(q.object(q.call(200, "POST", of(task, "/abandon"), body, "worker")), M{"status": "requeued"})
		q.claim()
		q.equal(q.object(q.call(200, "POST", of(task, "/nack"), body, "worker"))["status"], "requeued")
		q.call(200, "POST", "/admin/tasks/cleanup", body, "admin")
	}
	q.refused(400, "invalid body", "POST", "/tasks", []byte("null"), "producer")
}

// Routes with a trailing slash are served, or redirect to those without one.
func TestTrailingSlash(t *testing.T) {
	q := newQueue(t)
	q.call(202, "POST", "/tasks/", M{"command": q.command, "payload": M{}}, "producer")
	task := q.object(q.call(200, "POST", "/tasks/claim/", M{"commands": L{q.command}}, "worker"))
	q.call(200, "POST", of(task, "/result/"), M{"status": "COMPLETED", "result": M{}}, "worker")
	q.call(200, "GET", of(task, "/"), nil, "producer")
}

// Negative leases, waits, delays and attempts mean the default; a negative delay of a new task is refused.
func TestNegativeNumbers(t *testing.T) {
	q := newQueue(t)
	task := q.create(M{"maxAttempts": -1})
	q.has(task, M{"maxAttempts": 5})
	q.call(200, "POST", "/tasks/claim", M{"commands": L{q.command}, "leaseSeconds": -1, "waitSeconds": -1}, "worker")
	q.call(200, "POST", of(task, "/heartbeat"), M{"extendSeconds": -5}, "worker")
	nack := q.object(q.call(200, "POST", of(task, "/nack"), M{"delaySeconds": -1}, "worker"))
	// The first delay of the backoff policy is random, up to 10 s: twice the base.
	delay := nack["delaySeconds"].(float64)
	q.check(delay >= 0 && delay <= 10, nack)
	body := M{"command": q.command, "payload": M{}, "delaySeconds": -1}
	q.refused(400, "invalid 'delaySeconds' (must be >= 0)", "POST", "/tasks", body, "producer")
}

// On routes that codeQ has, waitSeconds=abc counts as 0, and so does a negative number.
func TestWaitsThatAreNotNumbers(t *testing.T) {
	q := newQueue(t)
	task := q.create(nil)
	for _, wait := range []string{"abc", "-1", "", "1.5"} {
		q.refused(404, "result not found", "GET", of(task, "/result?waitSeconds="+wait), nil, "producer")
	}
}

// Blanks around a command are trimmed, and a blank command counts as missing.
func TestCommandsAreTrimmed(t *testing.T) {
	q := newQueue(t)
	task := q.create(M{"command": "  " + q.command + "\t"})
	q.has(task, M{"command": q.command})
	commands := L{"", " " + q.command + " ", "   "}
	held := q.object(q.call(200, "POST", "/tasks/claim", M{"commands": commands}, "worker"))
	q.equal(held["id"], task["id"])
	for _, command := range []string{"", "   ", "\t\n"} {
		q.refused(400, "invalid command", "POST", "/tasks", M{"command": command, "payload": M{}}, "producer")
	}
}

// The same key with the same JSON value, however it is written, is the same task; another value is 422.
func TestIdempotencyByValue(t *testing.T) {
	q := newQueue(t)
	body := func(payload string) []byte {
		return fmt.Appendf(nil, `{"command":%q,"idempotencyKey":%q,"payload":%s}`, q.command, q.command, payload)
	}
	first := q.object(q.call(202, "POST", "/tasks", body(`{"a":1,"b":{"c":[1,2],"d":null}}`), "producer"))
	again := q.call(202, "POST", "/tasks", body(`{ "b": {"d": null, "c": [1, 2]}, "a": 1 }`), "producer")
	q.equal(again.header.Get("Idempotent-Replayed"), "true")
	q.equal(q.object(again)["id"], first["id"])
	q.call(422, "POST", "/tasks", body(`{"a":2,"b":{"c":[1,2],"d":null}}`), "producer")
}

// A nack's delay is kept, 0 means at once, the reason is kept, and the last attempt makes a dead letter.
func TestNack(t *testing.T) {
	q := newQueue(t)
	task := q.claimed(M{"maxAttempts": 3})
	nack := q.object(q.call(200, "POST", of(task, "/nack"), M{"delaySeconds": 0, "reason": "busy"}, "worker"))
	q.equal(nack, M{"status": "requeued", "delaySeconds": 0})
	q.has(q.claim(), M{"attempts": 1, "error": "busy"})
	nack = q.object(q.call(200, "POST", of(task, "/nack"), M{"delaySeconds": 30}, "worker"))
	q.equal(nack, M{"status": "requeued", "delaySeconds": 30})
	q.nothingToClaim()
	q.has(q.task(task["id"]), M{"status": "PENDING", "lastKnownLocation": "DELAYED_ZSET"})

	last := q.claimed(M{"maxAttempts": 1})
	nack = q.object(q.call(200, "POST", of(last, "/nack"), M{}, "worker"))
	q.equal(nack, M{"status": "dlq", "delaySeconds": 0})
	read := q.object(q.call(200, "GET", of(last, "/result"), nil, "producer"))
	q.has(read["task"].(M), M{"status": "FAILED", "lastKnownLocation": "DLQ_SET"})
	q.has(read["result"].(M), M{"status": "FAILED", "error": "MAX_ATTEMPTS"})
}

// Abandon costs an attempt, unless the worker says that it shall not.
func TestAbandon(t *testing.T) {
	q := newQueue(t)
	task := q.claimed(nil)
	q.call(200, "POST", of(task, "/abandon"), nil, "worker")
	q.has(q.claim(), M{"attempts": 1})
	q.call(200, "POST", of(task, "/abandon"), M{"penalty": false}, "worker")
	q.has(q.claim(), M{"attempts": 1})
}

// Every answer to a result, in the order of the checks, with codeQ's texts.
func TestResults(t *testing.T) {
	q := newQueue(t)
	good := M{"status": "COMPLETED", "result": M{"ok": true}}
	q.refused(404, "task not found", "POST", "/tasks/"+unknown+"/result", good, "worker")
	task := q.create(nil)
	path := of(task, "/result")
	q.refused(409, "not-in-progress", "POST", path, good, "worker")
	q.claim()
	q.refused(403, "not-owner", "POST", path, good, "colleague")
	q.refused(400, "invalid status", "POST", path, M{"status": "DONE"}, "worker")
	for _, failed := range []M{{"status": "FAILED"}, {"status": "FAILED", "error": " \t"}} {
		q.refused(400, "error required when status=FAILED", "POST", path, failed, "worker")
	}
	q.call(200, "POST", path, good, "worker")
	// After a lost answer, the same result again gets the same record; another outcome is refused.
	q.call(200, "POST", path, good, "worker")
	q.call(409, "POST", path, M{"status": "FAILED", "error": "no"}, "worker")
}

// codeQ's clients claim without a worker id and send one with a result, alone and in a batch: it is not compared.
func TestWorkerIdInResults(t *testing.T) {
	q := newQueue(t)
	for _, workerID := range []any{"worker-1", "the-name-in-their-configuration", nil} {
		body := M{"workerId": workerID, "status": "COMPLETED", "result": M{}}
		q.call(200, "POST", of(q.claimed(nil), "/result"), body, "worker")
		body["taskId"] = q.claimed(nil)["id"]
		batch := q.object(q.call(200, "POST", "/tasks/batch/results", M{"results": L{body}}, "worker"))
		q.has(objects(batch["results"])[0]["result"].(M), M{"status": "COMPLETED"})
	}
}

// A record keeps both, whatever the status.
func TestResultAndErrorTogether(t *testing.T) {
	q := newQueue(t)
	for _, status := range []string{"COMPLETED", "FAILED"} {
		held := q.claimed(nil)
		body := M{"status": status, "result": M{"partial": 1}, "error": "half"}
		q.call(200, "POST", of(held, "/result"), body, "worker")
		read := q.object(q.call(200, "GET", of(held, "/result"), nil, "producer"))
		q.has(read["result"].(M), M{"result": M{"partial": 1}, "error": "half"})
	}
}

// codeQ's error texts, where it has them.
func TestRefusals(t *testing.T) {
	q := newQueue(t)
	task := q.create(nil)
	for _, what := range []string{"/heartbeat", "/nack", "/abandon"} {
		q.refused(404, "not-found", "POST", "/tasks/"+unknown+what, M{}, "worker")
		q.refused(409, "not-in-progress", "POST", of(task, what), M{}, "worker")
	}
	q.claim()
	for _, what := range []string{"/heartbeat", "/nack", "/abandon"} {
		q.refused(403, "not-owner", "POST", of(task, what), M{}, "colleague")
	}
	q.refused(404, "not found", "GET", "/tasks/"+unknown, nil, "producer")
	q.refused(403, "event type not allowed", "POST", "/tasks/claim", M{"commands": L{"other"}}, "narrow")
	for text, body := range map[string]any{
		"invalid body":                  []byte("{"),
		"invalid webhook url":           M{"command": q.command, "payload": M{}, "webhook": "ftp://example.org"},
		"invalid 'runAt' (use RFC3339)": M{"command": q.command, "payload": M{}, "runAt": "tomorrow"},
	} {
		q.refused(400, text, "POST", "/tasks", body, "producer")
	}
	q.check(q.call(401, "POST", "/tasks", M{}, "").header.Get("WWW-Authenticate") != "", "no WWW-Authenticate")
	q.call(404, "GET", "/nothing/here", nil, "producer")
	q.call(405, "DELETE", "/tasks/claim", nil, "worker")
}

// A waiting claim is answered when a task comes, a waiting read when the result does.
func TestWaiting(t *testing.T) {
	q := newQueue(t)
	claims, results := make(chan answer, 1), make(chan answer, 1)
	go func() {
		claims <- q.send("POST", "/tasks/claim", M{"commands": L{q.command}, "waitSeconds": 20}, "worker")
	}()
	task := q.create(nil)
	q.equal(q.object(<-claims)["id"], task["id"])
	go func() { results <- q.send("GET", of(task, "/result?waitSeconds=20"), nil, "producer") }()
	q.complete(task)
	q.has(q.object(<-results)["result"].(M), M{"status": "COMPLETED"})
}

// A bad item of a batch, whatever is wrong with it, fails alone.
func TestCreateBatchWithBadItems(t *testing.T) {
	q := newQueue(t)
	good := M{"command": q.command, "payload": M{}}
	for _, bad := range []struct {
		item any
		text string
	}{
		{M{"payload": M{}}, "invalid command"},
		{M{"command": "  ", "payload": M{}}, "invalid command"},
		{M{"command": q.command}, ""},
		{M{"command": 7, "payload": M{}}, ""},
		{M{"command": q.command, "payload": M{}, "priority": "high"}, ""},
		{M{"command": q.command, "payload": M{}, "webhook": "nowhere"}, "invalid webhook url"},
		{M{"command": q.command, "payload": M{}, "prioritiy": 1}, ""},
		{nil, ""},
		{L{}, ""},
	} {
		answer := q.object(q.call(200, "POST", "/tasks/batch", M{"tasks": L{good, bad.item, good}}, "producer"))
		results := objects(answer["results"])
		q.check(results[0]["task"] != nil && results[1]["task"] == nil && results[2]["task"] != nil, answer)
		q.check(results[1]["error"] != nil && (bad.text == "" || results[1]["error"] == bad.text), answer)
	}
	many := make([]M, 101)
	for n := range many {
		many[n] = good
	}
	q.refused(400, "batch size exceeds maximum of 100", "POST", "/tasks/batch", M{"tasks": many}, "producer")
}

// Claims and results in batches; a bad result fails alone.
func TestResultsBatchWithBadItems(t *testing.T) {
	q := newQueue(t)
	claim := M{"commands": L{q.command}, "count": 10, "leaseSeconds": 60}
	q.call(204, "POST", "/tasks/claim/batch", claim, "worker")
	for range 4 {
		q.create(nil)
	}
	held := objects(q.object(q.call(200, "POST", "/tasks/claim/batch", claim, "worker"))["tasks"])
	q.equal(len(held), 4)
	items := L{
		M{"taskId": held[0]["id"], "status": "COMPLETED", "result": M{"n": 1}},
		M{"taskId": unknown, "status": "COMPLETED", "result": M{}},
		M{"taskId": held[1]["id"], "status": "FAILED", "error": "  "},
		M{"taskId": held[2]["id"], "status": "MAYBE"},
		M{"taskId": held[3]["id"], "status": "FAILED", "error": "broken"},
	}
	answer := q.object(q.call(200, "POST", "/tasks/batch/results", M{"results": items}, "worker"))
	texts := L{nil, "task not found", "error required when status=FAILED", "invalid status", nil}
	for n, result := range objects(answer["results"]) {
		q.has(result, M{"taskId": items[n].(M)["taskId"], "error": texts[n]})
	}
}

// Writing the same policy again changes nothing, whatever the order of its tiers; deleting it again succeeds.
func TestTopics(t *testing.T) {
	q := newQueue(t)
	path := "/admin/topics/" + q.command
	policy := M{"priorityTiers": L{9, 1, 5}, "maxAttempts": 3}
	q.has(q.object(q.call(201, "PUT", path, policy, "admin")), M{"topicName": q.command, "version": 1})
	policy["priorityTiers"] = L{5, 9, 1}
	q.has(q.object(q.call(200, "PUT", path, policy, "admin")), M{"version": 1})
	policy["maxAttempts"] = 4
	q.has(q.object(q.call(200, "PUT", path, policy, "admin")), M{"version": 2})
	q.call(400, "DELETE", path, nil, "admin")
	for range 2 {
		q.call(204, "DELETE", path+"?deletionPolicy=Delete", nil, "admin")
	}
	q.call(404, "GET", path, nil, "admin")
	for _, name := range []string{"Upper", "-dash", "under_score", strings.Repeat("x", 64)} {
		refused := q.object(q.call(422, "PUT", "/admin/topics/"+name, M{"maxAttempts": 3}, "admin"))
		q.check(refused["field"] != nil, refused)
	}
	refused := q.object(q.call(422, "PUT", path, M{"maxAttempts": 0}, "admin"))
	q.check(strings.HasSuffix(fmt.Sprint(refused["field"]), "maxAttempts"), refused)
}

// A mistyped field or parameter is refused by its name, and changes nothing.
func TestUnknownFields(t *testing.T) {
	q := newQueue(t)
	task := q.create(nil)
	for _, typo := range []struct {
		method, path string
		body         any
		token, name  string
	}{
		{"POST", "/tasks/claim", M{"command": q.command}, "worker", "command"},
		{"POST", "/tasks", M{"command": q.command, "payload": M{}, "prioritiy": 1}, "producer", "prioritiy"},
		{"POST", "/admin/dlq/" + q.command + "/purge", M{"errorContians": "x"}, "admin", "errorContians"},
		{"POST", "/admin/tasks/cleanup", M{"befor": "2026-01-01T00:00:00Z"}, "admin", "befor"},
		{"POST", of(task, "/nack"), M{"error": "no"}, "worker", "error"},
		{"GET", "/tasks?comand=" + q.command, nil, "producer", "comand"},
	} {
		refused := q.object(q.call(400, typo.method, typo.path, typo.body, typo.token))
		q.equal(refused["code"], "unknown_field")
		q.check(strings.Contains(fmt.Sprint(refused["detail"]), typo.name), refused)
	}
	q.has(q.task(task["id"]), M{"status": "PENDING"})
}

// The flat map of codeQ's keys, the statistics of one queue, and a cleanup that leaves what has just finished.
func TestAdmin(t *testing.T) {
	q := newQueue(t)
	q.create(M{"priority": 3})
	q.create(M{"delaySeconds": 60})
	held := q.claimed(M{"priority": 9})
	queues := q.object(q.call(200, "GET", "/admin/queues", nil, "admin"))
	key := "codeq:q:" + q.command + ":acme"
	q.has(queues, M{key + ":pending:3": 1, key + ":delayed": 1, key + ":inprog": 1, key + ":dlq": nil})
	stats := q.object(q.call(200, "GET", "/admin/queues/"+q.command, nil, "admin"))
	q.has(stats, M{"command": q.command, "ready": 1, "delayed": 1, "inProgress": 1, "dlq": 0})
	q.call(403, "GET", "/admin/queues", nil, "producer")
	q.complete(held)
	cleaned := q.object(q.call(200, "POST", "/admin/tasks/cleanup", M{"limit": 1_000_000}, "admin"))
	q.check(cleaned["before"] != nil && cleaned["deleted"] != nil && cleaned["limit"] != nil, cleaned)
	q.has(q.task(held["id"]), M{"status": "COMPLETED"})
	state := q.object(q.call(200, "GET", "/raft/status", nil, "producer"))
	q.check(state["enabled"] != nil && state["numGroups"] != nil && state["groups"] != nil, state)
}

// The text format of Prometheus 0.0.4, unless OpenMetrics is asked for.
func TestMetricsByAccept(t *testing.T) {
	q := newQueue(t)
	plain := q.call(200, "GET", "//metrics", nil, "producer")
	q.check(strings.Contains(plain.header.Get("Content-Type"), "version=0.0.4"), plain.header)
	accept := "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
	open := q.call(200, "GET", "//metrics", nil, "producer", "Accept", accept)
	q.check(strings.Contains(open.header.Get("Content-Type"), "application/openmetrics-text"), open.header)
	q.check(strings.HasSuffix(strings.TrimSpace(string(open.body)), "# EOF"), "no # EOF")
}
