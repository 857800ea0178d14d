"""A worker in Python, with nothing but the standard library."""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request

API = os.environ.get("CODEQ_HTTP_URL", "http://127.0.0.1:8080") + "/v1/codeq"
TOKEN = os.environ.get("CODEQ_TOKEN", "dev-token")
WORKER = f"python-{os.getpid()}"


def call(path, body):
    """Returns the server's response, or None if it has no body."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(API + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read()
        return json.loads(text) if text else None


def resize(payload):
    if payload["image"] < 1:
        raise ValueError(f"no such image: {payload['image']}")
    return {"image": payload["image"], "width": 640}


def work():
    """Waits up to 20 seconds for a task and processes it."""
    claim = {"commands": ["resize"], "workerId": WORKER, "leaseSeconds": 60, "waitSeconds": 20}
    task = call("/tasks/claim", claim)
    if task is None:
        return
    lease = {"workerId": WORKER, "fence": task["fence"]}
    try:
        result = resize(json.loads(task["payload"]))
    except Exception as error:
        call(f"/tasks/{task['id']}/nack", {**lease, "reason": str(error)})
    else:
        call(f"/tasks/{task['id']}/result", {**lease, "status": "COMPLETED", "result": result})


while True:
    try:
        work()
    except (OSError, http.client.HTTPException) as error:
        # The server is unreachable or refused the call, for example because the lease has ended.
        print(error, file=sys.stderr)
        time.sleep(1)
