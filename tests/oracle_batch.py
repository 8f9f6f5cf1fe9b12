#!/usr/bin/env python3
"""The oracle for many streams at once: a process for each would cost more than all of its work.

Reads JSON lines {"surface", "events", "native"} from standard input: the text of a surface's events and, if they are to be compared,
the path of the native transcript. Writes a JSON line for each: {"diffs": [...]}, {"meaning": {...}} or {"breach": "..."}.
"""
import functools
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import oracle  # noqa: E402

oracle.native = functools.cache(oracle.native)      # the same transcript is compared with many streams


def judge(job, path):
    pathlib.Path(path).write_text(job["events"], encoding="utf-8", newline="")
    try:
        if job["native"] is None:
            return {"meaning": getattr(oracle, job["surface"])(path)}
        return {"diffs": oracle.compare(job["native"], job["surface"], path)}
    except oracle.Breach as breach:
        return {"breach": str(breach)}
    except ValueError as error:
        return {"breach": f"no JSON: {error}"}


def main():
    jobs = [json.loads(line) for line in sys.stdin.buffer.read().decode().split("\n") if line]
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            print(json.dumps(judge(job, f"{folder}/events")))


if __name__ == "__main__":
    main()
