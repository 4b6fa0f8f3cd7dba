#!/usr/bin/env python3
"""The stack, built and deployed with the ordinary SAM commands, then driven as its users drive it.

    python tests/stack_test.py [--build-dir DIR] [--keep]

AWS is ministack, in a process group of its own on a free loopback port, with IAM enforced: a right that is missing in
template.yaml fails here. The worker runs the scripted model; the tool server is tests/support/fake_tool_server.py, and
the callbacks are posted by this test. Ends with a line `N passed, N failed`, and with status 1 if any failed.

Run it through infra/ci/stack.sh, with the interpreter of the environment that holds ministack. `--build-dir` deploys
what `sam build` has left there instead of building; `--keep` leaves the work folder, with the emulator's log.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from boto3_producer import answers, input_message  # noqa: E402
from support.fake_tool_server import FakeToolServer  # noqa: E402

STACK = "dormouse-test"
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
SAM = Path(os.environ["DORMOUSE_SAM"]) / "sam"
MINISTACK = Path(os.environ["DORMOUSE_MINISTACK"]) / "ministack"
CARGO_LAMBDA = os.environ["DORMOUSE_LAMBDA"]

# A cold start, a slice and a sweep of the emulator's queues together take a second; this is for a busy machine.
PATIENCE = 60


# ------------------------------------------------------------------------------------------------- the emulator


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def emulator(work):
    """ministack's URL while the block runs; then its whole process group is ended, the functions with it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    for folder in ("home", "tmp"):
        (work / folder).mkdir()
    # Nothing of this environment: the functions inherit what ministack has. AWS_ENDPOINT_URL is what leads them back.
    environment = CREDENTIALS | {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work / "home"),
        "TMPDIR": str(work / "tmp"),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "AUTH": "true",
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": REGION,
    }
    with open(work / "ministack.log", "wb") as log:
        process = subprocess.Popen([MINISTACK], env=environment, cwd=work, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/_ministack/health", timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"ministack does not answer (exit status {process.poll()})")
            time.sleep(0.1)
        yield url
    finally:
        # The group outlives its leader: a bootstrap may still run when ministack is gone.
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        process.wait()


# ------------------------------------------------------------------------------------------------------- SAM


def sam(*arguments, endpoint=None):
    """Runs one SAM command in the root of the repository; its output is shown only if it fails."""
    environment = os.environ | CREDENTIALS | {"SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": REGION}
    environment["PATH"] = CARGO_LAMBDA + os.pathsep + environment["PATH"]
    environment.pop("AWS_PROFILE", None)
    if endpoint:
        environment["AWS_ENDPOINT_URL"] = endpoint
    print(f"sam {arguments[0]} …", flush=True)
    started = time.monotonic()
    done = subprocess.run([SAM, *arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print(f"sam {arguments[0]}: exit status {done.returncode} after {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-8000:], sep="\n", flush=True)
        raise RuntimeError(f"sam {arguments[0]} failed")


def build(folder):
    sam("build", "--template", str(ROOT / "template.yaml"), "--build-dir", str(folder), "--parameter-overrides", "Architecture=x86_64")


def deploy(endpoint, build_dir, work, parameters):
    """Deploys, or updates, and gives the stack's outputs."""
    # JSON is YAML; a file carries TOML and JSON values that no command line would.
    file = work / "parameters.yaml"
    file.write_text(json.dumps(parameters))
    sam("deploy", "--template-file", str(build_dir / "template.yaml"), "--config-file", str(ROOT / "samconfig.toml"), "--stack-name", STACK, "--region", REGION,
        "--no-confirm-changeset", "--no-progressbar", "--parameter-overrides", f"file://{file}", endpoint=endpoint)
    stack = client("cloudformation", endpoint).describe_stacks(StackName=STACK)["Stacks"][0]
    if not stack["StackStatus"].endswith("_COMPLETE") or "ROLLBACK" in stack["StackStatus"]:
        raise RuntimeError(f"the stack is {stack['StackStatus']}")
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def client(service, endpoint, key="test", secret="test"):
    return boto3.client(service, endpoint_url=endpoint, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret)


# --------------------------------------------------------------------------------------------------- the world


class World:
    """The deployed stack and the ways in which its users reach it."""

    def __init__(self, endpoint, outputs, api_base, tools):
        self.endpoint = endpoint
        self.out = outputs
        self.api_base = api_base
        self.tools = tools
        self.sqs = client("sqs", endpoint)
        self.table = client("dynamodb", endpoint)
        self.lambdas = client("lambda", endpoint)
        self.outputs_seen = []

    def send(self, thread, text, dedup_id):
        self.sqs.send_message(
            QueueUrl=self.out["InputQueueUrl"],
            MessageBody=input_message(thread, text, {"user_id": "u-1"}),
            MessageGroupId=thread,
            MessageDeduplicationId=dedup_id,
        )

    def http(self, method, url, body=None):
        """The status and body of a request through the gateway."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def wait_for_output(self, *parts):
        """The first message on the output queue whose text holds every part."""
        for receipt, body in answers(self.sqs, self.out["OutputQueueUrl"], PATIENCE):
            self.sqs.delete_message(QueueUrl=self.out["OutputQueueUrl"], ReceiptHandle=receipt)
            self.outputs_seen.append(body)
            if all(part in body.get("text", "") for part in parts):
                return body
        raise AssertionError(f"no output with {parts}; there came {self.outputs_seen}")

    def rows(self, pk, prefix):
        pages = self.table.get_paginator("query").paginate(
            TableName=self.out["TableName"],
            KeyConditionExpression="pk = :pk AND begins_with(sk, :prefix)",
            ExpressionAttributeValues={":pk": {"S": pk}, ":prefix": {"S": prefix}},
            ConsistentRead=True,
        )
        return [row for page in pages for row in page["Items"]]

    def thread(self, thread):
        """Everything stored for a thread, for comparison; the time of the last look is not part of it."""
        return {"items": self.rows(f"L#0#{thread}", "I#"), "head": [row.get("head") for row in self.rows(f"T#{thread}", "META")]}

    def dead_letter(self):
        """The one dead letter of THREAD."""
        end = time.monotonic() + PATIENCE
        while not (letters := self.rows(f"T#{THREAD}", "U#")):
            assert time.monotonic() < end, "no dead letter is kept"
            time.sleep(0.2)
        letter, = letters
        return letter

    def dormouse(self, *arguments):
        """Runs the command as an operator does, on the deployed stack."""
        environment = os.environ | CREDENTIALS | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "DORMOUSE_AWS__TABLE": self.out["TableName"],
            "DORMOUSE_AWS__INPUT_QUEUE_URL": self.out["InputQueueUrl"],
        }
        command = ["cargo", "run", "--quiet", "--bin", "dormouse", "--", "--aws", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"dormouse {arguments}: {done.stdout} {done.stderr}"
        return done.stdout

    def waiting(self, queue):
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.out[queue], AttributeNames=["All"])["Attributes"]
        return int(attributes["ApproximateNumberOfMessages"]) + int(attributes["ApproximateNumberOfMessagesNotVisible"])

    def settle(self, queue):
        """Waits until a queue is empty, in flight included."""
        end = time.monotonic() + PATIENCE
        while self.waiting(queue):
            assert time.monotonic() < end, f"{self.waiting(queue)} messages stay on {queue}"
            time.sleep(0.2)

    def logs(self):
        """The functions' log lines, for the eyes of whoever reads a failure."""
        logs = client("logs", self.endpoint)
        for name in ("worker", "drain", "api", "stream"):
            with contextlib.suppress(ClientError):
                events = logs.filter_log_events(logGroupName=f"/dormouse/{STACK}/{name}", limit=200)["events"]
                print(f"--- log of {name}", *(event["message"].rstrip() for event in events), sep="\n")


# --------------------------------------------------------------------------------------------------- the checks
# In this order: each starts from what the one before it has left.

THREAD = "th-1"
DEDUP = str(uuid.uuid4())
CALL = 'call srv_echo {"a":1}'


def iam_is_enforced(world):
    """A user without rights is refused: so what passes below, passes by the template's policies."""
    iam = client("iam", world.endpoint)
    iam.create_user(UserName="nobody")
    key = iam.create_access_key(UserName="nobody")["AccessKey"]
    nobody = client("dynamodb", world.endpoint, key["AccessKeyId"], key["SecretAccessKey"])
    try:
        nobody.get_item(TableName=world.out["TableName"], Key={"pk": {"S": "x"}, "sk": {"S": "x"}})
    except ClientError as refused:
        assert refused.response["Error"]["Code"] == "AccessDeniedException", refused
    else:
        raise AssertionError("a user without any policy could read the table")


def the_health_check_answers_through_the_gateway(world):
    status, body = world.http("GET", f"{world.api_base}/healthz")
    assert status == 200, f"{status} {body}"


def user_text_reaches_the_tool_server(world):
    world.send(THREAD, CALL, DEDUP)
    invocation = world.tools.wait_for_invocation(THREAD, timeout=PATIENCE)
    assert invocation["operation"] == "srv_echo", invocation
    assert invocation["arguments"] == {"a": 1}, invocation
    assert invocation["group_id"] == THREAD and invocation["id"], invocation
    assert invocation["callback_url"].startswith(f"{world.api_base}/rap/"), invocation["callback_url"]


def a_forged_token_is_refused(world):
    invocation = world.tools.wait_for_invocation(THREAD)
    url = invocation["callback_url"]
    # The last character of a base64url MAC may carry unused bits: change one in its middle.
    forged = url[:-20] + ("A" if url[-20] != "A" else "B") + url[-19:]
    status, body = world.http("POST", forged, result(invocation, "forged"))
    assert status == 401, f"{status} {body}"
    status, body = world.http("POST", f"{world.api_base}/rap/nonsense", result(invocation, "forged"))
    assert status == 401, f"{status} {body}"


def a_callback_wakes_the_thread_and_it_answers(world):
    invocation = world.tools.wait_for_invocation(THREAD)
    status, body = world.http("POST", invocation["callback_url"], result(invocation, "echoed 1"))
    assert status == 200, f"{status} {body}"
    answer = world.wait_for_output("result:", "echoed 1")
    assert answer["metadata"].get("user_id") == "u-1", answer
    world.settle("InputQueueUrl")


def the_table_holds_the_turn(world):
    rows = world.rows(f"L#0#{THREAD}", "I#")
    kinds = " ".join(row["kind"]["S"] for row in rows)
    assert re.fullmatch(r"user (assistant )?tool_call tool_result assistant", kinds), kinds
    assert all(row["raw"]["S"] for row in rows), rows
    assert "echoed 1" in rows[-1]["raw"]["S"], rows[-1]
    meta, = world.rows(f"T#{THREAD}", "META")
    assert int(meta["head"]["N"]) == len(rows) + 1, f"head {meta['head']} after {len(rows)} items"


def a_repeated_callback_changes_nothing(world):
    before = world.thread(THREAD)
    invocation = world.tools.wait_for_invocation(THREAD)
    status, body = world.http("POST", invocation["callback_url"], result(invocation, "echoed again"))
    assert status == 200, f"{status} {body}"
    world.settle("InputQueueUrl")
    assert world.thread(THREAD) == before


def the_same_message_again_changes_nothing(world):
    before = world.thread(THREAD)
    # The queue drops it within five minutes; the second way is how it looks to the worker after that.
    world.send(THREAD, CALL, DEDUP)
    world.settle("InputQueueUrl")
    event = {"Records": [{
        "messageId": str(uuid.uuid4()),
        "receiptHandle": "of-a-message-that-is-gone",
        "body": input_message(THREAD, CALL, {"user_id": "u-1"}),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "MessageDeduplicationId": DEDUP,
            "MessageGroupId": THREAD,
            "SequenceNumber": "18850496460467696128",
            "SentTimestamp": str(int(time.time() * 1000)),
        },
        "messageAttributes": {},
        "md5OfBody": "00000000000000000000000000000000",
        "eventSource": "aws:sqs",
        "eventSourceARN": world.out["InputQueueArn"],
        "awsRegion": REGION,
    }]}
    answer = world.lambdas.invoke(FunctionName=world.out["WorkerFunctionName"], Payload=json.dumps(event))
    body = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer, body
    assert not body.get("batchItemFailures"), body
    assert world.thread(THREAD) == before
    assert len(world.tools.of_thread(THREAD)) == 1, world.tools.of_thread(THREAD)


def a_sleep_wakes_by_the_delay_queue(world):
    world.send("th-sleep", 'call sleep {"seconds": 2}', str(uuid.uuid4()))
    world.wait_for_output("result:", "The time is up: 2 seconds have passed.")
    world.settle("DelayQueueUrl")
    world.settle("InputQueueUrl")


def a_long_sleep_is_a_schedule_that_may_send_to_the_delay_queue(world):
    # The emulator (ministack 1.5.33) takes every schedule for one of the group `default` when it looks at policies, and
    # so refuses what the template allows. Until it reads the group, the worker gets that right here.
    role = world.lambdas.get_function_configuration(FunctionName=world.out["WorkerFunctionName"])["Role"].rsplit("/", 1)[1]
    right = {"Effect": "Allow", "Action": "scheduler:CreateSchedule", "Resource": "arn:aws:scheduler:*:*:schedule/default/*"}
    client("iam", world.endpoint).put_role_policy(
        RoleName=role, PolicyName="emulator", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [right]}))
    world.send("th-long", 'call sleep {"seconds": 1000}', str(uuid.uuid4()))
    scheduler, group = client("scheduler", world.endpoint), world.out["ScheduleGroupName"]
    end = time.monotonic() + PATIENCE
    while not (schedules := scheduler.list_schedules(GroupName=group)["Schedules"]):
        assert time.monotonic() < end, "no schedule was made"
        time.sleep(0.2)
    name, = (schedule["Name"] for schedule in schedules)
    schedule = scheduler.get_schedule(GroupName=group, Name=name)
    assert schedule["ActionAfterCompletion"] == "DELETE", schedule
    target = schedule["Target"]
    # Sixteen minutes are too long for a test: it is moved to now, with what is in it unchanged. The worker finds that
    # the time has not come and puts it back for as long as it takes.
    scheduler.update_schedule(
        GroupName=group, Name=name, ScheduleExpression="at(2020-01-01T00:00:00)", Target=target,
        FlexibleTimeWindow=schedule["FlexibleTimeWindow"], ActionAfterCompletion="DELETE")
    def put_back():
        attributes = world.sqs.get_queue_attributes(QueueUrl=world.out["DelayQueueUrl"], AttributeNames=["All"])
        return int(attributes["Attributes"]["ApproximateNumberOfMessagesDelayed"])
    while not put_back():
        assert time.monotonic() < end, "the schedule did not get through the delay queue"
        time.sleep(0.2)
    assert scheduler.list_schedules(GroupName=group)["Schedules"] == [], "it stays when it has fired"
    assert world.waiting("TimerDeadLetterQueueUrl") == 0


def a_webhook_wakes_its_thread(world):
    world.send("th-hook", "call receive_webhook {}", str(uuid.uuid4()))
    told = world.wait_for_output("result:", "/hooks/")["text"]
    url = re.search(r"http\S+/hooks/\S+", told)[0]
    assert url.startswith(f"{world.api_base}/hooks/"), told
    status, body = world.http("POST", url, {"build": "green"})
    assert status == 200, f"{status} {body}"
    world.wait_for_output("result:", '{"build": "green"}')
    status, body = world.http("POST", f"{world.api_base}/hooks/nonsense", {"build": "green"})
    assert status == 401, f"{status} {body}"


def nothing_went_to_the_dead_letter_queue(world):
    assert world.waiting("DeadLetterQueueUrl") == 0


def a_message_that_nobody_can_read_is_kept_and_the_user_is_told(world):
    world.sqs.send_message(
        QueueUrl=world.out["InputQueueUrl"], MessageBody="not json", MessageGroupId=THREAD, MessageDeduplicationId=str(uuid.uuid4()))
    world.wait_for_output("put aside for an operator")
    letter = world.dead_letter()
    assert letter["raw"]["S"] == "not json", letter
    assert "not an InputMessage" in letter["reason"]["S"], letter
    world.settle("DeadLetterQueueUrl")


def a_message_that_died_in_the_queue_is_given_up_on_and_can_be_sent_again(world):
    # As the queue would put it there after a hundred receives, but for the attribute that only a queue can write.
    world.sqs.send_message(
        QueueUrl=world.out["DeadLetterQueueUrl"], MessageBody=input_message("th-2", "say risen", {}), MessageGroupId="th-2",
        MessageDeduplicationId=str(uuid.uuid4()))
    world.wait_for_output("put aside for an operator")
    world.settle("InputQueueUrl")
    item, = world.rows("L#0#th-2", "I#")
    assert "a message was left out" in item["raw"]["S"], item
    letter, = world.rows("T#th-2", "U#")
    world.dormouse("redrive", letter["cause"]["S"])
    world.wait_for_output("risen")
    assert world.rows("T#th-2", "U#") == []


CHECKS = [
    iam_is_enforced,
    the_health_check_answers_through_the_gateway,
    user_text_reaches_the_tool_server,
    a_forged_token_is_refused,
    a_callback_wakes_the_thread_and_it_answers,
    the_table_holds_the_turn,
    a_repeated_callback_changes_nothing,
    the_same_message_again_changes_nothing,
    a_sleep_wakes_by_the_delay_queue,
    a_long_sleep_is_a_schedule_that_may_send_to_the_delay_queue,
    a_webhook_wakes_its_thread,
    nothing_went_to_the_dead_letter_queue,
    a_message_that_nobody_can_read_is_kept_and_the_user_is_told,
    a_message_that_died_in_the_queue_is_given_up_on_and_can_be_sent_again,
]


def result(invocation, text):
    """The callback that a tool server posts."""
    return {"type": "tool_result", "group_id": invocation["group_id"], "id": invocation["id"], "call_id": invocation.get("call_id"), "text": text}


def stack_of_checks(world):
    """Runs every check; a failed one does not stop those after it."""
    passed = failed = 0
    for check in CHECKS:
        started = time.monotonic()
        try:
            check(world)
            passed += 1
            print(f"ok      {check.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {check.__name__}", traceback.format_exc(), sep="\n", flush=True)
    return passed, failed


def run(build_dir, work):
    if build_dir is None:
        build_dir = work / "build"
        build(build_dir)
    with FakeToolServer(["srv_echo"]) as tools, emulator(work) as endpoint:
        parameters = {
            "Architecture": "x86_64",
            "Model": "scripted",
            "WorkerTimeout": "60",
            "LogLevel": "info",
            "ToolSets": json.dumps({"tool_sets": [{"type": "toolset_server", "server_url": tools.url, "id": "srv"}]}),
            "Config": 'allow_http_hosts = ["127.0.0.1", "localhost"]\n',
        }
        outputs = deploy(endpoint, build_dir, work, parameters)
        # The emulator serves the API under its own port, and the id is known only now: the second deployment tells the
        # functions, and shows that a stack takes an update in place.
        api_id = re.fullmatch(r"https://([^.]+)\.execute-api\..*", outputs["ApiUrl"])[1]
        api_base = f"{endpoint}/_aws/execute-api/{api_id}/$default"
        outputs = deploy(endpoint, build_dir, work, parameters | {"CallbackBaseUrl": api_base})
        world = World(endpoint, outputs, api_base, tools)
        passed, failed = stack_of_checks(world)
        if failed:
            world.logs()
            print("--- the end of the emulator's log", (work / "ministack.log").read_text(errors="replace")[-6000:], sep="\n")
        return passed, failed


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--build-dir", type=Path, help="deploy what `sam build` left here")
    arguments.add_argument("--keep", action="store_true", help="leave the work folder")
    args = arguments.parse_args()
    # A terminated test still ends its emulator: turn the signal into the exception that unwinds `emulator`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    work = Path(tempfile.mkdtemp(prefix="dormouse-stack-"))
    passed, failed = 0, 1
    try:
        passed, failed = run(args.build_dir and args.build_dir.resolve(), work)
    except Exception:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            print("--- the end of the emulator's log", (work / "ministack.log").read_text(errors="replace")[-6000:], sep="\n")
    finally:
        if args.keep:
            print(f"kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
