// A worker in Go, with nothing but the standard library.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

var (
	api      = cmp.Or(os.Getenv("CODEQ_HTTP_URL"), "http://127.0.0.1:8080") + "/v1/codeq"
	token    = cmp.Or(os.Getenv("CODEQ_TOKEN"), "dev-token")
	workerID = fmt.Sprintf("go-%d", os.Getpid())
	client   = http.Client{Timeout: time.Minute}
)

type object map[string]any

// call decodes the body of the server's response, if there is one, into out.
func call(path string, body object, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, api+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s", text)
	}
	if err != nil || len(text) == 0 {
		return err
	}
	return json.Unmarshal(text, out)
}

func resize(payload string) (object, error) {
	var input struct{ Image int }
	if err := json.Unmarshal([]byte(payload), &input); err != nil {
		return nil, err
	}
	if input.Image < 1 {
		return nil, fmt.Errorf("no such image: %d", input.Image)
	}
	return object{"image": input.Image, "width": 640}, nil
}

// work waits up to 20 seconds for a task and processes it.
func work() error {
	var task struct {
		ID, Payload string
		Fence       int64
	}
	claim := object{"commands": []string{"resize"}, "workerId": workerID, "leaseSeconds": 60, "waitSeconds": 20}
	if err := call("/tasks/claim", claim, &task); err != nil || task.ID == "" {
		return err
	}
	var answer object
	result, err := resize(task.Payload)
	if err != nil {
		failure := object{"workerId": workerID, "fence": task.Fence, "reason": err.Error()}
		return call("/tasks/"+task.ID+"/nack", failure, &answer)
	}
	success := object{"workerId": workerID, "fence": task.Fence, "status": "COMPLETED", "result": result}
	return call("/tasks/"+task.ID+"/result", success, &answer)
}

func main() {
	for {
		// The server is unreachable or refused the call, for example because the lease has ended.
		if err := work(); err != nil {
			log.Print(err)
			time.Sleep(time.Second)
		}
	}
}
