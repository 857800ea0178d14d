"""Verifies one call: the headers as JSON on the first line of stdin, the body after it, the secret as argument.

Says of each of the two signatures whether it is good.
"""

import hashlib
import hmac
import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError


def standard(secret, headers, body):
    try:
        Webhook(secret).verify(body, headers)
        return True
    except WebhookVerificationError:
        return False


def codeq(secret, headers, body):
    signed = headers["x-codeq-timestamp"].encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, headers.get("x-codeq-signature", ""))


headers = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
for verify in (standard, codeq):
    print("good" if verify(sys.argv[1], headers, body) else "bad")
