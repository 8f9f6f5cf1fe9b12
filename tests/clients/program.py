"""What every Python client here shares: its arguments, its output of one line per thing seen, and a guard on its time."""

import argparse
import os
import signal
import sys

DEFAULT_TIMEOUT_SECONDS = 60.0


def argument_parser(description):
    """The arguments all clients take; the program adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("base", metavar="BASE_URL", type=lambda url: url.rstrip("/"))
    parser.add_argument("--token")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_SECONDS, metavar="SECONDS")
    parser.add_argument("--prompt")
    parser.add_argument("--session", metavar="ID")
    parser.add_argument("--answer", choices=["allow", "deny", "none"], default="allow")
    return parser


def parse(parser):
    """Parses the command line and starts the guard."""
    args = parser.parse_args()

    def expired(_signal, _frame):
        # Not by an exception: a library's thread or loop might swallow it.
        print(f"failed: not done after {args.timeout:g} s", file=sys.stderr, flush=True)
        os._exit(1)

    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, args.timeout)
    return args


def headers(args):
    """The bearer token, if there is one."""
    return {} if args.token is None else {"Authorization": f"Bearer {args.token}"}


def print_line(text):
    """One line of output."""
    print(text, flush=True)


def remark(text):
    """A remark for people."""
    print(text, file=sys.stderr, flush=True)
