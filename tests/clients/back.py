"""python-socketio's asynchronous client that stays: it is connected, loses its server, and is expected to come back by
itself. Prints {"connected": N} each time it is connected and {"disconnected": REASON} each time it is not; ends when it was
connected as often as --times says."""

import asyncio
import json
import os
import sys

import socketio

from program import argument_parser, parse, print_line


async def stay(args):
    socket = socketio.AsyncClient()
    enough = asyncio.Event()
    connected = 0

    def connect():
        nonlocal connected
        connected += 1
        print_line(json.dumps({"connected": connected}))
        if connected >= args.times:
            enough.set()

    def disconnect(reason):
        print_line(json.dumps({"disconnected": str(reason)}))

    socket.on("connect", connect)
    socket.on("disconnect", disconnect)
    transports = None if args.transport == "default" else [args.transport]
    await socket.connect(args.base, auth={"token": args.token}, transports=transports)
    await enough.wait()
    sys.stdout.flush()
    # Over polling the library waits for its last request, which a server may hold for as long as a ping takes.
    os._exit(0)


parser = argument_parser(__doc__)
parser.add_argument("--transport", choices=["websocket", "polling", "default"], default="default")
parser.add_argument("--times", type=int, default=2)
asyncio.run(stay(parse(parser)))
