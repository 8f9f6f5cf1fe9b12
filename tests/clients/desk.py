"""A python-socketio client that does what its --plan says, step by step, as desk.mjs describes."""

import asyncio
import json
import sys

import aiohttp
import socketio

from answers import askuser_answer
from chat import Chat
from program import headers, parse, print_line
from program import argument_parser


def show(value):
    print_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class Desk:
    def __init__(self, args, http, session_id):
        self.args, self.http, self.session_id = args, http, session_id
        self.seen, self.read, self.news = [], 0, asyncio.Event()
        self.answered = None

    async def connect(self):
        self.chat = Chat()
        self.socket = socketio.AsyncClient(http_session=self.http, reconnection=False)

        # Not a coroutine: the library runs those as they come, and the order would be theirs.
        def see(event, data):
            show({"event": event, "data": data})
            try:
                self.chat.see(event, data)
            except (KeyError, RuntimeError):
                pass  # a patch of a turn that this socket has not seen: it came late
            self.seen.append(event)
            self.news.set()

        self.socket.on("*", see)
        transports = None if self.args.transport == "default" else [self.args.transport]
        await self.socket.connect(self.args.base, auth={"token": self.args.token}, transports=transports)

    async def ask(self, event, payload=None):
        acked = asyncio.get_running_loop().create_future()

        def callback(*ack):
            show({"ack": ack[0] if ack else None, "of": event})
            acked.set_result(None)

        await self.socket.emit(event, {"session_id": self.session_id, **(payload or {})}, callback=callback)
        return acked

    async def until(self, event):
        while True:
            while self.read < len(self.seen):
                self.read += 1
                if self.seen[self.read - 1] == event:
                    return
            self.news.clear()
            await self.news.wait()

    async def leave(self):
        """Over polling the library waits for its last request, which a server may hold for as long as a ping takes."""
        try:
            await asyncio.wait_for(self.socket.disconnect(), 1)
        except asyncio.TimeoutError:
            pass

    async def work(self):
        pending = []
        for step, *rest in json.loads(self.args.plan):
            if step == "connect":
                await self.connect()
            elif step == "disconnect":
                await self.leave()
            elif step == "drop":
                await self.socket.eio.disconnect(abort=True)
            elif step == "emit":
                pending.append(await self.ask(*rest))
            elif step == "ask":
                await (await self.ask(*rest))
            elif step == "until":
                await self.until(*rest)
            elif step in ("answer", "answer-again"):
                if step == "answer":
                    self.answered = self.chat.question()
                answer = askuser_answer(self.answered, rest[0])
                await (await self.ask("chat:send", {"message": "", "askuser_answer": answer}))
            elif step == "hold":
                self.answered = self.chat.question()
            elif step == "sleep":
                await asyncio.sleep(rest[0] / 1000)
            elif step == "mark":
                show({"mark": rest[0]})
            elif step == "messages":
                show({"messages": await self.request("GET", f"/api/sessions/{self.session_id}/messages")})
            else:
                raise RuntimeError(f"no such step: {step}")
        await asyncio.gather(*pending)
        await self.leave()

    async def request(self, method, path, body=None):
        return await request(self.args, self.http, method, path, body)


async def request(args, http, method, path, body=None):
    async with http.request(method, args.base + path, headers=headers(args), json=body) as response:
        if not response.ok:
            raise RuntimeError(f"{method} {path}: {response.status}")
        return await response.json()


async def talk(args):
    async with aiohttp.ClientSession() as http:
        session_id = args.session
        if session_id is None:
            session_id = (await request(args, http, "POST", "/api/sessions", {"intent": ""}))["session_id"]
        show({"session_id": session_id})
        await Desk(args, http, session_id).work()


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--transport", choices=["websocket", "polling", "default"], default="websocket")
    parser.add_argument("--plan", required=True)
    args = parse(parser)
    try:
        asyncio.run(talk(args))
    except (RuntimeError, OSError, aiohttp.ClientError, socketio.exceptions.SocketIOError, LookupError) as error:
        sys.exit(f"failed: {error!r}")


main()
