#!/usr/bin/env python3
"""Lints template.yaml as CloudFormation will see it.

`sam validate --lint` and cfn-lint leave AWS::Serverless resources alone, so a function with a timeout of 901 seconds or
a queue that hands a batch out while its worker still runs pass both. This expands the SAM resources first, gives the
result to cfn-lint, and then holds it to the rules of this stack that no linter knows.

    python infra/lint.py [TEMPLATE]      with the interpreter of the environment that holds aws-sam-cli
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samtranslator.translator.transform import transform  # noqa: E402
from samtranslator.yaml_helper import yaml_parse  # noqa: E402

# It warns at exit of metrics that it has not sent anywhere.
logging.getLogger("samtranslator.metrics").setLevel(logging.ERROR)

# SQS hands a message out again when its visibility runs out: the worker must be dead by then.
VISIBILITY_MARGIN = 60
# The queue must never give up on an input before the worker does.
MAX_RECEIVES = 100
# API Gateway ends an HTTP API request after this many seconds.
GATEWAY_SECONDS = 30


class NoManagedPolicies:
    """The template names no managed policy by its short name."""

    def load(self):
        return {}


def expand(source):
    """The template after the SAM transform, with the code of each function somewhere in S3."""
    template = yaml_parse(source)
    functions = [r for r in template["Resources"].values() if r["Type"] == "AWS::Serverless::Function"]
    for function in functions:
        function["Properties"]["CodeUri"] = "s3://bucket/key"
    expanded = transform(template, {}, NoManagedPolicies())
    expanded.pop("Transform", None)
    return expanded


def cfn_lint(expanded):
    """Runs cfn-lint over the expanded template; warnings count."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expanded.json"
        path.write_text(json.dumps(expanded, indent=1))
        linter = Path(sys.executable).with_name("cfn-lint")
        return subprocess.call([linter, "-i", "W", "--", path]) == 0


def resolve(value, template, parameters):
    """A property with its Ref to a parameter or Fn::FindInMap replaced; anything else as it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    (function, argument), = value.items()
    if function == "Ref" and argument in parameters:
        return parameters[argument]
    if function == "Fn::FindInMap":
        name, first, second = (resolve(part, template, parameters) for part in argument)
        return template["Mappings"][name][str(first)][second]
    return value


def settings(template):
    """Every combination of parameter values that changes a number we check: the defaults, and each allowed timeout."""
    defaults = {name: p["Default"] for name, p in template["Parameters"].items() if "Default" in p}
    for seconds in template["Parameters"]["WorkerTimeout"]["AllowedValues"]:
        yield defaults | {"WorkerTimeout": seconds}


def statements(role):
    """The statements of a role's inline policies, with both sides of every Fn::If."""
    for policy in role["Properties"].get("Policies", []):
        for statement in policy["PolicyDocument"]["Statement"]:
            if "Fn::If" in statement:
                yield from (s for s in statement["Fn::If"][1:] if "Action" in s)
            else:
                yield statement


def listed(value):
    return value if isinstance(value, list) else [value]


