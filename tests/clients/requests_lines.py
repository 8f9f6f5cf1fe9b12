"""The loop that the vendor's page documents for Python: requests, iter_lines, `data: ` in front. Prints each event's
JSON text."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import requests

from answers import approval_answer
from program import argument_parser, headers, parse, print_line

PREFIX = "data: "
TERMINALS = ("done", "error", "interrupted")


def new_session(args):
    session = requests.Session()
    # A proxy from the environment has no business between a test and its server.
    session.trust_env = False
    session.headers.update(headers(args))
    return session


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--model", default="gpt-4o")
    args = parse(parser)
    if args.prompt is None:
        parser.error("--prompt is needed")
    cell = quote(args.cell, safe="")
    body = {
        "actor": "user-001",
        "model": args.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": args.prompt}]}],
    }
    if args.session is not None:
        body["session_id"] = args.session

    def answer(event):
        url = f"{args.base}/cells/{cell}/hitl/{quote(event['request_id'], safe='')}"
        new_session(args).post(url, json=approval_answer(event, args.answer)).raise_for_status()

    response = new_session(args).post(f"{args.base}/cells/{cell}/run", json=body, stream=True)
    if response.status_code != 200:
        sys.exit(f"failed: POST .../run: {response.status_code} {response.text}")
    event, answers = None, []
    with ThreadPoolExecutor(1) as aside:
        for line in response.iter_lines():
            if not line:
                continue
            line = line.decode("utf-8")
            if not line.startswith(PREFIX):
                continue
            if event is not None and event["type"] in TERMINALS:
                sys.exit(f"failed: an event came after {event['type']}: {line}")
            print_line(line[len(PREFIX):])
            event = json.loads(line[len(PREFIX):])
            if event["type"] == "approval_request" and args.answer != "none":
                answers.append(aside.submit(answer, event))
    for each in answers:
        each.result()
    if event is None or event["type"] not in TERMINALS:
        sys.exit("failed: the stream ended without a terminal event")


main()
