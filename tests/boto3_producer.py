#!/usr/bin/env python3
"""A producer as they exist: sends one user text with boto3 and waits for its answer on the output queue.

    python tests/boto3_producer.py QUEUE_URL OUTPUT_QUEUE_URL ENDPOINT [--thread ID] [--text TEXT] [--expect PART] [--timeout S]

Prints the answer and exits 0, or says what it saw instead and exits 1. Answers to others stay on the queue. It proves
that the queues speak to a client that nobody here wrote, and that the JSON of today's producers is understood.
"""

import argparse
import json
import sys
import time
import uuid

import boto3


def input_message(thread, text, metadata):
    """An input message exactly as existing producers write it, with its explicit nulls."""
    return json.dumps({
        "content": {"type": "text", "text": text},
        "group_id": thread,
        "metadata": metadata,
        "synthetic": None,
        "display_as": None,
        "subscription": False,
    })


def answers(sqs, queue_url, timeout):
    """The messages of a queue as (receipt handle, parsed body), until the time is over."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        received = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=5)
        for message in received.get("Messages", []):
            yield message["ReceiptHandle"], json.loads(message["Body"])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("queue_url")
    arguments.add_argument("output_queue_url")
    arguments.add_argument("endpoint")
    arguments.add_argument("--thread", default=f"boto3-{uuid.uuid4()}")
    arguments.add_argument("--text", default="hello from boto3")
    arguments.add_argument("--expect", default="", help="part of the answer's text to wait for; any answer by default")
    arguments.add_argument("--timeout", type=float, default=30)
    args = arguments.parse_args()

    sqs = boto3.client("sqs", endpoint_url=args.endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
    # Metadata comes back with every answer: that is how a producer knows its own.
    request = str(uuid.uuid4())
    sqs.send_message(
        QueueUrl=args.queue_url,
        MessageBody=input_message(args.thread, args.text, {"user_id": "boto3", "request": request}),
        MessageGroupId=args.thread,
        MessageDeduplicationId=request,
    )
    seen = []
    for receipt, body in answers(sqs, args.output_queue_url, args.timeout):
        if (body.get("metadata") or {}).get("request") != request:
            continue
        seen.append(body)
        sqs.delete_message(QueueUrl=args.output_queue_url, ReceiptHandle=receipt)
        if args.expect in body.get("text", ""):
            print(body.get("text", ""))
            return 0
    print(f"no answer with {args.expect!r} within {args.timeout} s; of ours there came: {json.dumps(seen)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
