#!/bin/sh
# For `codeq worker run`: reads the payload, prints the result.
image=$(grep -o '"image": *[0-9]*' | grep -o '[0-9]*$')
[ "${image:-0}" -gt 0 ] || { echo "no such image: $image" >&2; exit 75; }
echo "{\"image\": $image, \"width\": 640}"