def own_rules(template, source_folder):
    """The findings of this stack's own rules, as sentences."""
    resources = template["Resources"]
    worker, api, drain = (resources[name]["Properties"] for name in ("Worker", "Api", "Drain"))
    queue, table = resources["InputQueue"]["Properties"], resources["Table"]["Properties"]
    dead_letters = resources["DeadLetterQueue"]["Properties"]

    allowed, mapped = template["Parameters"]["WorkerTimeout"]["AllowedValues"], template["Mappings"]["WorkerTimeouts"]
    if set(allowed) != set(mapped):
        yield f"WorkerTimeouts: its keys {sorted(mapped)} are not the allowed values of WorkerTimeout {sorted(allowed)}"
    for parameters in settings(template):
        if parameters["WorkerTimeout"] not in mapped:
            continue
        timeout = int(resolve(worker["Timeout"], template, parameters))
        visibility = int(resolve(queue["VisibilityTimeout"], template, parameters))
        if visibility != timeout + VISIBILITY_MARGIN:
            yield f"InputQueue: visibility {visibility} s is not the worker's timeout {timeout} s + {VISIBILITY_MARGIN} s"
    if int(dead_letters["VisibilityTimeout"]) != int(drain["Timeout"]) + VISIBILITY_MARGIN:
        yield f"DeadLetterQueue: visibility {dead_letters['VisibilityTimeout']} s is not the drain's timeout {drain['Timeout']} s + {VISIBILITY_MARGIN} s"
    if int(api["Timeout"]) >= GATEWAY_SECONDS:
        yield f"Api: a timeout of {api['Timeout']} s outlasts the gateway's {GATEWAY_SECONDS} s"

    # The routes of AG-UI clients and the inspector are the function URL's: the gateway streams nothing.
    described = json.loads((source_folder / "src/http/openapi.json").read_text())["paths"]
    served = {
        f"{method.upper()} {path}"
        for path, methods in described.items()
        if not path.startswith(("/agui/", "/inspector"))
        for method in methods
        if method != "parameters"
    }
    routed = {r["Properties"]["RouteKey"] for r in resources.values() if r["Type"] == "AWS::ApiGatewayV2::Route"}
    for route in sorted(served ^ routed):
        yield f"HttpApi: {route} is {'not routed' if route in served else 'no route of the router'}"

    url = resources["StreamUrl"]["Properties"]
    if url.get("InvokeMode") != "RESPONSE_STREAM":
        yield "StreamUrl: without RESPONSE_STREAM its answers are whole or not at all"
    if "Cors" in url:
        yield "StreamUrl: the function says it; said twice, a browser refuses it"
    if url.get("AuthType") != {"Ref": "StreamAuth"} or template["Parameters"]["StreamAuth"]["Default"] != "AWS_IAM":
        yield "StreamUrl: it is open to everybody unless somebody says otherwise"
    for name, resource in resources.items():
        if resource["Type"] == "AWS::Lambda::Permission" and resource["Properties"]["Principal"] == "*" and resource.get("Condition") != "StreamIsPublic":
            yield f"{name}: everybody may invoke a function, whatever StreamAuth says"

    for name, wanted in {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}.items():
        if queue.get(name) != wanted:
            yield f"InputQueue: {name} is {queue.get(name)}, not {wanted}"
    if queue.get("ContentBasedDeduplication"):
        yield "InputQueue: content-based deduplication would drop two equal messages of one thread"
    if queue["RedrivePolicy"]["maxReceiveCount"] != MAX_RECEIVES:
        yield f"InputQueue: maxReceiveCount is not {MAX_RECEIVES}"
    if queue["RedrivePolicy"]["deadLetterTargetArn"] != {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]} or not dead_letters.get("FifoQueue"):
        yield "InputQueue: its dead letters do not go to DeadLetterQueue, or that is no FIFO queue"
    for name, function in {"Worker": worker, "Drain": drain}.items():
        if function.get("RecursiveLoop") != "Allow":
            yield f"{name}: without RecursiveLoop: Allow, Lambda stops a chain of slices after about 16 hops"
    delays = resources["DelayQueue"]["Properties"]
    if delays["VisibilityTimeout"] != queue["VisibilityTimeout"]:
        yield "DelayQueue: its visibility does not follow the worker's timeout"
    if delays.get("FifoQueue"):
        yield "DelayQueue: a FIFO queue cannot delay single messages"
    if resources["WorkerTimers"]["Properties"]["EventSourceArn"] != {"Fn::GetAtt": ["DelayQueue", "Arn"]}:
        yield "Worker: it does not forward the delay queue"
    for name in ("WorkerInput", "WorkerTimers", "DrainDeadLetter"):
        if resources[name]["Properties"].get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
            yield f"{name}: without ReportBatchItemFailures one failed message repeats its whole batch"
    if resources["DrainDeadLetter"]["Properties"]["EventSourceArn"] != {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]}:
        yield "Drain: it does not drain the dead-letter queue"

    if table.get("TimeToLiveSpecification") != {"AttributeName": "expires_at", "Enabled": True}:
        yield "Table: rows expire by expires_at"
    for name in ("Table", "CallbackKeys"):
        if {resources[name].get("DeletionPolicy"), resources[name].get("UpdateReplacePolicy")} != {"Retain"}:
            yield f"{name}: must outlive the stack"

    for name, resource in resources.items():
        if resource["Type"] == "AWS::Lambda::Function" and resource["Properties"].get("LoggingConfig", {}).get("LogFormat") != "JSON":
            yield f"{name}: its log lines are not JSON"
        if resource["Type"] != "AWS::IAM::Role":
            continue
        if resource["Properties"].get("ManagedPolicyArns"):
            yield f"{name}: managed policies reach more than this stack"
        for statement in statements(resource):
            if any("*" in action for action in listed(statement["Action"])):
                yield f"{name}: {statement.get('Sid')} allows actions by wildcard"
            if "*" in listed(statement["Resource"]):
                yield f"{name}: {statement.get('Sid')} reaches every resource"

    flags = tomllib.loads((source_folder / "CargoLambda.toml").read_text())["build"]
    for flag in ("no_default_features", "locked", "disable_optimizations"):
        if flags.get(flag) is not True:
            yield f"CargoLambda.toml: {flag} is not set; SAM has no other way to pass it"


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "template.yaml")
    expanded = expand(path.read_text())
    linted = cfn_lint(expanded)
    findings = list(own_rules(expanded, Path(__file__).parent.parent))
    for finding in findings:
        print(f"{path.name}: {finding}")
    print(f"lint: {len(expanded['Resources'])} resources after expansion, "
          f"cfn-lint {'clean' if linted else 'FAILED'}, {len(findings)} findings of our own")
    return 0 if linted and not findings else 1


if __name__ == "__main__":
    sys.exit(main())
