#!/usr/bin/env bash
# A worker in bash, with curl and jq.
set -u
api=${CODEQ_HTTP_URL:-http://127.0.0.1:8080}/v1/codeq
worker=bash-$$

post() {
  curl -sS --fail-with-body "$api/$1" -H "Authorization: Bearer ${CODEQ_TOKEN:-dev-token}" -d "$2"
}

while true; do
  # Waits up to 20 seconds for a task.
  claim='{"commands":["resize"],"workerId":"'$worker'","leaseSeconds":60,"waitSeconds":20}'
  task=$(post tasks/claim "$claim") || { sleep 1; continue; }
  [ -n "$task" ] || continue
  id=$(jq -r .id <<<"$task")
  image=$(jq '.payload | fromjson | .image' <<<"$task")
  lease=$(jq --arg worker "$worker" '{fence, workerId: $worker}' <<<"$task")
  if [ "$image" -gt 0 ]; then
    result=$(jq --argjson image "$image" '. + {status: "COMPLETED", result: {image: $image, width: 640}}' <<<"$lease")
    post "tasks/$id/result" "$result"
  else
    post "tasks/$id/nack" "$(jq --arg reason "no such image: $image" '. + {reason: $reason}' <<<"$lease")"
  fi
done
