package compat

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"
)

var sevenKeys = []string{"artifacts", "completedAt", "error", "eventType", "result", "status", "taskId"}

// verified is the next call, whose signature holds, as JSON.
func (q *queue) verified(calls <-chan delivery) M {
	q.Helper()
	select {
	case call := <-calls:
		mac := hmac.New(sha256.New, []byte(facts.WebhookSecret))
		mac.Write([]byte(call.header.Get("X-CodeQ-Timestamp") + "."))
		mac.Write(call.body)
		q.equal(call.header.Get("X-CodeQ-Signature"), hex.EncodeToString(mac.Sum(nil)))
		var read M
		q.must(json.Unmarshal(call.body, &read))
		return read
	case <-time.After(patience):
		q.Fatal("nothing was posted")
		return nil
	}
}

// Every callback has all seven keys, however the task ended.
func TestResultCallbacks(t *testing.T) {
	q := newQueue(t)
	url, calls := q.receiver()
	done := q.claimed(M{"webhook": url})
	artifacts := L{M{"name": "a", "url": "https://files.example.org/a"}}
	body := M{"status": "COMPLETED", "result": M{"ok": 1}, "artifacts": artifacts}
	q.call(200, "POST", of(done, "/result"), body, "worker")
	told := q.verified(calls)
	q.equal(slices.Sorted(maps.Keys(told)), sevenKeys)
	q.has(told, M{"taskId": done["id"], "eventType": q.command, "status": "COMPLETED", "result": M{"ok": 1}, "error": ""})
	q.has(told, M{"artifacts": artifacts})

	failed := q.claimed(M{"webhook": url})
	q.call(200, "POST", of(failed, "/result"), M{"status": "FAILED", "error": "broken"}, "worker")
	told = q.verified(calls)
	q.equal(slices.Sorted(maps.Keys(told)), sevenKeys)
	q.has(told, M{"taskId": failed["id"], "status": "FAILED", "error": "broken"})

	dead := q.claimed(M{"webhook": url, "maxAttempts": 1})
	q.call(200, "POST", of(dead, "/nack"), M{}, "worker")
	told = q.verified(calls)
	q.equal(slices.Sorted(maps.Keys(told)), sevenKeys)
	q.has(told, M{"taskId": dead["id"], "status": "FAILED", "error": "MAX_ATTEMPTS"})
}

// A subscription is created, notified and renewed; claimUrl is the path that codeQ sends.
func TestNotifications(t *testing.T) {
	q := newQueue(t)
	url, calls := q.receiver()
	body := M{"callbackUrl": url, "eventTypes": L{q.command}, "ttlSeconds": nil, "deliveryMode": nil, "groupId": nil}
	made := q.object(q.call(200, "POST", "/workers/subscriptions", body, "worker"))
	q.equal(slices.Sorted(maps.Keys(made)), L{"expiresAt", "subscriptionId"})
	q.create(nil)
	told := q.verified(calls)
	q.has(told, M{"eventType": q.command, "available": true, "queueDepth": 1, "claimUrl": "/v1/codeq/tasks/claim"})
	q.has(told, M{"claimUrlAbsolute": facts.PublicURL + "/v1/codeq/tasks/claim"})
	q.check(told["sentAt"] != nil && told["notificationId"] != nil, told)
	path := "/workers/subscriptions/" + made["subscriptionId"].(string)
	for _, renewal := range []any{M{"ttlSeconds": 60}, nil, []byte("null")} {
		q.call(200, "POST", path+"/heartbeat", renewal, "worker")
	}
	q.call(404, "POST", "/workers/subscriptions/nobody/heartbeat", M{}, "worker")
}
