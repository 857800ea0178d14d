// Package compat drives a server the way codeQ's Go SDKs do. `tests/compat/run.py` starts the server and names the file
// with its addresses and tokens in COMPAT_FACTS.
package compat

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Whatever comes at once has come by then.
const patience = 30 * time.Second

// An id that no task has.
const unknown = "00000000-0000-4000-8000-000000000000"

// M is a JSON object.
type M = map[string]any

// L is a JSON array.
type L = []any

type factsFile struct {
	HTTP, Producer, Worker, Mint, Issuer, Audience, Messages, WebhookSecret, PublicURL, Binary string

	Tokens map[string]string
}

var facts = func() (read factsFile) {
	text, err := os.ReadFile(os.Getenv("COMPAT_FACTS"))
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "COMPAT_FACTS names no file of facts: run `make compat`:", err)
		os.Exit(1)
	}
	return read
}()

// queue is a case with a queue of its own.
type queue struct {
	*testing.T
	command string
}

func newQueue(t *testing.T) *queue {
	var random [4]byte
	rand.Read(random[:])
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
	return &queue{t, name + "-" + hex.EncodeToString(random[:])}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %.400s", a.status, a.body) }

// object is the answer as a JSON object.
func (q *queue) object(a answer) M {
	q.Helper()
	var read M
	if err := json.Unmarshal(a.body, &read); err != nil {
		q.Fatalf("%v is not an object: %v", a, err)
	}
	return read
}

// send makes one request below /v1/codeq, or anywhere if the path begins with two slashes. A body is sent as JSON, bytes as
// they are, and none if it is nil. Redirects are followed, as net/http does.
func (q *queue) send(method, path string, body any, token string, headers ...string) answer {
	q.Helper()
	if rest, anywhere := strings.CutPrefix(path, "//"); anywhere {
		path = "/" + rest
	} else {
		path = "/v1/codeq" + path
	}
	var data io.Reader
	switch body := body.(type) {
	case nil:
	case []byte:
		data = bytes.NewReader(body)
	default:
		text, err := json.Marshal(body)
		q.must(err)
		data = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, facts.HTTP+path, data)
	q.must(err)
	if fixed, ok := facts.Tokens[token]; ok {
		token = fixed
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if data != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for n := 0; n < len(headers); n += 2 {
		request.Header.Set(headers[n], headers[n+1])
	}
	client := http.Client{Timeout: 2 * patience}
	response, err := client.Do(request)
	q.must(err)
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	q.must(err)
	return answer{response.StatusCode, response.Header, read}
}

// call makes a request that is answered with this status.
func (q *queue) call(status int, method, path string, body any, token string, headers ...string) answer {
	q.Helper()
	got := q.send(method, path, body, token, headers...)
	if got.status != status {
		q.Fatalf("%s %s: expected %d, got %v", method, path, status, got)
	}
	return got
}

// refused makes a request that is refused with the text that codeQ's clients read.
func (q *queue) refused(status int, text, method, path string, body any, token string) {
	q.Helper()
	q.equal(q.object(q.call(status, method, path, body, token))["error"], text)
}

// create makes a task in the case's queue.
func (q *queue) create(fields M) M {
	q.Helper()
	task := M{"command": q.command, "payload": M{"n": 1}}
	for name, value := range fields {
		task[name] = value
	}
	return q.object(q.call(202, "POST", "/tasks", task, "producer"))
}

// claim takes a task of the case's queue, which must be there.
func (q *queue) claim() M {
	q.Helper()
	body := M{"commands": L{q.command}, "leaseSeconds": 60, "waitSeconds": 5}
	return q.object(q.call(200, "POST", "/tasks/claim", body, "worker"))
}

// claimed makes a task and takes it.
func (q *queue) claimed(fields M) M {
	q.Helper()
	task := q.create(fields)
	held := q.claim()
	q.equal(held["id"], task["id"])
	return held
}

func (q *queue) nothingToClaim() {
	q.Helper()
	q.call(204, "POST", "/tasks/claim", M{"commands": L{q.command}}, "worker")
}

func (q *queue) complete(task M) M {
	q.Helper()
	body := M{"status": "COMPLETED", "result": M{"ok": true}}
	return q.object(q.call(200, "POST", of(task, "/result"), body, "worker"))
}

func (q *queue) task(id any) M {
	q.Helper()
	return q.object(q.call(200, "GET", fmt.Sprintf("/tasks/%v", id), nil, "producer"))
}

// of is a route of a task.
func of(task M, rest string) string { return fmt.Sprintf("/tasks/%v%s", task["id"], rest) }

func (q *queue) must(err error) {
	q.Helper()
	if err != nil {
		q.Fatal(err)
	}
}

func (q *queue) check(good bool, what any) {
	q.Helper()
	if !good {
		q.Fatal(what)
	}
}

// equal compares as JSON, so that 1 is 1.0.
func (q *queue) equal(got, want any) {
	q.Helper()
	if !reflect.DeepEqual(plain(got), plain(want)) {
		q.Fatalf("got %v, want %v", got, want)
	}
}

// has checks some fields of an object.
func (q *queue) has(got M, want M) {
	q.Helper()
	for name, value := range want {
		if !reflect.DeepEqual(plain(got[name]), plain(value)) {
			q.Fatalf("%s is %v, want %v, in %v", name, got[name], value, got)
		}
	}
}

func plain(value any) (read any) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		panic(err)
	}
	return read
}

// mint requests a token from the issuer. A claim of nil is left out.
func (q *queue) mint(claims M) string {
	q.Helper()
	now := time.Now().Unix()
	all := M{"iss": facts.Issuer, "aud": facts.Audience, "exp": now + 300, "iat": now, "tid": "acme"}
	for name, value := range claims {
		all[name] = value
	}
	text, err := json.Marshal(all)
	q.must(err)
	response, err := http.Post(facts.Mint, "application/json", bytes.NewReader(text))
	q.must(err)
	defer response.Body.Close()
	token, err := io.ReadAll(response.Body)
	q.must(err)
	return string(token)
}

type delivery struct {
	header http.Header
	body   []byte
}

// receiver is somebody's HTTP server, which takes webhooks.
func (q *queue) receiver() (string, <-chan delivery) {
	calls := make(chan delivery, 64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls <- delivery{r.Header, body}
		w.WriteHeader(http.StatusNoContent)
	}))
	q.Cleanup(server.Close)
	return server.URL + "/hook", calls
}
