#!/usr/bin/env python3
"""infra/lint.py finds what it is there to find: each mutation of template.yaml breaks one rule of this stack.

Run by infra/ci/lint.sh with the interpreter of the environment that holds aws-sam-cli.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "infra"))

import lint  # noqa: E402

# What is replaced, by what, and a part of the finding.
MUTATIONS = [
    ("Visibility: 960", "Visibility: 900", "is not the worker's timeout 900 s + 60 s"),
    ('"60": { Visibility: 120 }', '"60": { Visibility: 60 }', "visibility 60 s"),
    ('"600", "900"]', '"600", "900", "30"]', "30"),
    ("      VisibilityTimeout: 120", "      VisibilityTimeout: 60", "is not the drain's timeout 60 s + 60 s"),
    ("            Queue: !GetAtt DeadLetterQueue.Arn", "            Queue: !GetAtt InputQueue.Arn", "does not drain"),
    ("            Queue: !GetAtt DelayQueue.Arn", "            Queue: !GetAtt InputQueue.Arn", "does not forward"),
    ("function.\n      VisibilityTimeout: !FindInMap [WorkerTimeouts, !Ref WorkerTimeout, Visibility]", "function.\n      VisibilityTimeout: 30", "does not follow"),
    ("Timeout: 29", "Timeout: 30", "outlasts the gateway"),
    ("Timeout: !Ref WorkerTimeout", "Timeout: 900", "visibility 120 s is not the worker's timeout 900 s"),
    ("POST /threads/{id}/compact", "POST /threads/{id}/shrink", "/threads/{id}/compact is not routed"),
    ("POST /threads/{id}/compact", "POST /threads/{id}/shrink", "/threads/{id}/shrink is no route"),
    ("InvokeMode: RESPONSE_STREAM", "InvokeMode: BUFFERED", "RESPONSE_STREAM"),
    ("InvokeMode: RESPONSE_STREAM", "InvokeMode: RESPONSE_STREAM\n      Cors: { AllowOrigins: ['*'] }", "said twice"),
    ("Default: AWS_IAM", "Default: NONE", "open to everybody"),
    ("AuthType: !Ref StreamAuth", "AuthType: NONE", "open to everybody"),
    ("    Condition: StreamIsPublic\n", "", "whatever StreamAuth says"),
    ("DeduplicationScope: messageGroup", "DeduplicationScope: queue", "DeduplicationScope"),
    ("FifoThroughputLimit: perMessageGroupId", "FifoThroughputLimit: perQueue", "FifoThroughputLimit"),
    ("ContentBasedDeduplication: false", "ContentBasedDeduplication: true", "content-based"),
    ("maxReceiveCount: 100", "maxReceiveCount: 3", "maxReceiveCount"),
    ("!GetAtt DeadLetterQueue.Arn, max", "!GetAtt OutputQueue.Arn, max", "dead letters"),
    ("RecursiveLoop: Allow", "RecursiveLoop: Terminate", "16 hops"),
    ("FunctionResponseTypes: [ReportBatchItemFailures]", "Enabled: true", "repeats its whole batch"),
    ("AttributeName: expires_at", "AttributeName: ttl", "expires_at"),
    ("DeletionPolicy: Retain", "DeletionPolicy: Delete", "must outlive the stack"),
    ("LogFormat: JSON", "LogFormat: Text", "not JSON"),
    ("      AssumeRolePolicyDocument:", "      ManagedPolicyArns: [arn:x]\n      AssumeRolePolicyDocument:", "managed policies"),
    ("- dynamodb:PutItem", '- "dynamodb:*"', "by wildcard"),
    ("Resource: !GetAtt Table.Arn", 'Resource: "*"', "every resource"),
]


def findings(source):
    return list(lint.own_rules(lint.expand(source), ROOT))


def main():
    source = (ROOT / "template.yaml").read_text()
    passed = failed = 0
    for old, new, expected in [("", "", None), *MUTATIONS]:
        if old not in source:
            found, right = f"nothing to replace: {old!r}", False
        else:
            found = findings(source.replace(old, new, 1))
            right = any(expected in finding for finding in found) if expected else not found
        passed, failed = passed + right, failed + (not right)
        if not right:
            print(f"FAILED  {old!r} -> {new!r}: wanted {expected!r}, found {found}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
